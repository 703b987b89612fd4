// Numbers of axes in few characters.

/** A moment on a time axis whose marks are `step` apart and that ends at `most`; m:ss where long. */
export function moment(ns: number, step: number, most = ns): string {
  if (ns === 0) return "0";
  if (most >= 6e10) {
    const minutes = Math.floor(ns / 6e10);
    const digits = step >= 1e9 ? 0 : Math.min(9, Math.ceil(-Math.log10(step / 1e9)));
    const seconds = (ns / 1e9 - minutes * 60).toFixed(digits);
    return `${minutes}:${seconds.padStart(digits ? digits + 3 : 2, "0")}`;
  }
  const [unit, name] = most >= 1e9 ? [1e9, "s"] : most >= 1e6 ? [1e6, "ms"] : most >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  const digits = Math.max(0, Math.min(9, Math.ceil(-Math.log10(step / unit) - 1e-9)));
  return `${(ns / unit).toFixed(digits)} ${name}`;
}

/** A share; never "0 %" or "100 %" where it is not. */
export function percent(share: number): string {
  const value = share * 100;
  if (value === 0 || value === 100) return `${value} %`;
  if (value < 0.01) return "< 0.01 %";
  if (value > 99.9) return "> 99.9 %";
  return `${value < 10 ? Number(value.toPrecision(2)) : value.toFixed(value < 99.5 ? 0 : 1)} %`;
}

/** A power of ten. */
export function power(exponent: number): string {
  return exponent >= -2 && exponent <= 3 ? String(Number((10 ** exponent).toPrecision(1))) : `1e${exponent}`;
}

/** Short enough for a cell of a table of colours. */
export function brief(n: number): string {
  if (!Number.isFinite(n)) return "";
  const size = Math.abs(n);
  if (size === 0) return "0";
  if (size >= 1e4 || size < 1e-2) return n.toExponential(0).replace("e+", "e");
  return size >= 100 ? n.toFixed(0) : String(Number(n.toPrecision(2)));
}

// Numbers, times and names in few characters.

import { abs, round } from "./maths.ts";

export function whole(n: number): string {
  return n.toLocaleString("en-US");
}

export function count(n: number, noun: string, nouns = noun + "s"): string {
  return `${whole(n)} ${n === 1 ? noun : nouns}`;
}

export function time(ns: number): string {
  if (!(ns >= 0)) return "";
  if (ns >= 6e10) return `${(ns / 6e10).toFixed(1)} min`;
  if (ns >= 1e9) return `${digits(ns / 1e9)} s`;
  if (ns >= 1e6) return `${digits(ns / 1e6)} ms`;
  if (ns >= 1e3) return `${digits(ns / 1e3)} µs`;
  return `${round(ns)} ns`;
}

function digits(n: number): string {
  return n >= 100 ? n.toFixed(0) : n >= 10 ? n.toFixed(1) : n.toFixed(2);
}

export function short(n: number): string {
  const units = ["", "k", "M", "B", "T"];
  let unit = 0;
  while (n >= 999.5 && unit < 4) {
    n /= 1000;
    unit++;
  }
  return unit ? digits(n) + units[unit] : String(n);
}

/** A measured number in four digits. */
export function number(n: number): string {
  if (Number.isNaN(n)) return "–";
  if (n === 0) return "0";
  const size = abs(n);
  if (size >= 1e5 || size < 1e-3) return n.toExponential(2).replace("e+", "e");
  return String(Number(n.toPrecision(4)));
}

/** An op's name without the namespace and overload everyone knows. */
export function shortOp(name: string): string {
  return name.replace(/^aten\./, "").replace(/\.default$/, "");
}

export function baseOp(name: string): string {
  return name.startsWith("aten.") ? shortOp(name).split(".")[0] : shortOp(name);
}

const FAMILIES: [string, RegExp][] = [
  ["view", /^(view|reshape|_reshape_alias|_unsafe_view|t|transpose|permute|expand|(un)?squeeze|slice|select|split|split_with_sizes|unbind|narrow|detach|alias|as_strided|clone|lift_fresh|_to_copy|copy_|empty|empty_like|slice_backward|select_backward)$/],
  ["matmul", /mm$|mm_|mv$|matmul|linear|conv|attention|einsum|lstm|gru|rnn/],
  ["norm", /norm|softmax|mean|^sum|var|std|max|min|pool|nll|loss|cross_entropy|argmax|topk|sort|cumsum/],
  ["index", /embedding|index|gather|scatter|arange|masked|where|tril|triu|one_hot|full|zeros|ones|rand|normal|dropout/],
  ["update", /_foreach|adam|sgd|addcdiv|addcmul|lerp|_fused/],
];

const families = new Map<string, string>();

/** The family of an op, by which it is coloured. */
export function family(name: string): string {
  let found = families.get(name);
  if (!found) {
    const base = baseOp(name);
    found = FAMILIES.find(([, pattern]) => pattern.test(base))?.[0] ?? "math";
    families.set(name, found);
  }
  return found;
}

/** Whether an op only looks at memory in another way, or makes some. */
export function isView(name: string): boolean {
  return family(name) === "view";
}

const hues = new Map<string, number>();

/** One of eight hues for a class of modules, dealt out in the order in which they are first asked for. */
export function hue(cls: string): number {
  let found = hues.get(cls);
  if (found === undefined) hues.set(cls, (found = hues.size % 8));
  return found;
}

export { shorten as clip } from "./fit.ts";

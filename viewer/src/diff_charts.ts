// Two values in one picture, on one axis: histograms where data was kept, else min, mean, max, std.

import type { Preview } from "./charts.ts";
import { r, s } from "./dom.ts";
import { number, whole } from "./format.ts";
import { max, min } from "./maths.ts";
import type { Stats } from "./trace.ts";

const WIDTH = 560;
const LEFT = 16;

type Both<T> = [T | null, T | null];

/** Histograms of both, one under the other. */
export function histograms(both: Both<Preview>): SVGElement | null {
  const known = both.filter((one) => one !== null);
  if (!known.length) return null;
  const low = min(...known.map((one) => one.low));
  const high = max(...known.map((one) => one.high));
  const x = scale(low, high);
  const tall = 46;
  const marks = both.map((one, side) => {
    if (!one) return null;
    const base = (side + 1) * (tall + 4);
    const most = max(1, ...Array.from(one.bins));
    const step = (one.high - one.low) / one.bins.length;
    return s("g", { class: "ab"[side] }, sideName(side, base - 4), s("line.base", { x1: LEFT, x2: WIDTH, y1: base, y2: base }), Array.from(one.bins, (n, i) => {
      const height = n ? max(1, (n / most) * tall) : 0;
      const from = x(one.low + i * step);
      const wide = step > 0 ? max(1, x(one.low + (i + 1) * step) - from - 0.6) : 3;
      return s("rect", { x: r(from), y: r(base - height), width: r(wide), height: r(height) },
        s("title", null, `${"ab"[side]}: ${number(one.low + i * step)} to ${number(one.low + (i + 1) * step)}: ${whole(n)}`));
    }));
  });
  return framed("histograms of both values", 2 * (tall + 4) + 14, low, high, x, marks);
}

/** From min to max with mean and deviation, one under the other. */
export function ranges(both: Both<Stats>): SVGElement | null {
  const known = both.filter((one) => one !== null && Number.isFinite(one.min)) as Stats[];
  if (!known.length) return null;
  const low = min(...known.map((one) => one.min));
  const high = max(...known.map((one) => one.max));
  const x = scale(low, high);
  const marks = both.map((one, side) => {
    if (!one || !Number.isFinite(one.min)) return null;
    const y = 12 + side * 24;
    const from = max(x(one.min), x(one.mean - one.std));
    const to = min(x(one.max), x(one.mean + one.std));
    return s("g", { class: "ab"[side] }, sideName(side, y + 4),
      s("line.whisker", { x1: x(one.min), x2: x(one.max), y1: y, y2: y }),
      s("line.whisker", { x1: x(one.min), x2: x(one.min), y1: y - 5, y2: y + 5 }),
      s("line.whisker", { x1: x(one.max), x2: x(one.max), y1: y - 5, y2: y + 5 }),
      s("rect", { x: r(from), y: y - 7, width: r(max(1, to - from)), height: 14, rx: 3 }, s("title", null, `${"ab"[side]}: mean ${number(one.mean)}, std ${number(one.std)}`)),
      s("line.mean", { x1: x(one.mean), x2: x(one.mean), y1: y - 9, y2: y + 9 }));
  });
  return framed("min, mean, max and deviation of both values", 66, low, high, x, marks);
}

function scale(low: number, high: number): (value: number) => number {
  const span = high - low;
  return (value) => r(span > 0 ? LEFT + 3 + ((value - low) / span) * (WIDTH - LEFT - 6) : (LEFT + WIDTH) / 2);
}

function sideName(side: number, y: number): SVGElement {
  return s("text.side", { x: 0, y }, "ab"[side]);
}

function framed(label: string, height: number, low: number, high: number, x: (value: number) => number, marks: (SVGElement | null)[]): SVGElement {
  const zero = low < 0 && high > 0 ? x(0) : -1;
  return s("svg.both", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", label },
    zero >= 0 && s("line.zero", { x1: zero, x2: zero, y1: 0, y2: height - 12 }), marks,
    s("text", { x: LEFT, y: height - 1 }, number(low)),
    zero > 90 && zero < WIDTH - 90 && s("text.mid", { x: zero, y: height - 1 }, "0"),
    high > low && s("text.end", { x: WIDTH, y: height - 1 }, number(high)));
}

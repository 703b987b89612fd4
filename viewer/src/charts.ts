// Small pictures of the numbers of one value: histogram and range. Colours come from the style sheet.

import { r, s } from "./dom.ts";
import { number, whole } from "./format.ts";
import type { Payload } from "./payload.ts";
import type { Stats } from "./trace.ts";

export interface Preview {
  low: number;
  high: number;
  tiles: number;
  rows: number;
  columns: number;
  poolRows: number;
  poolColumns: number;
  bins: ArrayLike<number>;
  cells: Uint8Array;
  numbers: ArrayLike<number>;
}

const BASE = 3;
const STEPS = 252;

/** The number that a cell of a preview stands for: NaN or an infinity where it is one. */
export function numberOf({ low, high }: Preview, cell: number): number {
  return cell >= BASE ? low + ((cell - BASE) / STEPS) * (high - low) : [NaN, Infinity, -Infinity][cell];
}

/** Reads previews, whose sizes differ, by their numbers. */
export class PreviewReader {
  private readonly cellStart: Float64Array;
  private readonly numberStart: Float64Array;
  private readonly binCount: number;

  constructor(private readonly payload: Payload, private readonly prefix: string) {
    const of = (name: string) => payload.column(prefix + name);
    const n = of("tiles").length;
    this.cellStart = new Float64Array(n + 1);
    this.numberStart = new Float64Array(n + 1);
    for (let i = 0; i < n; i++) {
      this.cellStart[i + 1] = this.cellStart[i] + of("tiles")[i] * of("rows")[i] * of("columns")[i];
      this.numberStart[i + 1] = this.numberStart[i] + of("exact")[i];
    }
    this.binCount = n ? of("bins").length / n : 0;
  }

  read(at: number): Preview {
    const of = (name: string) => this.payload.column(this.prefix + name);
    return {
      low: of("low")[at], high: of("high")[at], tiles: of("tiles")[at], rows: of("rows")[at], columns: of("columns")[at],
      poolRows: of("pool_rows")[at], poolColumns: of("pool_columns")[at],
      bins: of("bins").subarray(at * this.binCount, (at + 1) * this.binCount),
      cells: of("cells").subarray(this.cellStart[at], this.cellStart[at + 1]) as Uint8Array,
      numbers: of("numbers").subarray(this.numberStart[at], this.numberStart[at + 1]),
    };
  }
}

export function histogram({ bins, low, high }: Preview): SVGElement {
  const width = 280;
  const height = 72;
  let most = 1;
  for (let i = 0; i < bins.length; i++) most = Math.max(most, bins[i]);
  const step = width / bins.length;
  const bars = Array.from(bins, (n, i) => {
    const tall = n ? Math.max(1, (n / most) * (height - 16)) : 0;
    const from = low + ((high - low) * i) / bins.length;
    const to = low + ((high - low) * (i + 1)) / bins.length;
    return s("rect", { x: r(i * step), y: r(height - 14 - tall), width: r(step - 1), height: r(tall), rx: 0.5 },
      s("title", null, `${number(from)} to ${number(to)}: ${whole(n)}`));
  });
  const zero = low < 0 && high > 0 ? ((0 - low) / (high - low)) * width : -1;
  return s("svg.histogram", { viewBox: `0 0 ${width} ${height}`, role: "img", label: "histogram" },
    zero >= 0 && s("line.zero", { x1: zero, x2: zero, y1: 0, y2: height - 14 }), bars,
    s("text", { x: 0, y: height - 2 }, number(low)),
    zero > 30 && zero < width - 30 && s("text", { x: zero, y: height - 2, class: "mid" }, "0"),
    s("text", { x: width, y: height - 2, class: "end" }, number(high)));
}

/** Where the numbers lie when no data was kept: from min to max, with mean and deviation. */
export function range(stats: Stats): SVGElement | null {
  const { min, max, mean, std } = stats;
  if (!(max > min)) return null;
  const width = 280;
  const x = (v: number) => 4 + ((Math.min(max, Math.max(min, v)) - min) / (max - min)) * (width - 8);
  const zero = min < 0 && max > 0;
  return s("svg.range", { viewBox: `0 0 ${width} 34`, role: "img", label: `${number(min)} to ${number(max)}, mean ${number(mean)}` },
    s("line.whisker", { x1: x(min), x2: x(max), y1: 11, y2: 11 }),
    s("line.whisker", { x1: x(min), x2: x(min), y1: 6, y2: 16 }),
    s("line.whisker", { x1: x(max), x2: x(max), y1: 6, y2: 16 }),
    s("rect", { x: x(mean - std), y: 4, width: Math.max(1, x(mean + std) - x(mean - std)), height: 14, rx: 3 }),
    zero && s("line.zero", { x1: x(0), x2: x(0), y1: 0, y2: 22 }),
    s("line.mean", { x1: x(mean), x2: x(mean), y1: 2, y2: 20 }),
    s("text", { x: 0, y: 32 }, number(min)), s("text", { x: x(mean), y: 32, class: x(mean) < 60 ? "" : x(mean) > width - 60 ? "end" : "mid" }, `μ ${number(mean)}`),
    s("text", { x: width, y: 32, class: "end" }, number(max)));
}

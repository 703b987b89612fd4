// Small pictures of numbers: histograms, heat maps, lines. Colours come from the style sheet.

import { h, on, r, s } from "./dom.ts";
import { number, whole } from "./format.ts";
import { abs, round } from "./maths.ts";
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

/** Blue below zero, red above, white in between; what is not finite stands out. */
function colour(cell: number, low: number, high: number, diverging: boolean): [number, number, number] {
  if (cell === 0) return [255, 0, 220];
  if (cell === 1) return [255, 150, 0];
  if (cell === 2) return [255, 230, 0];
  const at = (cell - BASE) / STEPS;
  if (!diverging) {
    // From deep blue over green to yellow; small numbers, which are the most, told apart as well.
    const lifted = at ** 0.5;
    return [mix(lifted, 68, 33, 253), mix(lifted, 1, 145, 231), mix(lifted, 84, 140, 37)];
  }
  const value = low + at * (high - low);
  const size = Math.min(1, abs(value) / Math.max(abs(low), abs(high)));
  const strong = size ** 0.5;
  return value < 0
    ? [round(247 - 214 * strong), round(247 - 145 * strong), round(247 - 75 * strong)]
    : [round(247 - 69 * strong), round(247 - 223 * strong), round(247 - 204 * strong)];
}

function mix(at: number, low: number, middle: number, high: number): number {
  return round(at < 0.5 ? low + (middle - low) * at * 2 : middle + (high - middle) * (at - 0.5) * 2);
}

export function heatMaps(preview: Preview): HTMLElement {
  const { tiles, rows, columns, low, high } = preview;
  const diverging = low < 0 && high > 0;
  const size = rows * columns;
  const made = Array.from({ length: tiles }, (_, tile) => {
    const canvas = h("canvas", { width: columns, height: rows, role: "img", label: `values of slice ${tile}` });
    const image = new ImageData(columns, rows);
    for (let i = 0; i < size; i++) {
      const [r, g, b] = colour(preview.cells[tile * size + i], low, high, diverging);
      image.data.set([r, g, b, 255], i * 4);
    }
    canvas.getContext("2d")!.putImageData(image, 0, 0);
    const tall = Math.min(10, Math.max(0.12, rows / columns));
    canvas.style.aspectRatio = `1 / ${tall.toFixed(3)}`;
    return canvas;
  });
  return h("div", { class: `tiles t${Math.min(3, tiles)}` }, made);
}

/** The values of one line as a curve. */
export function line(preview: Preview): SVGElement {
  const values = Array.from(preview.cells, (c) => (c < BASE ? NaN : preview.low + ((c - BASE) / STEPS) * (preview.high - preview.low)));
  return curve([{ values, look: "a" }], preview.low, preview.high, "values");
}

export interface Series {
  values: number[];
  look: string;
}

export function curve(series: Series[], low: number, high: number, label: string, at = -1, pick?: (index: number) => void): SVGElement {
  const width = 280;
  const height = 64;
  const n = Math.max(...series.map((one) => one.values.length));
  const span = high - low || 1;
  const x = (i: number) => (n > 1 ? r(3 + (i / (n - 1)) * (width - 6)) : width / 2);
  const y = (v: number) => r(4 + (1 - (v - low) / span) * (height - 20));
  const paths = series.map(({ values, look }) => {
    let pen = "M";
    let d = "";
    values.forEach((v, i) => {
      if (!Number.isFinite(v)) {
        pen = "M";
        return;
      }
      d += `${pen}${x(i)} ${y(v)}`;
      pen = "L";
    });
    return s("path", { class: `curve ${look}`, d });
  });
  const dots = n <= 60 ? series.flatMap(({ values, look }) => values.map((v, i) => (Number.isFinite(v) ? s("circle", { class: `curve ${look}`, cx: x(i), cy: y(v), r: 1.8 }) : null))) : [];
  const svg = s("svg.plot", { viewBox: `0 0 ${width} ${height}`, role: "img", label: label },
    at >= 0 && s("line.here", { x1: x(at), x2: x(at), y1: 0, y2: height - 14 }), paths, dots,
    label !== "time" && [s("text", { x: 0, y: height - 2 }, `${number(low)} to ${number(high)}`)]);
  if (pick) {
    svg.classList.add("pick");
    on(svg, "click", (event) => {
      const box = svg.getBoundingClientRect();
      const share = ((event.clientX - box.left) / box.width) * width;
      pick(Math.max(0, Math.min(n - 1, round(((share - 3) / (width - 6)) * (n - 1)))));
    });
  }
  return svg;
}

// Module calls by step: a row per module in depth order, a cell per step, coloured by a figure of its
// results or by its time; bars where there is only one step.

import { brief, percent } from "./chart_text.ts";
import { Chart, picker, swatch } from "./chart.ts";
import type { LayersHead } from "./chart_heads.ts";
import { h, on, replace, stop } from "./dom.ts";
import { count, number, time } from "./format.ts";
import { ceil, floor, log10, max, min, round } from "./maths.ts";
import type { View } from "./state.ts";
import { fitted, hatch, INF, NAN, type Pen } from "./surface.ts";

type Figure = "std" | "max" | "norm" | "zeros" | "nan" | "time";
const FIGURES: [Figure, string][] = [["std", "std"], ["max", "|max|"], ["norm", "norm"], ["zeros", "zeros %"], ["nan", "NaN %"], ["time", "time"]];
const SHARES = new Set<Figure>(["zeros", "nan"]);

const ROW = 16;
const TOP = 17;
const STOPS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];

/** From deep blue over green to yellow. */
export function shade(at: number): string {
  const place = max(0, min(1, at)) * (STOPS.length - 1);
  const low = min(STOPS.length - 2, floor(place));
  const mixed = STOPS[low].map((from, i) => round(from + (STOPS[low + 1][i] - from) * (place - low)));
  return `rgb(${mixed.join(", ")})`;
}

export class HeatMap extends Chart {
  private readonly head: LayersHead;
  private figure: Figure;
  private rank: number;
  private leaves = false;
  /** Modules that are shown, by their number. */
  private rows: number[] = [];
  /** The entry of each module and column, counted from 1; 0 where it was not called. */
  private grid = new Int32Array(0);
  /** The figures from which, and up to which, colours differ; and the ends of all figures. */
  private low = 0;
  private high = 1;
  private least = 0;
  private most = 1;
  /** Whether the selected call has been brought into sight. */
  private revealed = false;
  private cursor: [row: number, column: number] = [0, 0];

  constructor(view: View) {
    super(view, "layers", "Layers by steps: arrows move, Enter goes to the call");
    const head = (this.head = view.trace.head.layers!);
    this.figure = head.taken ? "std" : "time";
    this.rank = head.ranks[0] ?? 0;
    if (!head.paths.length) {
      this.nothing("No calls of modules are in this trace.");
      return;
    }
    const changed = () => this.arrange();
    replace(this.tools,
      picker("Figure", FIGURES, this.figure, (figure) => { this.figure = figure; changed(); }),
      picker("Rank", head.ranks.map((rank) => [rank, `rank ${rank}`]), this.rank, (rank) => { this.rank = rank; changed(); }),
      h("label.check", null, h("input", { type: "checkbox", onchange: (event: Event) => {
        this.leaves = (event.target as HTMLInputElement).checked;
        changed();
      } }), "innermost only"));
    this.listen();
    this.arrange();
    view.onSelect((from) => {
      if (from !== "layers") this.revealed = false;
      this.surface.draw();
    });
  }

  private arrange(): void {
    const { paths, depths, columns } = this.head;
    // A module follows the one it lies in.
    this.rows = paths.map((_, i) => i).filter((i) => !this.leaves || !(depths[i + 1] > depths[i]));
    this.grid = new Int32Array(paths.length * columns.length);
    const [rank, path, column, taken, figure] = ["rank", "path", "column", "taken", this.figure].map((name) => this.column(name));
    const isLog = !SHARES.has(this.figure);
    const values: number[] = [];
    for (let entry = 0; entry < rank.length; entry++) {
      if (rank[entry] !== this.rank) continue;
      this.grid[path[entry] * columns.length + column[entry]] = entry + 1;
      const value = figure[entry];
      if (this.figure !== "time" && (!taken[entry] || this.bad(entry))) continue;
      if (!Number.isFinite(value) || (isLog && value <= 0)) continue;
      values.push(value);
    }
    values.sort((a, b) => a - b);
    const last = values.length - 1;
    const aside = floor(values.length * 0.02);
    [this.least, this.low, this.high, this.most] = [0, aside, last - aside, last].map((at) => values[at] ?? NaN);
    // A few that are far from all others do not take the colours from them.
    const near = log10(this.high / this.low) + 0.5;
    if (!isLog) this.least = this.low = 0;
    else if (log10(this.low / this.least) < near) this.low = this.least;
    if (!isLog || log10(this.most / this.high) < near) this.high = this.most;
    this.cursor = [min(this.cursor[0], this.rows.length - 1), min(this.cursor[1], columns.length - 1)];
    this.describeScale();
    this.surface.draw();
  }

  private text(value: number): string {
    return this.figure === "time" ? time(value) : SHARES.has(this.figure) ? percent(value) : number(value);
  }

  private describeScale(): void {
    const bar = h("span.scale", { "aria-hidden": "true" });
    bar.style.background = `linear-gradient(to right, ${[0, 0.25, 0.5, 0.75, 1].map(shade).join(", ")})`;
    // Without NaN there is nothing to colour.
    const any = this.high >= this.low && this.figure !== "nan";
    const name = FIGURES.find(([figure]) => figure === this.figure)![1];
    const isLog = !SHARES.has(this.figure);
    replace(this.legend, h("b", null, name),
      any ? [h("span", null, `${this.least < this.low ? "≤ " : ""}${this.text(this.low)}`), this.head.columns.length > 1 ? bar : "to", h("span", null, `${this.most > this.high ? "≥ " : ""}${this.text(this.high)}`),
        h("span.dim", null, `${isLog ? "log scale" : ""}${this.most > this.high ? `, up to ${this.text(this.most)}` : ""}`)] : this.figure !== "nan" && h("span", null, "no figures"),
      swatch("NaN", "nan"), swatch("Inf", "inf"), swatch("not taken", "hatched"), swatch("not called", "blank"),
      !this.head.taken && h("span.dim", null, "values=\"stats\" takes statistics"));
  }

  /** What is wrong with the results of an entry. */
  private bad(entry: number): "NaN" | "Inf" | "" {
    return this.column("nan")[entry] > 0 ? "NaN" : this.column("inf")[entry] > 0 ? "Inf" : "";
  }

  private place(value: number): number {
    const { low, high } = this;
    if (SHARES.has(this.figure)) return high > low ? (value - low) / (high - low) : 0;
    if (!(value > 0)) return 0;
    return high > low ? max(0, min(1, log10(value / low) / log10(high / low))) : value > high ? 1 : 0.5;
  }

  private get labels(): number {
    return min(230, floor(this.surface.width * 0.3));
  }

  private get cell(): number {
    const { columns } = this.head;
    return max(2, min(64, (this.surface.width - this.labels - 10) / columns.length));
  }

  protected override paint(pen: Pen): void {
    const { surface, head, rows } = this;
    const { columns } = head;
    const wide = this.cell;
    const labels = this.labels;
    surface.extent(columns.length > 1 ? labels + wide * columns.length : 0, TOP + rows.length * ROW + 4);
    this.reveal(wide, labels);
    const top = surface.top;
    const first = max(0, floor(top / ROW));
    const last = min(rows.length, ceil((top + surface.height - TOP) / ROW));
    pen.textBaseline = "middle";
    for (let at = first; at < last; at++) {
      const y = TOP + at * ROW - top;
      if (columns.length > 1) this.cells(pen, rows[at], y, wide, labels);
      else this.bar(pen, rows[at], y, labels);
    }
    this.names(pen, first, last, labels);
    if (columns.length > 1) this.steps(pen, wide, labels);
    else this.title(pen, labels);
    this.marks(pen, wide, labels);
  }

  private reveal(wide: number, labels: number): void {
    if (this.revealed) return;
    this.revealed = true;
    const [path, column] = this.selected();
    const at = this.rows.indexOf(path);
    if (at < 0) return;
    this.cursor = [at, max(0, column)];
    const across = this.head.columns.length > 1 ? max(0, column) * wide : 0;
    this.surface.reveal(labels + across, TOP + at * ROW, min(wide, 64), ROW * 2, labels, TOP + ROW);
  }

  private cells(pen: Pen, path: number, y: number, wide: number, labels: number): void {
    const { surface, head } = this;
    const count = head.columns.length;
    const left = surface.left;
    const first = max(0, floor(left / wide));
    const last = min(count, ceil((left + surface.width - labels) / wide));
    const gap = wide > 8 ? 1 : 0;
    pen.font = "10px ui-monospace, monospace";
    for (let column = first; column < last; column++) {
      const entry = this.grid[path * count + column] - 1;
      if (entry < 0) continue;
      const x = labels + column * wide - left;
      this.fillCell(pen, entry, x, y, wide - gap, ROW - 1);
    }
  }

  private fillCell(pen: Pen, entry: number, x: number, y: number, wide: number, tall: number): void {
    const { surface } = this;
    const bad = this.bad(entry);
    const value = this.column(this.figure)[entry];
    if (this.figure !== "time" && !this.column("taken")[entry]) {
      pen.fillStyle = surface.colour("hover");
      pen.fillRect(x, y, wide, tall);
      return hatch(pen, x, y, wide, tall, surface.colour("dim"));
    }
    const marked = bad && this.figure !== "time";
    const fill = marked ? (bad === "NaN" ? NAN : INF) : this.figure === "nan" ? surface.colour("hover") : shade(this.place(value));
    pen.fillStyle = fill;
    pen.fillRect(x, y, wide, tall);
    const text = marked ? (this.figure === "nan" && value > 0 ? percent(value) : bad) : this.figure === "time" ? time(value) : SHARES.has(this.figure) ? percent(value) : brief(value);
    pen.fillStyle = pen.strokeStyle = surface.ink(fill);
    if (wide > 26 && pen.measureText(text).width < wide - 4) {
      pen.textAlign = "center";
      pen.fillText(text, x + wide / 2, y + tall / 2 + 0.5);
      pen.textAlign = "left";
    } else if (marked) {
      // Too narrow for a word: a cross, so that it is not a matter of colour alone.
      const [cx, cy, size] = [x + wide / 2, y + tall / 2, min(wide, tall) / 2 - 1];
      pen.lineWidth = 1.4;
      pen.beginPath();
      for (const by of [1, -1]) {
        pen.moveTo(cx - size, cy - size * by);
        pen.lineTo(cx + size, cy + size * by);
      }
      pen.stroke();
    }
    if (bad && !marked) {
      pen.fillStyle = bad === "NaN" ? NAN : INF;
      pen.fillRect(x, y, min(5, wide), tall);
    }
  }

  /** Of one step, a bar from the smallest figure on. */
  private bar(pen: Pen, path: number, y: number, labels: number): void {
    const { surface } = this;
    const entry = this.grid[path] - 1;
    if (entry < 0) return;
    const room = surface.width - labels - 90;
    pen.font = "10.5px ui-monospace, monospace";
    const bad = this.bad(entry);
    if (this.figure !== "time" && !this.column("taken")[entry]) {
      hatch(pen, labels, y, 60, ROW - 2, surface.colour("dim"));
    } else if (bad && this.figure !== "time") {
      pen.fillStyle = bad === "NaN" ? NAN : INF;
      pen.fillRect(labels, y, room, ROW - 2);
      pen.fillStyle = surface.ink(bad === "NaN" ? NAN : INF);
      pen.fillText(this.figure === "nan" ? percent(this.column("nan")[entry]) : bad, labels + 6, y + ROW / 2 - 0.5);
    } else {
      const value = this.column(this.figure)[entry];
      const long = SHARES.has(this.figure) ? value * room : value > 0 ? max(2, (0.03 + 0.97 * this.place(value)) * room) : 0;
      pen.fillStyle = surface.colour("accent");
      pen.fillRect(labels, y + 1, long, ROW - 4);
      pen.fillStyle = surface.colour("text");
      pen.fillText(this.text(value), labels + long + 5, y + ROW / 2 - 0.5);
    }
  }

  private names(pen: Pen, first: number, last: number, labels: number): void {
    const { surface, head } = this;
    pen.fillStyle = surface.colour("bg");
    pen.fillRect(0, 0, labels - 3, surface.height);
    const [mine] = this.selected();
    for (let at = first; at < last; at++) {
      const path = this.rows[at];
      const y = TOP + at * ROW - surface.top + ROW / 2 - 0.5;
      const indent = this.leaves ? 0 : min(6, head.depths[path]) * 9;
      pen.font = `${path === mine ? "600 " : ""}11px system-ui, sans-serif`;
      pen.fillStyle = surface.colour(path === mine ? "accent" : "text");
      const name = fitted(pen, this.name(path), labels - 12 - indent);
      pen.fillText(name, 6 + indent, y);
      const used = pen.measureText(name).width + 6 + indent + 6;
      pen.font = "10px system-ui, sans-serif";
      pen.fillStyle = surface.colour("dim");
      if (labels - used > 40) pen.fillText(fitted(pen, head.classes[path], labels - used - 8), used, y);
    }
  }

  /** A module by its name in the one around it, as rows are indented; whole where they are not. */
  private name(path: number): string {
    const { paths, depths } = this.head;
    const own = paths[path];
    if (own === "") return this.head.classes[path];
    if (this.leaves) return own;
    for (let at = path - 1; at >= 0; at--) {
      if (depths[at] < depths[path]) return paths[at] && own.startsWith(paths[at] + ".") ? own.slice(paths[at].length + 1) : own;
    }
    return own;
  }

  private steps(pen: Pen, wide: number, labels: number): void {
    const { surface, head } = this;
    pen.fillStyle = surface.colour("bg");
    pen.fillRect(0, 0, surface.width, TOP - 1);
    pen.font = "10px system-ui, sans-serif";
    pen.fillStyle = surface.colour("dim");
    pen.fillText("step", labels - 30, TOP / 2);
    const each = [1, 2, 5, 10, 20, 50, 100, 200].find((n) => n * wide > 26) ?? 400;
    for (let column = 0; column < head.columns.length; column += each) {
      const x = labels + column * wide - surface.left;
      if (x < labels - 1) continue;
      pen.fillText(String(head.columns[column][0]), x + 1, TOP / 2);
    }
  }

  private title(pen: Pen, labels: number): void {
    const { surface } = this;
    pen.fillStyle = surface.colour("bg");
    pen.fillRect(0, 0, surface.width, TOP - 1);
    pen.font = "10px system-ui, sans-serif";
    pen.fillStyle = surface.colour("dim");
    const isLog = !SHARES.has(this.figure);
    pen.fillText(`${FIGURES.find(([figure]) => figure === this.figure)![1]} by depth${isLog ? ", log scale" : ""}`, labels, TOP / 2);
  }

  /** The module and column of the selected event, -1 where it has none. */
  private selected(): [path: number, column: number] {
    const { row, trace } = this.view;
    if (row < 0) return [-1, -1];
    const path = this.head.paths.indexOf(trace.module(row) ?? "\0");
    const step = trace.step[row];
    return [path, this.head.columns.findIndex(([first, last]) => step >= first && step <= last)];
  }

  private marks(pen: Pen, wide: number, labels: number): void {
    const { surface } = this;
    const box = (at: number, column: number, colour: string, dashed: boolean) => {
      const x = this.head.columns.length > 1 ? labels + column * wide - surface.left : labels;
      const y = TOP + at * ROW - surface.top;
      if (at < 0 || column < 0 || y < TOP - 2 || x < labels - 2) return;
      pen.strokeStyle = surface.colour(colour);
      pen.lineWidth = 2;
      pen.setLineDash(dashed ? [3, 2] : []);
      pen.strokeRect(x - 0.5, y - 0.5, this.head.columns.length > 1 ? max(wide, 4) : surface.width - labels - 6, ROW);
      pen.setLineDash([]);
    };
    const [path, column] = this.selected();
    box(this.rows.indexOf(path), column, "text", false);
    if (document.activeElement === surface.canvas) box(this.cursor[0], this.cursor[1], "accent", true);
  }

  private entryAt(at: number, column: number): number {
    return at >= 0 && at < this.rows.length ? this.grid[this.rows[at] * this.head.columns.length + column] - 1 : -1;
  }

  private figures(at: number, column: number): string[] {
    const { head } = this;
    const path = this.rows[at];
    const [first, last] = head.columns[column];
    const lines = [`${head.paths[path] || head.classes[path]} ${head.paths[path] ? head.classes[path] : ""}`.trim()];
    const when = first === last ? `step ${first}` : `steps ${first} to ${last}`;
    const entry = this.entryAt(at, column);
    if (entry < 0) return [...lines, `${when}: not called`];
    const of = (name: string) => this.column(name)[entry];
    const calls = of("calls");
    lines.push(calls > 1 ? `${when}, largest of ${count(calls, "call")}` : when);
    if (of("taken")) {
      if (this.bad(entry)) lines.push(`NaN ${percent(of("nan"))} · Inf ${percent(of("inf"))}`);
      lines.push(`std ${number(of("std"))} · |max| ${number(of("max"))} · norm ${number(of("norm"))}`, `zeros ${percent(of("zeros"))}${this.bad(entry) ? "" : " · no NaN, no Inf"}`);
    } else {
      lines.push("statistics not taken");
    }
    lines.push(`time ${time(of("time"))}${first === last ? "" : " in a step"}`);
    if (!of("event")) lines.push("the call itself was left out of this page");
    return lines;
  }

  private at(x: number, y: number): [row: number, column: number] | null {
    const at = floor((y + this.surface.top - TOP) / ROW);
    if (y < TOP || at < 0 || at >= this.rows.length) return null;
    if (x < this.labels || this.head.columns.length === 1) return [at, 0];
    const column = floor((x - this.labels + this.surface.left) / this.cell);
    return column < this.head.columns.length ? [at, column] : null;
  }

  private go(at: number, column: number): void {
    const event = this.entryAt(at, column) < 0 ? 0 : this.column("event")[this.entryAt(at, column)];
    if (event) this.view.choose(event - 1, "layers");
  }

  private listen(): void {
    const { canvas } = this.surface;
    on(canvas, "pointermove", (event) => {
      const [x, y] = this.surface.at(event);
      const found = this.at(x, y);
      if (found) this.tell(x, y, this.figures(...found));
      else this.surface.hideTip();
    });
    on(canvas, "click", (event) => {
      const found = this.at(...this.surface.at(event));
      if (!found) return;
      this.cursor = found;
      this.go(...found);
    });
    on(canvas, "focus", () => this.surface.draw());
    on(canvas, "keydown", (event) => {
      const page = max(1, floor(this.surface.height / ROW) - 2);
      const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], PageUp: [-page, 0], PageDown: [page, 0], Home: [0, -1e6], End: [0, 1e6] }[event.key];
      if (event.key === "Enter" || event.key === " ") this.go(...this.cursor);
      else if (by) this.move(by[0], by[1]);
      else return;
      stop(event);
    });
  }

  private move(rows: number, columns: number): void {
    const clamp = (n: number, most: number) => max(0, min(most, n));
    this.cursor = [clamp(this.cursor[0] + rows, this.rows.length - 1), clamp(this.cursor[1] + columns, this.head.columns.length - 1)];
    const [at, column] = this.cursor;
    const wide = this.head.columns.length > 1 ? this.cell : 0;
    this.surface.reveal(this.labels + column * wide, TOP + at * ROW, wide, ROW, this.labels, TOP);
    this.surface.draw();
    this.tell(this.labels + column * wide - this.surface.left + wide / 2, TOP + at * ROW - this.surface.top + ROW / 2, this.figures(at, column));
  }
}

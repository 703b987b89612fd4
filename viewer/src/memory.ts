// Memory over time: the bytes alive by kind, one on top of the other, as `t.memory()` counts them.

import { moment } from "./chart_text.ts";
import { Chart, picker, swatch } from "./chart.ts";
import type { DeviceHead, MemoryHead } from "./chart_heads.ts";
import { button, h, on, replace, stop } from "./dom.ts";
import { bytes } from "./format.ts";
import { abs, ceil, max, min, round } from "./maths.ts";
import type { TimeRange } from "./range.ts";
import type { View } from "./state.ts";
import { type Pen, roundStep } from "./surface.ts";
import { lowerBound } from "./trace.ts";

const LEFT = 66;
const RIGHT = 12;
const TOP = 18;
const BOTTOM = 18;
export class MemoryChart extends Chart {
  private readonly head: MemoryHead;
  private readonly peakText = h("span.clip", null);
  private device = 0;
  /** The first moment of the device, and the one after its last. */
  private first = 0;
  private end = 0;
  private cursor = -1;
  private kinds: number[] = [];

  constructor(view: View, private readonly range: TimeRange) {
    super(view, "memory", "Memory over time: left and right move, Enter goes to the event, p to the peak");
    const { devices, notes } = (this.head = view.trace.head.memory!);
    if (!devices.length) {
      this.nothing(`No memory of tensors was seen. ${notes.join(" ")}`);
      return;
    }
    const all = button("✕", "The whole run (no range)", () => range.clear(), "norange");
    const told = () => {
      all.hidden = !range.chosen;
      this.surface.draw();
    };
    range.onChange(told);
    told();
    replace(this.tools, this.peakText, all, button("▲ Peak", "Go to the peak (p)", () => this.goToPeak(), "peak"),
      picker("Rank and device", devices.map(({ rank, device }, i) => [i, `rank ${rank} ${device}`]), 0, (device) => this.choose(device)));
    this.listen();
    this.choose(0);
    view.onSelect(() => this.surface.draw());
  }

  private get shown(): DeviceHead {
    return this.head.devices[this.device];
  }

  private choose(device: number): void {
    this.device = device;
    this.first = 0;
    for (const one of this.head.devices.slice(0, device)) this.first += one.points;
    this.end = this.first + this.shown.points;
    this.cursor = -1;
    const sums = this.head.kinds.map(() => 0);
    for (let at = this.first; at < this.end; at++) for (let kind = 0; kind < sums.length; kind++) sums[kind] += this.bytesOf(at, kind);
    this.kinds = sums.map((_, kind) => kind).filter((kind) => sums[kind] > 0);
    const { bytes: most, where, step, advice } = this.shown;
    this.peakText.textContent = `peak ${bytes(most)} in step ${step}, after ${where}`;
    this.peakText.title = this.peakText.textContent;
    const keys = this.kinds.map((kind) => swatch(this.head.kinds[kind], "", `var(--m${kind})`));
    const notes = [...advice, ...this.head.notes];
    replace(this.legend, keys, h("details", null, h("summary", null, advice.length ? "What would lower the peak" : "What is counted"), h("ul.popup", null, notes.map((note) => h("li", null, note)))));
    this.surface.draw();
  }

  private bytesOf(at: number, kind: number): number {
    return this.column("kinds")[at * this.head.kinds.length + kind];
  }

  private total(at: number): number {
    let sum = 0;
    for (const kind of this.kinds) sum += this.bytesOf(at, kind);
    return sum;
  }

  /** The time in sight: the range chosen in the timeline, or all. */
  private get span(): [from: number, to: number] {
    const time = this.column("time");
    const [first, last] = [time[this.first], max(time[this.end - 1], time[this.first] + 1)];
    const { chosen } = this.range;
    return chosen && chosen.to > first && chosen.from < last ? [chosen.from, chosen.to] : [first, last];
  }

  private x(t: number): number {
    const [from, to] = this.span;
    return LEFT + ((t - from) / (to - from)) * (this.surface.width - LEFT - RIGHT);
  }

  private y(size: number): number {
    return this.surface.height - BOTTOM - (size / this.shown.bytes) * (this.surface.height - TOP - BOTTOM);
  }

  protected override paint(pen: Pen): void {
    this.axes(pen);
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, 0, this.surface.width - LEFT - RIGHT, this.surface.height);
    pen.clip();
    this.steps(pen);
    this.areas(pen);
    this.peak(pen);
    this.marks(pen);
    pen.restore();
  }

  private axes(pen: Pen): void {
    const { surface } = this;
    pen.font = "10px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const most = this.shown.bytes;
    // Marks at whole numbers of the unit that suits the peak.
    const unit = 1024 ** Math.floor(Math.log2(max(most, 1)) / 10);
    const step = roundStep(max(most / unit / max(2, (surface.height - TOP - BOTTOM) / 34), 1e-3)) * unit;
    for (let size = 0; size <= most; size += step) {
      const y = this.y(size);
      pen.fillStyle = surface.colour("line");
      pen.fillRect(LEFT, y, surface.width - LEFT - RIGHT, 1);
      pen.fillStyle = surface.colour("dim");
      pen.textAlign = "right";
      pen.fillText(size ? bytes(size) : "0", LEFT - 6, y);
    }
    pen.textAlign = "left";
    const [from, to] = this.span;
    const apart = roundStep((to - from) / max(1, (surface.width - LEFT - RIGHT) / 90));
    for (let n = ceil(from / apart); n * apart < to; n++) {
      const x = this.x(n * apart);
      pen.fillStyle = surface.colour("line");
      pen.fillRect(x, surface.height - BOTTOM, 1, 4);
      pen.fillStyle = surface.colour("dim");
      if (x < surface.width - 40) pen.fillText(moment(n * apart, apart, to), x + 3, surface.height - BOTTOM / 2 + 1);
    }
  }

  /** Where steps begin, along the top. */
  private steps(pen: Pen): void {
    const { surface } = this;
    const [step, time] = [this.column("step"), this.column("time")];
    let drawn = 0;
    let line = -9;
    for (let at = this.first; at < this.end; at++) {
      if (at > this.first && step[at] === step[at - 1]) continue;
      const x = this.x(time[at]);
      if (x - line < 4) continue;
      line = x;
      pen.fillStyle = surface.colour("line");
      pen.fillRect(x, TOP - 6, 1, surface.height - TOP - BOTTOM + 6);
      pen.fillStyle = surface.colour("dim");
      const text = `step ${step[at]}`;
      const wide = pen.measureText(text).width;
      if (x > drawn && x < surface.width - wide) {
        pen.fillText(text, x + 3, TOP / 2);
        drawn = x + wide + 10;
      }
    }
  }

  private areas(pen: Pen): void {
    const { surface } = this;
    const time = this.column("time");
    const n = this.end - this.first;
    const below = new Float64Array(n);
    const xs = new Float64Array(n + 1);
    for (let i = 0; i < n; i++) xs[i] = this.x(time[this.first + i]);
    xs[n] = surface.width - RIGHT;
    for (const kind of this.kinds) {
      pen.beginPath();
      for (let i = 0; i < n; i++) {
        const y = this.y(below[i] + this.bytesOf(this.first + i, kind));
        if (i === 0) pen.moveTo(xs[0], y);
        pen.lineTo(xs[i], y);
        pen.lineTo(xs[i + 1], y);
      }
      for (let i = n - 1; i >= 0; i--) {
        const y = this.y(below[i]);
        pen.lineTo(xs[i + 1], y);
        pen.lineTo(xs[i], y);
        below[i] += this.bytesOf(this.first + i, kind);
      }
      pen.fillStyle = surface.colour(`m${kind}`);
      pen.fill();
    }
    pen.beginPath();
    for (let i = 0; i < n; i++) {
      const y = this.y(below[i]);
      if (i === 0) pen.moveTo(xs[0], y);
      pen.lineTo(xs[i], y);
      pen.lineTo(xs[i + 1], y);
    }
    pen.strokeStyle = surface.colour("text");
    pen.lineWidth = 1;
    pen.stroke();
  }

  private get peakAt(): number {
    let best = this.first;
    for (let at = this.first; at < this.end; at++) if (this.total(at) > this.total(best)) best = at;
    return best;
  }

  private peak(pen: Pen): void {
    const { surface } = this;
    const x = this.x(this.column("time")[this.peakAt]);
    const y = this.y(this.shown.bytes);
    pen.fillStyle = surface.colour("bad");
    pen.beginPath();
    pen.moveTo(x, y);
    pen.lineTo(x - 5, y - 8);
    pen.lineTo(x + 5, y - 8);
    pen.fill();
    pen.font = "600 10.5px system-ui, sans-serif";
    const text = `peak ${bytes(this.shown.bytes)}`;
    const wide = pen.measureText(text).width;
    const left = x + wide + 12 > surface.width ? x - wide - 9 : x + 8;
    // Behind it may be names of steps.
    pen.fillStyle = surface.colour("bg");
    pen.fillRect(left - 2, y - 14, wide + 4, 13);
    pen.fillStyle = surface.colour("bad");
    pen.fillText(text, left, y - 7);
  }

  private marks(pen: Pen): void {
    const { surface } = this;
    const { row, trace } = this.view;
    const line = (x: number, colour: string) => {
      pen.fillStyle = surface.colour(colour);
      pen.fillRect(x - 0.5, TOP - 4, 1.5, surface.height - TOP - BOTTOM + 4);
    };
    if (row >= 0 && trace.rank[row] === this.shown.rank) {
      const x = this.x(trace.start[row]);
      if (x >= LEFT && x <= surface.width) line(x, "accent");
    }
    if (this.cursor >= 0) line(this.x(this.column("time")[this.cursor]), "text");
  }

  private near(x: number): number {
    const time = this.column("time");
    const [from, to] = this.span;
    const t = from + (max(0, x - LEFT) / (this.surface.width - LEFT - RIGHT)) * (to - from);
    const moments = time.subarray(this.first, this.end);
    return max(this.first, min(this.end - 1, this.first + lowerBound(moments, t + 1e-6) - 1));
  }

  private clock(t: number): string {
    const [from, to] = this.span;
    return moment(t, (to - from) / 1000, to);
  }

  /** The moment, its bytes by kind, and the largest that are alive. */
  private figures(at: number): (string | HTMLElement)[] {
    const { head } = this;
    const list = this.kinds.map((kind) => [this.bytesOf(at, kind), head.kinds[kind]] as const).filter(([size]) => size > 0).reverse();
    const rows = [];
    for (let i = 0; i < head.largest; i++) {
      const storage = this.column("largest")[at * head.largest + i] - 1;
      if (storage < 0) break;
      const of = (name: string) => this.column(`storage_${name}`)[storage];
      rows.push(h("tr", null, h("td", null, bytes(of("bytes"))), h("td", null, head.texts[of("text")]), h("td.shape", null, head.looks[of("look")]), h("td.dim", null, head.kinds[this.column("largest_kind")[at * head.largest + i]])));
    }
    const event = this.column("event")[at] - 1;
    const after = event >= 0 ? `, after ${this.view.trace.label(event)}` : "";
    return [
      h("div", null, h("b", null, bytes(this.total(at))), ` at ${this.clock(this.column("time")[at])}, step ${this.column("step")[at]}${after}`),
      h("div.dim", null, list.map(([size, kind]) => `${kind} ${bytes(size)}`).join(" · ")),
      h("table", null, rows),
    ];
  }

  private point(at: number, x: number, y: number): void {
    this.cursor = at;
    this.tell(x, y, this.figures(at));
    this.surface.draw();
  }

  private go(at: number): void {
    const event = this.column("event")[at];
    if (event) this.view.choose(event - 1, "memory");
  }

  private goToPeak(): void {
    if (this.shown.row >= 0) this.view.choose(this.shown.row, "memory");
  }

  private listen(): void {
    const { canvas } = this.surface;
    on(canvas, "pointermove", (event) => {
      const [x, y] = this.surface.at(event);
      this.point(this.near(x), x, y);
    });
    on(canvas, "pointerleave", () => {
      this.cursor = -1;
      this.surface.draw();
    });
    on(canvas, "click", (event) => {
      const [x, y] = this.surface.at(event);
      const peak = this.x(this.column("time")[this.peakAt]);
      if (abs(x - peak) < 8 && y < TOP + 8) this.goToPeak();
      else this.go(this.near(x));
    });
    on(canvas, "keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -1e9, End: 1e9 }[event.key];
      if (by) {
        const at = max(this.first, min(this.end - 1, (this.cursor < 0 ? this.first - 1 : this.cursor) + by));
        this.point(at, this.x(this.column("time")[at]), round(this.surface.height / 3));
      } else if (event.key === "Enter" && this.cursor >= 0) this.go(this.cursor);
      else if (event.key === "p") this.goToPeak();
      else return;
      stop(event);
    });
  }
}

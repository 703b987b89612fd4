// The run on a time axis: calls above the ops they ran, a band per rank and thread.

import { button, h, on, perFrame, stop } from "./dom.ts";
import { count, family, hue, time } from "./format.ts";
import { abs, ceil, floor, max, min, round } from "./maths.ts";
import type { View } from "./state.ts";
import { lowerBound } from "./trace.ts";

const LANE = 15;
const AXIS = 18;

interface Lane {
  rows: Int32Array;
  top: number;
}

export class Timeline {
  readonly element: HTMLElement;
  private readonly canvas = h("canvas", { tabindex: 0, id: "timeline", role: "img", label: "Timeline: arrows move, + and - zoom" });
  private readonly holder = h("div.holder", null);
  private readonly hint = h("span.dim.clip", null);
  private lanes: Lane[] = [];
  private bands: { top: number; text: string }[] = [];
  private from = 0;
  private to = 1;
  private first = 0;
  private last = 1;
  private height = 0;
  private colours: Record<string, string> = {};
  private readonly draw: () => void;
  private drag: { x: number; from: number; to: number; moved: boolean } | null = null;

  constructor(private readonly view: View) {
    this.holder.append(this.canvas);
    this.element = h("section.pane.timeline", { label: "Timeline" },
      h("header.bar", null, h("h2", null, "Time"), this.hint, h("span.grow", null),
        button("◎", "Zoom to the selection (z)", () => this.toSelection()), button("⤢", "Show all", () => this.show(this.first, this.last))),
      this.holder);
    this.draw = perFrame(() => this.paint());
    this.arrange();
    new ResizeObserver(() => this.draw()).observe(this.holder);
    this.listen();
    view.onSelect((from) => {
      if (from !== "timeline") this.reveal();
      this.draw();
    });
  }

  /** Colours have changed. */
  recolour(): void {
    this.colours = {};
    this.draw();
  }

  private arrange(): void {
    const { trace } = this.view;
    const depth = new Uint16Array(trace.rows);
    const bands = new Map<number, number[][]>();
    let first = Infinity;
    let last = -Infinity;
    for (let row = 0; row < trace.rows; row++) {
      const above = trace.parent(row);
      // Another thread's ops do not lie under the call they belong to.
      depth[row] = above >= 0 && trace.threadId(above) === trace.threadId(row) ? depth[above] + 1 : 0;
      if (!(trace.duration[row] >= 0) && !trace.isModule(row)) continue;
      const key = trace.rank[row] * 4096 + trace.threadId(row);
      let band = bands.get(key);
      if (!band) bands.set(key, (band = []));
      (band[depth[row]] ??= []).push(row);
      first = min(first, trace.start[row]);
      last = max(last, this.end(row));
    }
    this.first = first;
    this.last = max(last, first + 1);
    let top = AXIS;
    for (const [key, lanes] of [...bands].sort((a, b) => a[0] - b[0])) {
      const sample = lanes.find(Boolean)![0];
      const names = [trace.ranks.length > 1 && `rank ${floor(key / 4096)}`, trace.head.threads.length > 1 && trace.thread(sample)];
      this.bands.push({ top, text: names.filter(Boolean).join(", ") });
      if (bands.size > 1) top += 12;
      for (const rows of lanes) {
        if (rows) this.lanes.push({ rows: Int32Array.from(rows).sort((a, b) => trace.start[a] - trace.start[b]), top });
        top += LANE;
      }
      top += 6;
    }
    this.height = top;
    this.from = this.first;
    this.to = this.last;
    this.hint.textContent = `${time(this.last - this.first)}, ${count(trace.rows, "event")}`;
  }

  private end(row: number): number {
    const { trace } = this.view;
    const spent = trace.duration[row];
    return trace.start[row] + (spent >= 0 ? spent : 0);
  }

  private show(from: number, to: number): void {
    const least = max((this.last - this.first) * 1e-6, 200);
    if (to - from < least) {
      const middle = (from + to) / 2;
      from = middle - least / 2;
      to = middle + least / 2;
    }
    const span = min(to - from, this.last - this.first);
    this.from = max(this.first, min(from, this.last - span));
    this.to = this.from + span;
    this.draw();
  }

  private toSelection(): void {
    const { selected, outline, trace } = this.view;
    if (selected < 0) return;
    let from = Infinity;
    let to = -Infinity;
    const rows = outline.isGroup(selected) ? outline.group(selected).rows : [selected];
    for (let i = 0; i < rows.length; i++) {
      from = min(from, trace.start[rows[i]]);
      to = max(to, this.end(rows[i]));
    }
    const margin = max(100, (to - from) * 0.1);
    this.show(from - margin, to + margin);
  }

  private reveal(): void {
    const row = this.view.row;
    if (row < 0) return;
    const start = this.view.trace.start[row];
    if (start >= this.from && this.end(row) <= this.to) return;
    const span = max(this.to - this.from, (this.end(row) - start) * 1.4);
    this.show(start - span * 0.2, start + span * 0.8);
  }

  private colour(name: string): string {
    let found = this.colours[name];
    if (!found) {
      // Only a colour in use tells which of the two, light or dark, it is.
      this.hint.style.color = `var(--${name})`;
      found = this.colours[name] = getComputedStyle(this.hint).color;
      this.hint.style.color = "";
    }
    return found;
  }

  private paint(): void {
    const { trace } = this.view;
    const width = this.holder.clientWidth;
    const height = max(this.height, this.holder.clientHeight);
    const ratio = devicePixelRatio || 1;
    if (!width) return;
    if (this.canvas.width !== round(width * ratio) || this.canvas.height !== round(height * ratio)) {
      this.canvas.width = round(width * ratio);
      this.canvas.height = round(height * ratio);
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
    }
    const pen = this.canvas.getContext("2d")!;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    const scale = width / (this.to - this.from);
    this.axis(pen, width, height, scale);
    pen.font = "10.5px system-ui, sans-serif";
    pen.textBaseline = "middle";
    for (const { rows, top } of this.lanes) this.lane(pen, rows, top, scale, width);
    pen.fillStyle = this.colour("dim");
    for (const { top, text } of this.bands) if (text) pen.fillText(text, 4, top + 5);
    this.outlineSelected(pen, scale, trace);
  }

  private lane(pen: CanvasRenderingContext2D, rows: Int32Array, top: number, scale: number, width: number): void {
    const { trace } = this.view;
    let drawn = -1;
    let look = "";
    for (let at = this.firstIn(rows); at < rows.length; at++) {
      const row = rows[at];
      const x = (trace.start[row] - this.from) * scale;
      if (x > width) break;
      const spent = trace.duration[row];
      const open = !(spent >= 0);
      const wide = open ? width - x : spent * scale;
      if (x + wide < 0) continue;
      const left = max(x, -2);
      const right = min(x + max(wide, 0.7), width + 2);
      if (right - drawn < 0.5) continue;
      const name = trace.failed(row) ? "bad" : trace.isModule(row) ? `h${hue(trace.eventName(row))}` : trace.isOp(row) ? family(trace.eventName(row)) : "other";
      if (name !== look) pen.fillStyle = this.colour((look = name));
      pen.fillRect(left, top, max(right - left - (right - left > 3 ? 1 : 0), 0.7), LANE - 2);
      drawn = right;
      if (right - left > 26) {
        pen.fillStyle = this.colour("on-bar");
        const text = trace.label(row);
        const room = floor((right - left - 6) / 5.6);
        pen.fillText(text.length > room ? text.slice(0, max(0, room - 1)) + "…" : text, max(left, 0) + 3, top + LANE / 2 - 0.5);
        look = "";
      }
    }
  }

  /** The first row of a lane that may reach into sight. */
  private firstIn(rows: Int32Array): number {
    const { start } = this.view.trace;
    return max(0, lowerBound(rows, this.from, (row) => start[row]) - 1);
  }

  private axis(pen: CanvasRenderingContext2D, width: number, height: number, scale: number): void {
    const rough = 90 / scale;
    const power = 10 ** floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((m) => m * power >= rough)!;
    pen.font = "10px system-ui, sans-serif";
    pen.textBaseline = "alphabetic";
    for (let t = ceil(this.from / step) * step; t < this.to; t += step) {
      const x = (t - this.from) * scale;
      pen.fillStyle = this.colour("line");
      pen.fillRect(x, 0, 1, height);
      pen.fillStyle = this.colour("dim");
      if (x < width - 40) pen.fillText(t === 0 ? "0" : time(abs(t)), x + 3, 11);
    }
  }

  private outlineSelected(pen: CanvasRenderingContext2D, scale: number, trace: View["trace"]): void {
    const { selected, outline } = this.view;
    if (selected < 0) return;
    const rows = outline.isGroup(selected) ? outline.group(selected).rows : [selected];
    const first = rows[0];
    const last = rows[rows.length - 1];
    const x = (trace.start[first] - this.from) * scale;
    const end = (this.end(last) - this.from) * scale;
    const lane = this.lanes.find((one) => contains(one.rows, first, trace));
    const top = lane ? lane.top : AXIS;
    pen.strokeStyle = this.colour("accent");
    pen.lineWidth = 2;
    pen.strokeRect(x - 1, top - 1.5, max(end - x + 1, 3), LANE + 0.5);
    pen.fillStyle = this.colour("accent");
    pen.beginPath();
    const middle = (x + max(end, x)) / 2;
    pen.moveTo(middle - 4, AXIS - 5);
    pen.lineTo(middle + 4, AXIS - 5);
    pen.lineTo(middle, AXIS);
    pen.fill();
  }

  private hit(event: MouseEvent): number {
    const { trace } = this.view;
    const box = this.canvas.getBoundingClientRect();
    const y = event.clientY - box.top;
    const scale = box.width / (this.to - this.from);
    const x = event.clientX - box.left;
    const lane = this.lanes.find((one) => y >= one.top && y < one.top + LANE);
    if (!lane) return -1;
    let found = -1;
    let nearest = 3;
    for (let at = this.firstIn(lane.rows); at < lane.rows.length; at++) {
      const row = lane.rows[at];
      const left = (trace.start[row] - this.from) * scale;
      if (left > x + 3) break;
      const spent = trace.duration[row];
      const right = spent >= 0 ? left + spent * scale : Infinity;
      const away = x < left ? left - x : x > right ? x - right : 0;
      if (away < nearest || (away === 0 && nearest === 0)) {
        nearest = away;
        found = row;
      }
    }
    return found;
  }

  private listen(): void {
    const { trace } = this.view;
    on(this.canvas, "wheel", (event) => {
      if (event.shiftKey || abs(event.deltaX) > abs(event.deltaY)) {
        event.preventDefault();
        const move = ((event.deltaX || event.deltaY) / this.canvas.clientWidth) * (this.to - this.from);
        return this.show(this.from + move, this.to + move);
      }
      event.preventDefault();
      const box = this.canvas.getBoundingClientRect();
      this.zoomAt((event.clientX - box.left) / box.width, Math.exp(event.deltaY / 300));
    }, { passive: false });
    on(this.canvas, "pointerdown", (event) => {
      this.drag = { x: event.clientX, from: this.from, to: this.to, moved: false };
      this.canvas.setPointerCapture(event.pointerId);
    });
    on(this.canvas, "pointermove", (event) => {
      if (this.drag) {
        const moved = event.clientX - this.drag.x;
        if (abs(moved) > 3) this.drag.moved = true;
        const shift = (moved / this.canvas.clientWidth) * (this.drag.to - this.drag.from);
        if (this.drag.moved) this.show(this.drag.from - shift, this.drag.to - shift);
        return;
      }
      const row = this.hit(event);
      this.canvas.title = row < 0 ? "" : `${trace.label(row)} ${trace.isModule(row) ? trace.eventName(row) : ""} · ${time(trace.duration[row])}\n${trace.output(row)}`;
    });
    on(this.canvas, "pointerup", (event) => {
      const clicked = this.drag && !this.drag.moved;
      this.drag = null;
      if (!clicked) return;
      const row = this.hit(event);
      if (row >= 0) this.view.choose(row, "timeline");
    });
    on(this.canvas, "keydown", (event) => {
      const span = this.to - this.from;
      if (event.key === "ArrowLeft") this.show(this.from - span / 8, this.to - span / 8);
      else if (event.key === "ArrowRight") this.show(this.from + span / 8, this.to + span / 8);
      else if (event.key === "+" || event.key === "=") this.zoomAt(0.5, 0.7);
      else if (event.key === "-") this.zoomAt(0.5, 1.4);
      else if (event.key === "z") this.toSelection();
      else return;
      stop(event);
    });
  }

  private zoomAt(share: number, factor: number): void {
    const at = this.from + share * (this.to - this.from);
    this.show(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }
}

function contains(rows: Int32Array, row: number, trace: View["trace"]): boolean {
  // Rows of a lane are in the order in which they began, which is that of their numbers.
  const at = lowerBound(rows, row);
  return rows[at] === row || (trace.ranks.length > 1 && rows.includes(row));
}

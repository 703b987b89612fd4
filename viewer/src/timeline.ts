// The run on a time axis: a track per rank, calls above the ops they ran, the backward pass under its
// modules, and above all a strip of the whole run. Dragging chooses a range.

import { button, h, on, replace, stop } from "./dom.ts";
import { count, time } from "./format.ts";
import { abs, max, min } from "./maths.ts";
import type { TimeRange } from "./range.ts";
import type { View } from "./state.ts";
import { type Pen, Surface } from "./surface.ts";
import { BAND, classOf, FIXED, HEADER, LANE, type Placed, placeTracks, STRIP, TimelinePen } from "./timeline_paint.ts";
import { arrange, type Band, firstAfter, type Track, type Tracks } from "./timeline_tracks.ts";

type Drag = { what: "range" | "pan" | "strip" | "left" | "right"; x: number; from: number; to: number; at: number; moved: boolean };

const MOST_CHIPS = 16;

export class Timeline {
  readonly element: HTMLElement;
  readonly tools = h("span.tools", null);
  private readonly surface: Surface;
  private readonly hint = h("span.dim.clip", null);
  private readonly chosen = h("span.chosen", { hidden: true });
  private readonly ranks = h("span.ranks", null);
  private tracks: Tracks | null = null;
  private pen: TimelinePen | null = null;
  private placed: Placed[] = [];
  private drag: Drag | null = null;
  private pointer = 0.5;

  constructor(private readonly view: View, private readonly range: TimeRange) {
    this.surface = new Surface("timeline", "Timeline: left and right move, + and - zoom, z zooms to the selection, r takes what is in sight as the range", (pen) => this.paint(pen));
    this.element = this.surface.element;
    replace(this.tools, this.ranks, this.chosen, this.hint,
      button("◎", "Zoom to the selection (z)", () => this.toSelection()), button("⤢", "Show all (0)", () => this.showAll()));
    this.listen();
    this.listenToKeys();
    view.onSelect((from) => {
      if (from !== "timeline") this.reveal();
      this.surface.draw();
    });
    range.onChange(() => {
      this.tellRange();
      this.surface.draw();
    });
  }

  recolour(): void {
    this.surface.recolour();
  }

  /** Draw again, as the pane has come into sight. */
  wake(): void {
    this.surface.draw();
  }

  /** What lies where is found out when it is first drawn. */
  private ready(): { tracks: Tracks; pen: TimelinePen } {
    if (!this.tracks || !this.pen) {
      const { trace } = this.view;
      this.tracks = arrange(trace);
      this.pen = new TimelinePen(trace, this.surface, this.tracks);
      this.pen.from = this.tracks.first;
      this.pen.to = this.tracks.last;
      this.hint.textContent = `${time(this.tracks.last - this.tracks.first)}, ${count(trace.rows, "event")}; drag a range for its totals`;
      this.place();
      this.reveal();
    }
    return { tracks: this.tracks, pen: this.pen };
  }

  private place(): void {
    const { tracks } = this;
    if (!tracks) return;
    this.placed = placeTracks(tracks);
    this.surface.extent(0, this.placed[this.placed.length - 1]?.bottom ?? 0);
    const all = tracks.tracks;
    const chip = (name: string, open: boolean, ranks: number[]) => h("button.chip", {
      "aria-expanded": String(open), title: `${open ? "Close" : "Open"} the track of ${name}`,
      onclick: () => this.toggle(ranks, !open),
    }, `${open ? "▾" : "▸"} ${name}`);
    const chips = all.length > 1 ? all.slice(0, MOST_CHIPS).map(({ rank, open }) => chip(`rank ${rank}`, open, [rank])) : [];
    if (all.length > 2) chips.unshift(chip("all ranks", all.every(({ open }) => open), all.map(({ rank }) => rank)));
    replace(this.ranks, chips);
    this.surface.draw();
  }

  private toggle(ranks: number[], open: boolean): void {
    for (const track of this.tracks?.tracks ?? []) if (ranks.includes(track.rank)) track.open = open;
    const focused = [...this.ranks.children].indexOf(document.activeElement as Element);
    this.place();
    (this.ranks.children[focused] as HTMLElement | undefined)?.focus();
  }

  private tellRange(): void {
    const { chosen } = this.range;
    this.chosen.hidden = !chosen;
    this.hint.hidden = !!chosen;
    if (!chosen) return;
    replace(this.chosen, `${time(chosen.to - chosen.from)} chosen`, button("⊕", "Zoom to the range", () => this.show(chosen.from, chosen.to)), button("✕", "Choose no range (Esc)", () => this.range.clear()));
  }

  private end(row: number): number {
    const { trace } = this.view;
    const took = trace.duration[row];
    return trace.start[row] + (took >= 0 ? took : 0);
  }

  private showAll(): void {
    const { tracks } = this.ready();
    this.show(tracks.first, tracks.last);
  }

  private show(from: number, to: number): void {
    const { tracks, pen } = this.ready();
    const whole = tracks.last - tracks.first;
    const least = max(whole * 1e-7, 200);
    if (to - from < least) {
      const middle = (from + to) / 2;
      from = middle - least / 2;
      to = middle + least / 2;
    }
    const span = min(to - from, whole);
    pen.from = max(tracks.first, min(from, tracks.last - span));
    pen.to = pen.from + span;
    this.surface.hideTip();
    this.surface.draw();
  }

  /** The rows of what is selected, an event or a group. */
  private selectedRows(): ArrayLike<number> {
    const { selected, outline } = this.view;
    if (selected < 0) return [];
    return outline.isGroup(selected) ? outline.group(selected).rows : [selected];
  }

  private toSelection(): void {
    const { trace } = this.view;
    const rows = this.selectedRows();
    let from = Infinity;
    let to = -Infinity;
    for (let i = 0; i < rows.length; i++) {
      from = min(from, trace.start[rows[i]]);
      to = max(to, this.end(rows[i]));
    }
    if (!rows.length) return;
    const margin = max(100, (to - from) * 0.1);
    this.show(from - margin, to + margin);
  }

  private reveal(): void {
    const { row, trace } = this.view;
    if (row < 0 || !this.tracks || !this.pen) return;
    const { pen } = this;
    const start = trace.start[row];
    if (start < pen.from || this.end(row) > pen.to) {
      const span = max(pen.to - pen.from, (this.end(row) - start) * 1.4);
      this.show(start - span * 0.2, start + span * 0.8);
    }
    const top = this.topOf(row);
    if (top >= 0) this.surface.reveal(this.surface.left, top, 1, LANE, 0, FIXED + 4);
  }

  /** Where the bar of a row is in the content, -1 where its track is closed. */
  private topOf(row: number): number {
    const { tracks } = this.ready();
    const thread = tracks.threadOf(row);
    const lane = thread?.lanes[tracks.depth[row]];
    for (const { lanes } of this.placed) for (const one of lanes) if (one.lane === lane) return one.top;
    return -1;
  }

  private paint(pen: Pen): void {
    const ready = this.ready();
    ready.pen.grid(pen);
    for (const placed of this.placed) ready.pen.track(pen, placed);
    this.outlineSelected(pen);
    this.shade(pen);
    ready.pen.axis(pen);
    this.pointAt(pen);
  }

  private outlineSelected(pen: Pen): void {
    const rows = this.selectedRows();
    if (!rows.length || !this.pen) return;
    const x = this.pen.x(this.view.trace.start[rows[0]]);
    const end = this.pen.x(this.end(rows[rows.length - 1]));
    const top = this.topOf(rows[0]);
    if (top < 0) return;
    pen.strokeStyle = this.surface.colour("accent");
    pen.lineWidth = 2;
    pen.strokeRect(x - 1, top - 1.5 - this.surface.top, max(end - x + 1, 3), LANE + 0.5);
  }

  /** A mark on the axis above what is selected. */
  private pointAt(pen: Pen): void {
    const rows = this.selectedRows();
    if (!rows.length || !this.pen) return;
    const x = this.pen.x(this.view.trace.start[rows[0]]);
    const middle = (x + max(x, this.pen.x(this.end(rows[rows.length - 1])))) / 2;
    pen.fillStyle = this.surface.colour("accent");
    pen.beginPath();
    pen.moveTo(middle - 4, FIXED - 6);
    pen.lineTo(middle + 4, FIXED - 6);
    pen.lineTo(middle, FIXED - 1);
    pen.fill();
  }

  private shade(pen: Pen): void {
    const { chosen } = this.range;
    if (!chosen || !this.pen) return;
    const left = this.pen.x(chosen.from);
    const right = this.pen.x(chosen.to);
    pen.fillStyle = this.surface.colour("accent");
    pen.globalAlpha = 0.14;
    pen.fillRect(left, FIXED, right - left, this.surface.height);
    pen.globalAlpha = 1;
    for (const x of [left, right]) pen.fillRect(x - 0.5, FIXED, 1.5, this.surface.height);
  }

  /** What is drawn at a point: the row of an event, or -1 - n for a span; null for nothing. */
  private hit(x: number, y: number): number | null {
    if (y < FIXED || !this.pen) return null;
    const at = y + this.surface.top;
    for (const { lanes } of this.placed) {
      for (const { lane, top } of lanes) {
        if (at < top || at >= top + LANE) continue;
        const t = this.pen.from + x / this.pen.scale;
        const reach = 3 / this.pen.scale;
        let best: number | null = null;
        let nearest = reach;
        for (let i = firstAfter(lane, t - reach); i < lane.id.length && lane.start[i] <= t + reach; i++) {
          const away = t < lane.start[i] ? lane.start[i] - t : t > lane.end[i] ? t - lane.end[i] : 0;
          if (away < nearest || best === null) [best, nearest] = [lane.id[i], away];
          if (!away) break;
        }
        return best;
      }
    }
    return null;
  }

  /** The step or pass at a point, and what it is called. */
  private bandAt(x: number, y: number): { band: Band; text: string } | null {
    if (y < FIXED || !this.pen) return null;
    const at = y + this.surface.top;
    const t = this.pen.from + x / this.pen.scale;
    for (const { track, steps, phases } of this.placed) {
      const inSteps = at >= steps && at < steps + BAND;
      if (!inSteps && !(at >= phases && at < phases + BAND)) continue;
      const band = (inSteps ? track.steps : track.phases).find(({ from, to }) => t >= from && t <= to);
      if (!band) return null;
      const text = inSteps ? `step ${band.what}` : this.view.trace.head.phases[band.what];
      return { band, text: `${text} · ${time(band.to - band.from)}` };
    }
    return null;
  }

  private headerAt(y: number): Track | undefined {
    const at = y + this.surface.top;
    return y < FIXED ? undefined : this.placed.find(({ header }) => header >= 0 && at >= header && at < header + HEADER)?.track;
  }

  private describe(id: number): string[] {
    const { trace } = this.view;
    if (id < 0) {
      const { path, from, to, row } = this.ready().tracks.spans[-1 - id];
      return [`${path || classOf(trace, "")} ${path ? classOf(trace, path) : ""}`.trim(), `backward of step ${trace.step[row]} · ${time(to - from)}`];
    }
    const where = trace.module(id);
    const facts = [time(trace.duration[id]), trace.phase(id), trace.steps.length > 1 && `step ${trace.step[id]}`, trace.siteText(id)];
    return [`${trace.label(id)}${trace.isModule(id) ? ` ${trace.eventName(id)}` : where ? ` in ${where}` : ""}`, facts.filter(Boolean).join(" · "), trace.output(id)].filter(Boolean);
  }

  private listen(): void {
    const { canvas } = this.surface;
    on(canvas, "wheel", (event) => {
      const { pen } = this.ready();
      const along = event.shiftKey || abs(event.deltaX) > abs(event.deltaY);
      // As in other timelines: the wheel scrolls where there is more to see, and zooms with Ctrl.
      if (!along && !event.ctrlKey && !event.metaKey && this.surface.scrolls) return;
      event.preventDefault();
      if (along) {
        const move = ((event.deltaX || event.deltaY) / this.surface.width) * (pen.to - pen.from);
        return this.show(pen.from + move, pen.to + move);
      }
      this.zoomAt(this.surface.at(event)[0] / this.surface.width, Math.exp(event.deltaY / (event.ctrlKey ? 120 : 300)));
    }, { passive: false });
    on(canvas, "pointerdown", (event) => {
      if (event.button > 1) return;
      this.surface.hideTip();
      this.drag = this.begun(event);
      canvas.setPointerCapture(event.pointerId);
    });
    on(canvas, "pointermove", (event) => (this.drag ? this.dragged(event) : this.hover(event)));
    on(canvas, "pointerup", (event) => {
      const { drag } = this;
      this.drag = null;
      const { chosen } = this.range;
      if (drag && !drag.moved) this.clicked(event);
      else if (drag?.what === "range" && chosen) this.range.choose(chosen.from, chosen.to);
    });
    on(canvas, "dblclick", (event) => {
      if (this.hit(...this.surface.at(event)) !== null) this.toSelection();
    });
  }

  private begun(event: PointerEvent): Drag {
    const { tracks, pen } = this.ready();
    const [x, y] = this.surface.at(event);
    const drag: Drag = { what: "range", x, from: pen.from, to: pen.to, at: pen.from + x / pen.scale, moved: false };
    if (y < STRIP) {
      const scale = this.surface.width / (tracks.last - tracks.first);
      const [left, right] = [(pen.from - tracks.first) * scale, (pen.to - tracks.first) * scale];
      drag.at = tracks.first + x / scale;
      const whole = pen.from <= tracks.first && pen.to >= tracks.last;
      drag.what = abs(x - left) < 5 && !whole ? "left" : abs(x - right) < 5 && !whole ? "right" : x > left && x < right && !whole ? "pan" : "strip";
    } else if (event.shiftKey || event.button === 1) {
      drag.what = "pan";
    }
    return drag;
  }

  private dragged(event: PointerEvent): void {
    const { tracks, pen } = this.ready();
    const drag = this.drag!;
    const [x] = this.surface.at(event);
    if (abs(x - drag.x) > 3) drag.moved = true;
    if (!drag.moved) return;
    const strip = this.surface.width / (tracks.last - tracks.first);
    const onStrip = tracks.first + x / strip;
    if (drag.what === "range") this.range.choose(drag.at, drag.from + x / pen.scale, true);
    else if (drag.what === "strip") this.show(min(drag.at, onStrip), max(drag.at, onStrip));
    else if (drag.what === "left") this.show(min(onStrip, drag.to), drag.to);
    else if (drag.what === "right") this.show(drag.from, max(onStrip, drag.from));
    else {
      const inStrip = this.surface.at(event)[1] < STRIP;
      const by = inStrip ? (x - drag.x) / strip : -(x - drag.x) / pen.scale;
      this.show(drag.from + by, drag.to + by);
    }
  }

  private clicked(event: PointerEvent): void {
    const [x, y] = this.surface.at(event);
    const { tracks, pen } = this.ready();
    if (y < STRIP) {
      const at = tracks.first + (x / this.surface.width) * (tracks.last - tracks.first);
      const half = (pen.to - pen.from) / 2;
      return this.show(at - half, at + half);
    }
    const track = this.headerAt(y);
    if (track) return this.toggle([track.rank], !track.open);
    const found = this.bandAt(x, y);
    if (found) return this.range.choose(found.band.from, found.band.to);
    const id = this.hit(x, y);
    if (id === null) return this.range.clear();
    this.view.choose(id >= 0 ? id : tracks.spans[-1 - id].row, "timeline");
  }

  private hover(event: PointerEvent): void {
    const [x, y] = this.surface.at(event);
    this.pointer = x / max(1, this.surface.width);
    const id = this.hit(x, y);
    const band = id === null ? this.bandAt(x, y) : null;
    this.surface.canvas.style.cursor = y < STRIP ? "grab" : id !== null || band || this.headerAt(y) ? "pointer" : "crosshair";
    if (band) this.surface.showTip(x, y, [band.text, "click for its totals"]);
    else if (id === null) this.surface.hideTip();
    else this.surface.showTip(x, y, this.describe(id));
  }

  private listenToKeys(): void {
    on(this.surface.canvas, "keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const { pen } = this.ready();
      const span = pen.to - pen.from;
      const move = (by: number) => this.show(pen.from + by * span, pen.to + by * span);
      const acts: Record<string, () => void> = {
        ArrowLeft: () => move(-1 / 8), a: () => move(-1 / 8),
        ArrowRight: () => move(1 / 8), d: () => move(1 / 8),
        "+": () => this.zoomAt(0.5, 0.7), "=": () => this.zoomAt(0.5, 0.7), w: () => this.zoomAt(this.pointer, 0.7),
        "-": () => this.zoomAt(0.5, 1.4), s: () => this.zoomAt(this.pointer, 1.4),
        z: () => this.toSelection(), 0: () => this.showAll(),
        r: () => this.range.choose(pen.from, pen.to),
        Escape: () => this.range.clear(),
      };
      const act = acts[event.key];
      if (!act) return;
      act();
      stop(event);
    });
  }

  private zoomAt(share: number, factor: number): void {
    const { pen } = this.ready();
    const at = pen.from + share * (pen.to - pen.from);
    this.show(at - (at - pen.from) * factor, at + (pen.to - at) * factor);
  }
}

// Draws the timeline: bars of lanes, bands of steps and passes, the axis, the strip above it all.

import { moment } from "./chart_text.ts";
import { family, hue } from "./format.ts";
import { ceil, max, min } from "./maths.ts";
import { fitted, type Pen, roundStep, type Surface } from "./surface.ts";
import { type Band, firstAfter, type Lane, type Span, type Track, type Tracks } from "./timeline_tracks.ts";
import type { Trace } from "./trace.ts";

export const STRIP = 22;
export const AXIS = 18;
/** What does not scroll. */
export const FIXED = STRIP + AXIS;
export const LANE = 16;
export const HEADER = 18;
export const BAND = 14;

/** Where the parts of a track are, from the top of the content. */
export interface Placed {
  track: Track;
  top: number;
  header: number;
  steps: number;
  phases: number;
  lanes: { lane: Lane; top: number }[];
  threads: { name: string; top: number }[];
  bottom: number;
}

/** Put tracks below one another; a closed one has only its bands. */
export function placeTracks({ tracks }: Tracks): Placed[] {
  let top = FIXED + 2;
  return tracks.map((track) => {
    const placed: Placed = { track, top, header: -1, steps: -1, phases: -1, lanes: [], threads: [], bottom: 0 };
    if (tracks.length > 1) {
      placed.header = top;
      top += HEADER;
    }
    if (track.steps.length > 1) {
      placed.steps = top;
      top += BAND;
    }
    placed.phases = top;
    top += BAND + 2;
    if (track.open) {
      for (const { name, lanes } of track.threads) {
        if (track.threads.length > 1) {
          placed.threads.push({ name, top });
          top += 13;
        }
        for (const lane of lanes) {
          placed.lanes.push({ lane, top });
          top += LANE;
        }
        top += 3;
      }
    }
    top += 5;
    placed.bottom = top;
    return placed;
  });
}

export class TimelinePen {
  from = 0;
  to = 1;

  constructor(
    private readonly trace: Trace,
    private readonly surface: Surface,
    private readonly tracks: Tracks,
  ) {}

  get scale(): number {
    return this.surface.width / (this.to - this.from);
  }

  x(t: number): number {
    return (t - this.from) * this.scale;
  }

  track(pen: Pen, placed: Placed): void {
    const { surface } = this;
    const shift = -surface.top;
    if (placed.bottom + shift < FIXED || placed.top + shift > surface.height) return;
    pen.textBaseline = "middle";
    if (placed.header >= 0) {
      pen.fillStyle = surface.colour("panel");
      pen.fillRect(0, placed.header + shift, surface.width, HEADER - 2);
      pen.font = "600 11px system-ui, sans-serif";
      pen.fillStyle = surface.colour("text");
      pen.fillText(`${placed.track.open ? "▾" : "▸"} rank ${placed.track.rank}`, 6, placed.header + HEADER / 2 - 1 + shift);
    }
    pen.font = "10.5px system-ui, sans-serif";
    if (placed.steps >= 0) this.bands(pen, placed.track.steps, placed.steps + shift, (band) => `step ${band.what}`, (band) => (band.what % 2 ? "line" : "hover"));
    const { phases } = this.trace.head;
    this.bands(pen, placed.track.phases, placed.phases + shift, (band) => phases[band.what] ?? "", (band) => phases[band.what]);
    for (const { lane, top } of placed.lanes) if (top + shift > FIXED - LANE && top + shift < surface.height) this.lane(pen, lane, top + shift);
    pen.fillStyle = surface.colour("dim");
    for (const { name, top } of placed.threads) pen.fillText(name, 4, top + 6 + shift);
  }

  private bands(pen: Pen, bands: Band[], top: number, text: (band: Band) => string, colour: (band: Band) => string): void {
    const { width } = this.surface;
    let drawn = -1;
    for (const band of bands) {
      const left = max(0, this.x(band.from));
      const right = min(width, max(this.x(band.to), this.x(band.from) + 0.7));
      if (right < 0 || left > width || right - drawn < 0.5) continue;
      const fill = this.surface.colour(colour(band));
      pen.fillStyle = fill;
      pen.fillRect(left, top, max(right - left - (right - left > 3 ? 1 : 0), 0.7), BAND - 2);
      drawn = right;
      if (right - left < 22) continue;
      pen.fillStyle = this.surface.ink(fill);
      pen.fillText(fitted(pen, text(band), right - left - 6), left + 3, top + BAND / 2 - 0.5);
    }
  }

  private lane(pen: Pen, lane: Lane, top: number): void {
    const { trace, surface } = this;
    const { width } = surface;
    let look = "";
    for (let at = firstAfter(lane, this.from); at < lane.id.length; at++) {
      const left = max(this.x(lane.start[at]), -2);
      if (left > width) break;
      const right = min(max(this.x(lane.end[at]), left + 0.7), width + 2);
      const id = lane.id[at];
      const fill = surface.colour(this.look(id));
      if (fill !== look) pen.fillStyle = look = fill;
      pen.globalAlpha = id < 0 ? 0.75 : 1;
      pen.fillRect(left, top, max(right - left - (right - left > 3 ? 1 : 0), 0.7), LANE - 2);
      pen.globalAlpha = 1;
      if (right - left > 26) {
        const name = id < 0 ? spanName(this.tracks.spans[-1 - id], trace) : trace.label(id);
        pen.fillStyle = surface.ink(fill);
        pen.fillText(fitted(pen, name, right - left - 6), max(left, 0) + 3, top + LANE / 2 - 0.5);
        look = "";
      } else if (right - left < 1) {
        // Of bars narrower than a pixel, one for each pixel.
        const next = firstAfter(lane, this.from + (right + 0.3) / this.scale);
        if (next > at + 1) at = next - 1;
      }
    }
  }

  private look(id: number): string {
    const { trace } = this;
    if (id < 0) return `h${hue(classOf(trace, this.tracks.spans[-1 - id].path))}`;
    if (trace.failed(id)) return "bad";
    if (trace.isModule(id)) return `h${hue(trace.eventName(id))}`;
    return trace.isOp(id) ? family(trace.eventName(id)) : "other";
  }

  /** Lines from the axis down, under everything else. */
  grid(pen: Pen): void {
    pen.fillStyle = this.surface.colour("line");
    for (const t of this.ticks()) pen.fillRect(this.x(t), FIXED, 1, this.surface.height);
  }

  private ticks(): number[] {
    const step = roundStep(90 / this.scale);
    const found = [];
    for (let n = ceil(this.from / step); n * step < this.to; n++) found.push(n * step);
    return found;
  }

  axis(pen: Pen): void {
    const { surface } = this;
    pen.fillStyle = surface.colour("bg");
    pen.fillRect(0, 0, surface.width, FIXED);
    pen.font = "10px system-ui, sans-serif";
    pen.textBaseline = "alphabetic";
    const step = roundStep(90 / this.scale);
    for (const t of this.ticks()) {
      const x = this.x(t);
      pen.fillStyle = surface.colour("line");
      pen.fillRect(x, STRIP, 1, AXIS);
      pen.fillStyle = surface.colour("dim");
      if (x < surface.width - 40) pen.fillText(moment(t, step, this.to), x + 3, STRIP + 12);
    }
    pen.fillStyle = surface.colour("line");
    pen.fillRect(0, FIXED - 1, surface.width, 1);
    this.strip(pen);
  }

  /** The whole run in one strip, a line per rank, with what is in sight. */
  private strip(pen: Pen): void {
    const { surface, tracks } = this;
    const scale = surface.width / (tracks.last - tracks.first);
    pen.fillStyle = surface.colour("panel");
    pen.fillRect(0, 0, surface.width, STRIP - 3);
    const { phases } = this.trace.head;
    const shown = tracks.tracks.slice(0, 8);
    const tall = (STRIP - 5) / shown.length;
    shown.forEach((track, i) => {
      let drawn = -1;
      for (const band of track.phases) {
        const left = (band.from - tracks.first) * scale;
        const right = max(left + 0.5, (band.to - tracks.first) * scale);
        if (right - drawn < 0.4) continue;
        pen.fillStyle = surface.colour(phases[band.what]);
        pen.fillRect(left, 1 + i * tall, right - left, max(1, tall - (shown.length > 1 ? 1 : 0)));
        drawn = right;
      }
      pen.fillStyle = surface.colour("text");
      if (track.steps.length * 6 < surface.width) for (const band of track.steps) pen.fillRect((band.from - tracks.first) * scale, 1 + i * tall, 1, tall);
    });
    const left = (this.from - tracks.first) * scale;
    const right = (this.to - tracks.first) * scale;
    pen.fillStyle = surface.colour("bg");
    pen.globalAlpha = 0.7;
    pen.fillRect(0, 0, left, STRIP - 3);
    pen.fillRect(right, 0, surface.width - right, STRIP - 3);
    pen.globalAlpha = 1;
    pen.strokeStyle = surface.colour("accent");
    pen.lineWidth = 1.5;
    pen.strokeRect(max(left, 0.8), 0.8, max(min(right, surface.width - 0.8) - max(left, 0.8), 2), STRIP - 4);
    pen.fillStyle = surface.colour("accent");
    for (const x of [left, right]) pen.fillRect(min(max(x - 2, 0), surface.width - 4), 5, 4, STRIP - 13);
  }
}

/** A module of the backward pass, by its name in the module around it. */
export function spanName(span: Span, trace: Trace): string {
  return span.path === "" ? classOf(trace, "") || "model" : span.path.split(".").slice(-1 - Number(/\.\d+$/.test(span.path))).join(".");
}

const classes = new WeakMap<Trace, Map<string, string>>();

export function classOf(trace: Trace, path: string): string {
  let found = classes.get(trace);
  if (!found) classes.set(trace, (found = new Map(trace.head.modules.map(([name, cls]) => [name, cls]))));
  return found.get(path) ?? "";
}

// What lies where in the timeline: a track per rank with its steps and passes, in it lanes per thread.
// Ops of the backward pass have no calls around them: they get bars of the modules they belong to.

import { floor, max } from "./maths.ts";
import { lowerBound, type Trace } from "./trace.ts";

/** Bars beside one another, in the order in which they begin. */
export interface Lane {
  start: Float64Array;
  end: Float64Array;
  /** The row of an event, or -1 - n for the n-th span of the backward pass. */
  id: Int32Array;
}

/** A module in the backward pass: from the first to the last of neighbouring ops that belong to it. */
export interface Span {
  path: string;
  from: number;
  to: number;
  /** The first op in it. */
  row: number;
}

export interface Band {
  from: number;
  to: number;
  /** The step, or the number of the phase. */
  what: number;
}

export interface Thread {
  name: string;
  lanes: Lane[];
}

export interface Track {
  rank: number;
  open: boolean;
  steps: Band[];
  phases: Band[];
  threads: Thread[];
}

export interface Tracks {
  tracks: Track[];
  spans: Span[];
  first: number;
  last: number;
  /** How deep each row lies in its thread. */
  depth: Uint16Array;
  threadOf: (row: number) => Thread | undefined;
}

/** Tracks of more ranks are closed at first. */
const OPEN_AT_FIRST = 2;
const THREADS = 4096;

class GrowingLane {
  start: number[] = [];
  end: number[] = [];
  id: number[] = [];

  add(start: number, end: number, id: number): number {
    this.start.push(start);
    this.end.push(end);
    return this.id.push(id) - 1;
  }

  done(): Lane {
    const order = this.start.some((at, i) => i > 0 && at < this.start[i - 1])
      ? this.start.map((_, i) => i).sort((a, b) => this.start[a] - this.start[b] || a - b)
      : null;
    const of = (numbers: number[]) => (order ? order.map((i) => numbers[i]) : numbers);
    return { start: Float64Array.from(of(this.start)), end: Float64Array.from(of(this.end)), id: Int32Array.from(of(this.id)) };
  }
}

/** Lanes of one thread while they grow, and the spans of the backward pass that are open. */
class GrowingThread {
  readonly lanes: GrowingLane[] = [];
  private open: { path: string; lane: GrowingLane; at: number; span: Span }[] = [];

  constructor(readonly name: string, private readonly spans: Span[]) {}

  lane(depth: number): GrowingLane {
    while (this.lanes.length <= depth) this.lanes.push(new GrowingLane());
    return this.lanes[depth];
  }

  /** Put an op under bars of the modules it belongs to, which go on from op to op. */
  under(chain: string[], row: number, from: number, to: number): void {
    let shared = 0;
    while (shared < this.open.length && this.open[shared].path === chain[shared]) shared++;
    this.open.length = shared;
    for (const one of this.open) one.lane.end[one.at] = one.span.to = max(one.span.to, to);
    for (let level = shared; level < chain.length; level++) {
      const span = { path: chain[level], from, to, row };
      const lane = this.lane(level);
      this.open.push({ path: chain[level], lane, at: lane.add(from, to, -this.spans.push(span)), span });
    }
  }

  close(): void {
    this.open.length = 0;
  }
}

/** The modules that were called and that a path lies in, outermost first, itself the last. */
function chains(trace: Trace): (row: number) => string[] {
  const called = new Set<string>();
  const seen = new Set<number>();
  for (let row = 0; row < trace.rows; row++) {
    if (!trace.isModule(row) || seen.has(trace.moduleId(row))) continue;
    seen.add(trace.moduleId(row));
    called.add(trace.module(row) ?? "");
  }
  const made = new Map<number, string[]>();
  return (row) => {
    const id = trace.moduleId(row);
    let chain = made.get(id);
    if (!chain) {
      const path = trace.module(row);
      const names = path ? path.split(".") : [];
      const prefixes = ["", ...names.map((_, i) => names.slice(0, i + 1).join("."))];
      chain = path === null ? [] : prefixes.filter((prefix) => called.has(prefix) || prefix === path);
      made.set(id, chain);
    }
    return chain;
  };
}

function extend(bands: Band[], what: number, from: number, to: number): void {
  const last = bands[bands.length - 1];
  if (last && last.what === what) last.to = max(last.to, to);
  else bands.push({ from, to, what });
}

export function arrange(trace: Trace): Tracks {
  const { rows, start, duration } = trace;
  const depth = new Uint16Array(rows);
  const spans: Span[] = [];
  const threads = new Map<number, GrowingThread>();
  const bands = new Map<number, { steps: Band[]; phases: Band[] }>();
  const chain = chains(trace);
  const backward = trace.head.phases.indexOf("backward");
  let first = Infinity;
  let last = -Infinity;
  for (let row = 0; row < rows; row++) {
    const open = !(duration[row] >= 0);
    const above = trace.parent(row);
    // Another thread's ops do not lie under the call they belong to.
    const inside = above >= 0 && trace.threadId(above) === trace.threadId(row);
    depth[row] = inside ? depth[above] + 1 : 0;
    if (open && !trace.isModule(row)) continue;
    const from = start[row];
    const to = open ? from : from + duration[row];
    first = Math.min(first, from);
    last = max(last, to);
    const rank = trace.rank[row];
    const key = rank * THREADS + trace.threadId(row);
    let thread = threads.get(key);
    if (!thread) threads.set(key, (thread = new GrowingThread(trace.thread(row), spans)));
    if (!inside) {
      if (trace.isOp(row) && trace.phaseOf[row] === backward) {
        const modules = chain(row);
        depth[row] = modules.length;
        thread.under(modules, row, from, to);
      } else {
        thread.close();
      }
      let mine = bands.get(rank);
      if (!mine) bands.set(rank, (mine = { steps: [], phases: [] }));
      const newStep = mine.steps[mine.steps.length - 1]?.what !== trace.step[row];
      extend(mine.steps, trace.step[row], from, to);
      if (newStep) mine.phases.push({ from, to, what: trace.phaseOf[row] });
      else extend(mine.phases, trace.phaseOf[row], from, to);
    }
    thread.lane(depth[row]).add(from, open ? Infinity : to, row);
  }
  if (!(last > first)) {
    first = Number.isFinite(first) ? first : 0;
    last = first + 1;
  }
  const found = new Map<number, Thread>();
  const tracks: Track[] = [];
  for (const key of [...threads.keys()].sort((a, b) => a - b)) {
    const rank = floor(key / THREADS);
    let track = tracks.find((one) => one.rank === rank);
    if (!track) {
      const { steps, phases } = bands.get(rank) ?? { steps: [], phases: [] };
      tracks.push((track = { rank, open: tracks.length < OPEN_AT_FIRST, steps, phases, threads: [] }));
    }
    const growing = threads.get(key)!;
    const thread = { name: growing.name, lanes: growing.lanes.map((lane) => lane.done()) };
    found.set(key, thread);
    track.threads.push(thread);
  }
  return { tracks, spans, first, last, depth, threadOf: (row) => found.get(trace.rank[row] * THREADS + trace.threadId(row)) };
}

/** The first bar of a lane that ends after a moment. */
export function firstAfter(lane: Lane, moment: number): number {
  return lowerBound(lane.end, moment);
}

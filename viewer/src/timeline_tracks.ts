// What lies where in the timeline: a track per rank with its steps and passes, in it lanes per thread.
// Ops of the backward pass have no calls around them: they get bars of the modules they belong to.

import { floor, max, min } from "./maths.ts";
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

  /** Put an op under bars of the modules it belongs to, which go on from op to op; with none, end all bars. */
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

/** Steps and passes of one rank while they grow. */
class GrowingBands {
  readonly steps: Band[] = [];
  readonly phases: Band[] = [];

  /** Go on with an event that lies in no other. */
  add(step: number, phase: number, from: number, to: number): void {
    // A pass ends with its step.
    if (extend(this.steps, step, from, to)) this.phases.push({ from, to, what: phase });
    else extend(this.phases, phase, from, to);
  }
}

/** Make the last band longer, or begin one if it is of something else; whether one has begun. */
function extend(bands: Band[], what: number, from: number, to: number): boolean {
  const last = bands[bands.length - 1];
  const begins = last?.what !== what;
  if (begins) bands.push({ from, to, what });
  else last.to = max(last.to, to);
  return begins;
}

function got<T>(map: Map<number, T>, key: number, make: () => T): T {
  let found = map.get(key);
  if (found === undefined) map.set(key, (found = make()));
  return found;
}

export function arrange(trace: Trace): Tracks {
  const { rows, start, duration } = trace;
  const depth = new Uint16Array(rows);
  const spans: Span[] = [];
  const threads = new Map<number, GrowingThread>();
  const bands = new Map<number, GrowingBands>();
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
    first = min(first, from);
    last = max(last, to);
    const thread = got(threads, threadKey(trace, row), () => new GrowingThread(trace.thread(row), spans));
    if (!inside) {
      const modules = trace.isOp(row) && trace.phaseOf[row] === backward ? chain(row) : [];
      depth[row] = modules.length;
      thread.under(modules, row, from, to);
      got(bands, trace.rank[row], () => new GrowingBands()).add(trace.step[row], trace.phaseOf[row], from, to);
    }
    thread.lane(depth[row]).add(from, open ? Infinity : to, row);
  }
  if (!(last > first)) [first, last] = Number.isFinite(first) ? [first, first + 1] : [0, 1];
  return { ...finished(trace, threads, bands), spans, first, last, depth };
}

function threadKey(trace: Trace, row: number): number {
  return trace.rank[row] * THREADS + trace.threadId(row);
}

/** The tracks of all ranks, from what has grown. */
function finished(trace: Trace, threads: Map<number, GrowingThread>, bands: Map<number, GrowingBands>): Pick<Tracks, "tracks" | "threadOf"> {
  const found = new Map<number, Thread>();
  const tracks = new Map<number, Track>();
  for (const key of [...threads.keys()].sort((a, b) => a - b)) {
    const rank = floor(key / THREADS);
    const { steps, phases } = bands.get(rank) ?? new GrowingBands();
    const track = got(tracks, rank, () => ({ rank, open: tracks.size < OPEN_AT_FIRST, steps, phases, threads: [] }));
    const { name, lanes } = threads.get(key)!;
    const thread = { name, lanes: lanes.map((lane) => lane.done()) };
    found.set(key, thread);
    track.threads.push(thread);
  }
  return { tracks: [...tracks.values()], threadOf: (row) => found.get(threadKey(trace, row)) };
}

/** The first bar of a lane that ends after a moment. */
export function firstAfter(lane: Lane, moment: number): number {
  return lowerBound(lane.end, moment);
}

// The events as people think of them: ranks, steps, passes, modules, ops. Numbers below `rows` are
// events; above are groups of neighbouring siblings, made when they are first looked into.

import { count } from "./format.ts";
import { max } from "./maths.ts";
import { lowerBound, type Trace } from "./trace.ts";

export interface Group {
  /** The node this group lies in, -1 at the top. */
  parent: number;
  label: string;
  /** `rank`, `step`, `pass` or `part`. */
  kind: string;
  phase: string;
  rows: ArrayLike<number>;
  /** How far its siblings have been told apart already. */
  level: number;
  /** Segments of the module path that its siblings share. */
  depth: number;
  kids: number[] | null;
}

const RANK = 0;
const STEP = 1;
const PASS = 2;
const PART = 3;
const FEWEST = 4;

export class Outline {
  private groups: Group[] = [];
  private top: number[] | null = null;
  private inside = new Map<number, ArrayLike<number>>();

  constructor(readonly trace: Trace) {}

  isGroup(node: number): boolean {
    return node >= this.trace.rows;
  }

  group(node: number): Group {
    return this.groups[node - this.trace.rows];
  }

  roots(): number[] {
    this.top ??= this.split(-1, this.trace.kids(-1), RANK, 0);
    return this.top;
  }

  kids(node: number): ArrayLike<number> {
    if (node < 0) return this.roots();
    if (this.isGroup(node)) {
      const group = this.group(node);
      group.kids ??= this.split(node, group.rows, group.level, group.depth);
      return group.kids;
    }
    let kids = this.inside.get(node);
    if (!kids) {
      const rows = this.trace.kids(node);
      const plain = rows.length < FEWEST || !this.hasOtherPhase(node, rows);
      kids = plain ? rows : this.split(node, rows, PASS, 0);
      this.inside.set(node, kids);
    }
    return kids;
  }

  hasKids(node: number): boolean {
    return node < 0 || this.isGroup(node) || this.trace.hasKids(node);
  }

  /** The nodes from the top down to a node, the node itself last. */
  path(node: number): number[] {
    if (node < 0) return [];
    if (this.isGroup(node)) return [...this.path(this.group(node).parent), node];
    const above = this.trace.parent(node);
    const path = above < 0 ? [] : this.path(above);
    // Groups hold neighbouring siblings in order, so the last that begins before has it.
    let at = above;
    for (;;) {
      const kids = this.kids(at);
      const found = kids[lowerBound(kids, node + 1, (kid) => this.firstRow(kid)) - 1];
      path.push(found);
      if (found === node || !this.isGroup(found)) return path;
      at = found;
    }
  }

  parent(node: number): number {
    if (this.isGroup(node)) return this.group(node).parent;
    const path = this.path(node);
    return path.length > 1 ? path[path.length - 2] : -1;
  }

  firstRow(node: number): number {
    return this.isGroup(node) ? this.group(node).rows[0] : node;
  }

  label(node: number): string {
    return this.isGroup(node) ? this.group(node).label : this.trace.label(node);
  }

  /** How long a node took; of a group, the sum of what is in it. */
  duration(node: number): number {
    if (!this.isGroup(node)) return this.trace.duration[node];
    const { rows } = this.group(node);
    let sum = 0;
    for (let i = 0; i < rows.length; i++) sum += this.trace.duration[rows[i]] || 0;
    return sum;
  }

  private hasOtherPhase(node: number, rows: ArrayLike<number>): boolean {
    const phase = this.trace.phaseOf[node];
    for (let i = 0; i < rows.length; i++) if (this.trace.phaseOf[rows[i]] !== phase) return true;
    return false;
  }

  /** Siblings told apart, by rank first, then step, pass and module. */
  private split(parent: number, rows: ArrayLike<number>, level: number, depth: number): number[] {
    const t = this.trace;
    if (level === RANK) {
      if (t.ranks.length > 1) {
        return this.runs(rows, (r) => t.rank[r]).map((run) =>
          this.add(parent, `rank ${t.rank[run[0]]}`, "rank", run, STEP, 0));
      }
      level = STEP;
    }
    if (level === STEP) {
      if (t.steps.length > 1) {
        return this.runs(rows, (r) => t.step[r]).filter((run) => run.some((r) => t.isOp(r) || t.isModule(r))).map((run) =>
          this.add(parent, `step ${t.step[run[0]]}`, "step", run, PASS, 0));
      }
      level = PASS;
    }
    if (level === PASS) return this.passes(parent, rows);
    return this.parts(parent, rows, depth);
  }

  /** Stretches of the backward pass and the optimizer become groups, the forward pass stays. */
  private passes(parent: number, rows: ArrayLike<number>): number[] {
    const t = this.trace;
    const own = parent >= 0 && !this.isGroup(parent) ? t.phase(parent) : "forward";
    // What is recomputed in the backward pass belongs to it.
    const phase = (r: number) => (t.phase(r) === "recompute" && own !== "recompute" ? "backward" : t.phase(r));
    // Where a step begins and a prefix ends, nothing happens.
    const bare = (r: number) => t.kind(r) === "step" || !t.label(r);
    const found: number[] = [];
    for (const run of this.runs(rows, (r) => bare(r) || phase(r))) {
      const name = phase(run[0]);
      if (bare(run[0])) continue;
      if (name === own || name === "forward" || run.length < FEWEST) found.push(...run);
      else found.push(this.add(parent, name, "pass", run, PART, 0));
    }
    return found;
  }

  /** Neighbours of one module, by the segments of its path. */
  private parts(parent: number, rows: ArrayLike<number>, depth: number): number[] {
    const t = this.trace;
    const cache = new Map<number, string[]>();
    const segments = (r: number) => {
      const id = t.moduleId(r);
      let found = cache.get(id);
      if (!found) cache.set(id, (found = id ? (t.module(r) ?? "").split(".").filter(Boolean) : []));
      return found;
    };
    const shared = commonDepth(rows, segments, depth);
    // A number alone says little: `h.11` is one name.
    const width = (r: number) => (/^\d+$/.test(segments(r)[shared + 1] ?? "") ? 2 : 1);
    const key = (r: number) => (t.moduleId(r) ? segments(r).slice(shared, shared + width(r)).join(".") : "");
    const runs = this.runs(rows, key);
    if (runs.length < 2) return Array.from(rows);
    const found: number[] = [];
    for (const run of runs) {
      const name = key(run[0]);
      if (!name || run.length < FEWEST) found.push(...run);
      else found.push(this.add(parent, name, "part", run, PART, shared + width(run[0])));
    }
    return found;
  }

  private runs(rows: ArrayLike<number>, key: (row: number) => unknown): number[][] {
    const found: number[][] = [];
    let last: unknown;
    for (let i = 0; i < rows.length; i++) {
      const mine = key(rows[i]);
      if (!found.length || mine !== last) found.push([]);
      found[found.length - 1].push(rows[i]);
      last = mine;
    }
    return found;
  }

  private add(parent: number, label: string, kind: string, rows: number[], level: number, depth: number): number {
    const phase = this.trace.phase(rows[0]);
    this.groups.push({ parent, label, kind, phase, rows, level, depth, kids: null });
    return this.trace.rows + this.groups.length - 1;
  }

  /** In words what a group holds. */
  summary(node: number): string {
    const { rows } = this.group(node);
    let ops = 0;
    let calls = 0;
    for (let i = 0; i < rows.length; i++) {
      if (this.trace.isOp(rows[i])) ops++;
      else if (this.trace.isModule(rows[i])) calls++;
    }
    return [calls ? count(calls, "call") : "", ops ? count(ops, "op") : ""].filter(Boolean).join(", ");
  }
}

function commonDepth(rows: ArrayLike<number>, segments: (row: number) => string[], depth: number): number {
  let first: string[] | null = null;
  let shared = Infinity;
  for (let i = 0; i < rows.length; i++) {
    const mine = segments(rows[i]);
    if (!mine.length) continue;
    if (!first) {
      first = mine;
      shared = mine.length;
    }
    let at = 0;
    while (at < shared && mine[at] === first[at]) at++;
    shared = at;
  }
  return max(depth, shared === Infinity ? depth : shared);
}

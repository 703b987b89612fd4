// The events as the printed tree has them: ranks, steps, passes, repeats, modules, ops. Numbers below
// `rows` are events; above are groups, which `clew/views/html/page_outline.py` made.

import { count } from "./format.ts";
import type { Trace } from "./trace.ts";

export interface Group {
  /** The node this group lies in, -1 at the top. */
  parent: number;
  label: string;
  /** `rank`, `step`, `thread`, `pass`, `part`, `line`, `repeat` or `run`. */
  kind: string;
  phase: string;
  /** How often what it shows ran: 32 for a stack of 32 layers. */
  count: number;
  rows: number[];
}

export class Outline {
  /** Of each group the events directly in it and the groups in it. */
  private members: number[][];
  private firsts: Int32Array;
  private inside = new Map<number, number[]>();
  private made = new Map<number, Group>();
  private sums = new Map<number, number>();
  private marks = new Map<number, string>();

  constructor(readonly trace: Trace) {
    const groupOf = trace.groups();
    const parents = trace.groups("parent");
    this.members = Array.from(parents, () => []);
    this.firsts = new Int32Array(parents.length).fill(-1);
    for (let row = 0; row < trace.rows; row++) {
      if (!groupOf[row] || !trace.label(row)) continue;
      this.members[groupOf[row] - 1].push(row);
      for (let group = groupOf[row]; group && this.firsts[group - 1] < 0; group = parents[group - 1]) this.firsts[group - 1] = row;
    }
    for (let group = 0; group < parents.length; group++) {
      if (parents[group] && this.firsts[group] >= 0) this.members[parents[group] - 1].push(trace.rows + group);
    }
    for (const nodes of this.members) nodes.sort((a, b) => this.firstRow(a) - this.firstRow(b));
  }

  isGroup(node: number): boolean {
    return node >= this.trace.rows;
  }

  group(node: number): Group {
    let group = this.made.get(node);
    if (!group) this.made.set(node, (group = this.makeGroup(node - this.trace.rows)));
    return group;
  }

  private makeGroup(at: number): Group {
    const { trace } = this;
    const of = (fact: string) => trace.groups(fact)[at];
    const above = of("parent");
    return {
      parent: above ? trace.rows + above - 1 : trace.parent(this.firsts[at]),
      label: trace.text(of("label")), kind: trace.text(of("kind")), phase: trace.head.phases[of("phase")] ?? "", count: of("count"),
      rows: this.rowsIn(at),
    };
  }

  private rowsIn(at: number): number[] {
    return this.members[at].flatMap((node) => (this.isGroup(node) ? this.rowsIn(node - this.trace.rows) : [node]));
  }

  roots(): number[] {
    return this.kids(-1);
  }

  kids(node: number): number[] {
    if (this.isGroup(node)) return this.members[node - this.trace.rows];
    let kids = this.inside.get(node);
    if (!kids) this.inside.set(node, (kids = this.kidsOf(node)));
    return kids;
  }

  private kidsOf(row: number): number[] {
    const groupOf = this.trace.groups();
    const found = new Set<number>();
    for (const kid of this.trace.kids(row)) {
      if (!this.trace.label(kid)) continue;
      found.add(groupOf[kid] ? this.trace.rows + this.outermost(groupOf[kid]) - 1 : kid);
    }
    return [...found];
  }

  private outermost(group: number): number {
    const parents = this.trace.groups("parent");
    while (parents[group - 1]) group = parents[group - 1];
    return group;
  }

  hasKids(node: number): boolean {
    return node < 0 || this.isGroup(node) || this.trace.hasKids(node);
  }

  /** The nodes from the top down to a node, the node itself last. */
  path(node: number): number[] {
    const found: number[] = [];
    for (; node >= 0; node = this.parent(node)) found.push(node);
    return found.reverse();
  }

  parent(node: number): number {
    if (this.isGroup(node)) return this.group(node).parent;
    const group = this.trace.groups()[node];
    return group ? this.trace.rows + group - 1 : this.trace.parent(node);
  }

  firstRow(node: number): number {
    return this.isGroup(node) ? this.firsts[node - this.trace.rows] : node;
  }

  label(node: number): string {
    return this.isGroup(node) ? this.group(node).label : this.trace.label(node);
  }

  /** How often what a node shows ran. */
  times(node: number): number {
    return this.isGroup(node) ? this.group(node).count : 1;
  }

  /** How long a node took; of a group, the sum of what is in it. */
  duration(node: number): number {
    if (!this.isGroup(node)) return this.trace.duration[node];
    let sum = this.sums.get(node);
    if (sum === undefined) {
      sum = 0;
      for (const row of this.group(node).rows) sum += this.trace.duration[row] || 0;
      this.sums.set(node, sum);
    }
    return sum;
  }

  /** `NaN` or `Inf` where a result of a node, or of something in a group, holds one that a finding warns of. */
  nonfinite(node: number): string {
    if (!this.isGroup(node)) return this.trace.nonfinite(node);
    let bad = this.marks.get(node);
    if (bad === undefined) {
      const row = this.group(node).rows.find((row) => this.trace.nonfinite(row));
      this.marks.set(node, (bad = row === undefined ? "" : this.trace.nonfinite(row)));
    }
    return bad;
  }

  /** In words what a group holds. */
  summary(node: number): string {
    const { trace } = this;
    const { rows, kind, count: times } = this.group(node);
    // Calls that repeat are of one class.
    if (kind === "repeat" && rows.length === times && trace.isModule(rows[0])) return trace.eventName(rows[0]);
    let ops = 0;
    let calls = 0;
    for (const row of rows) {
      if (trace.isOp(row)) ops++;
      else if (trace.isModule(row)) calls++;
    }
    return [calls ? count(calls, "call") : "", ops ? count(ops, "op") : ""].filter(Boolean).join(", ");
  }
}

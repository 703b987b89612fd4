// Two runs side by side: rows with an event of one run or of both, and what the panes ask of them.

import { search } from "./address.ts";
import { measured } from "./format.ts";
import type { DiffHead } from "./head.ts";
import { log10, max, min } from "./maths.ts";
import type { Column, Payload } from "./payload.ts";
import type { Searched } from "./searchbox.ts";
import { type Leaf, Trace } from "./trace.ts";

export type Side = 0 | 1;
export const SIDES: Side[] = [0, 1];

/** The smallest error that bars tell from none, as a power of ten. */
const LEAST = -8;

export class Comparison implements Searched {
  readonly head: DiffHead;
  readonly sides: [Trace, Trace];
  readonly rows: number;
  readonly error: Column;
  readonly harm: Column;
  readonly beyond: Column;
  readonly count: Column;
  readonly more: Column;
  selected = -1;
  private readonly events: [Column, Column];
  private readonly parents: Column;
  private readonly states: Column;
  private readonly kidFirst: Int32Array;
  private readonly kidList: Int32Array;
  private readonly rowsOf: [Int32Array, Int32Array];
  private partnersOfA: Map<number, number> | null = null;
  private readonly listeners: ((from: string) => void)[] = [];

  constructor(private readonly payload: Payload) {
    const { diff, traces } = payload.head;
    if (!diff || traces.length !== 2) throw new Error("the page has no comparison in it");
    this.head = diff;
    this.sides = [new Trace(traces[0], payload, "0."), new Trace(traces[1], payload, "1.")];
    const of = (name: string) => payload.column(`row.${name}`);
    this.events = [of("a"), of("b")];
    this.rows = this.events[0].length;
    this.parents = of("parent");
    this.states = of("state");
    this.error = of("error");
    this.harm = of("harm");
    this.beyond = of("beyond");
    this.count = of("count");
    this.more = of("more");
    [this.kidFirst, this.kidList] = this.children();
    this.rowsOf = [this.index(0), this.index(1)];
  }

  private children(): [Int32Array, Int32Array] {
    const first = new Int32Array(this.rows + 2);
    for (let row = 0; row < this.rows; row++) first[this.parents[row] + 1]++;
    for (let i = 1; i < first.length; i++) first[i] += first[i - 1];
    const list = new Int32Array(this.rows);
    const at = first.slice();
    for (let row = 0; row < this.rows; row++) list[at[this.parents[row]]++] = row;
    return [first, list];
  }

  private index(side: Side): Int32Array {
    const found = new Int32Array(this.sides[side].rows).fill(-1);
    for (let row = 0; row < this.rows; row++) if (this.events[side][row]) found[this.events[side][row] - 1] = row;
    return found;
  }

  /** The event of one run in a row, -1 for none. */
  event(row: number, side: Side): number {
    return this.events[side][row] - 1;
  }

  /** The event to show for one run: that of the row, or, where the runs part, its counterpart. */
  shownEvent(row: number, side: Side): number {
    const own = this.event(row, side);
    if (own >= 0 || row !== this.head.first.row) return own;
    return side ? this.head.first.b : this.head.first.a;
  }

  /** The event whose values are shown: none where one run has no such op and just goes on. */
  comparedEvent(row: number, side: Side): number {
    const { kind } = this.head.first;
    return kind === "missing" || kind === "extra" ? this.event(row, side) : this.shownEvent(row, side);
  }

  rowOf(side: Side, event: number): number {
    return event < 0 ? -1 : this.rowsOf[side][event];
  }

  parent(row: number): number {
    return this.parents[row] - 1;
  }

  kids(row: number): Int32Array {
    return this.kidList.subarray(this.kidFirst[row + 1], this.kidFirst[row + 2]);
  }

  hasKids(row: number): boolean {
    return this.kidFirst[row + 2] > this.kidFirst[row + 1];
  }

  state(row: number): string {
    return this.head.states[this.states[row]];
  }

  isCall(row: number): boolean {
    return SIDES.some((side) => this.event(row, side) >= 0 && this.sides[side].isModule(this.event(row, side)));
  }

  /** What one run has in a row: its name, and its class or how often it repeats. */
  label(row: number, side: Side): { name: string; note: string; shape: string } {
    const event = this.event(row, side);
    const trace = this.sides[side];
    if (event < 0) {
      const name = this.head.texts[row]?.[side] ?? "";
      return { name, note: name && this.count[row] ? `×${this.count[row]}` : "", shape: "" };
    }
    const name = trace.label(event);
    const cls = trace.isModule(event) ? trace.eventName(event) : "";
    return { name, note: cls === name ? "" : cls, shape: trace.output(event) };
  }

  /** A row in one phrase: the name in both runs where they differ. */
  title(row: number): string {
    const [a, b] = SIDES.map((side) => this.fullName(row, side));
    return !a ? b : !b || a === b ? a : `${a} ↔ ${b}`;
  }

  fullName(row: number, side: Side): string {
    const event = this.event(row, side);
    if (event < 0) return this.label(row, side).name;
    const trace = this.sides[side];
    return trace.isModule(event) ? trace.module(event) || trace.eventName(event) : trace.label(event);
  }

  /** How the link of a row names it, empty for rows without an event. */
  address(row: number): string {
    for (const side of [1, 0] as Side[]) {
      const event = this.event(row, side);
      if (event >= 0) return `${"ab"[side]}:${this.sides[side].address(event)}`;
    }
    return "";
  }

  /** The row that a link names, -1 if there is none. */
  linked(address: string): number {
    const side: Side = address.startsWith("a:") ? 0 : 1;
    const trace = this.sides[side];
    const wanted = address.slice(2);
    for (let event = 0; event < trace.rows; event++) {
      if (trace.address(event) === wanted) return this.rowOf(side, event);
    }
    return -1;
  }

  /** How far a value of `b` is from one of `a`, or from another that it equals; else NaN. */
  far(valueA: number, valueB: number): number {
    const partner = this.payload.column("value.partner")[valueB] - 1;
    return partner === valueA || (partner >= 0 && this.agrees(valueB)) ? this.payload.column("value.far")[valueB] : NaN;
  }

  agrees(valueB: number): boolean {
    return this.payload.column("value.agrees")[valueB] > 0;
  }

  /** The row in which the other run made a value equal to a result of one run's row; -1 for none. */
  equalRow(row: number, side: Side): number {
    const other: Side = side ? 0 : 1;
    const event = this.event(row, side);
    if (event < 0) return -1;
    for (const value of this.sides[side].valuesOf(event, "out")) {
      const partner = this.partner(value, side);
      const maker = partner < 0 ? -1 : this.sides[other].producer(partner);
      const found = this.rowOf(other, maker);
      if (found >= 0 && found !== row) return found;
    }
    return -1;
  }

  /** The value of the other run that agrees with a value of one, -1 for none. */
  private partner(value: number, side: Side): number {
    const partners = this.payload.column("value.partner");
    if (side) return this.agrees(value) ? partners[value] - 1 : -1;
    if (!this.partnersOfA) {
      this.partnersOfA = new Map();
      for (let b = 0; b < partners.length; b++) {
        if (partners[b] && this.agrees(b) && !this.partnersOfA.has(partners[b] - 1)) this.partnersOfA.set(partners[b] - 1, b);
      }
    }
    return this.partnersOfA.get(value) ?? -1;
  }

  /** Arguments or results of both runs by their places. */
  leaves(row: number, role: "in" | "out"): [Leaf | null, Leaf | null][] {
    const [a, b] = SIDES.map((side) => {
      const event = this.comparedEvent(row, side);
      return event < 0 ? [] : this.sides[side].leaves(event).filter((leaf) => leaf.role === role);
    });
    const found: [Leaf | null, Leaf | null][] = a.map((leaf) => [leaf, b.find((other) => other.path === leaf.path) ?? null]);
    for (const leaf of b) if (!a.some((other) => other.path === leaf.path)) found.push([null, leaf]);
    return found;
  }

  /** Settings that differ, of the call in a row and of the calls around it. */
  settings(row: number): [where: string, name: string, a: string, b: string][] {
    const found: [string, string, string, string][] = [];
    for (let at = row; at >= 0; at = this.parent(at)) {
      for (const [name, a, b] of this.head.settings[at] ?? []) found.push([this.title(at), name, a, b]);
    }
    return found;
  }

  onSelect(listener: (from: string) => void): void {
    this.listeners.push(listener);
  }

  choose(row: number, from: string): void {
    if (row === this.selected) return;
    this.selected = row;
    for (const listener of this.listeners) listener(from);
  }

  find(text: string): { rows: number[]; problem: string } {
    const found = new Set<number>();
    let problem = "";
    for (const side of SIDES) {
      const asked = search(this.sides[side], text);
      problem ||= asked.problem;
      for (const event of asked.rows) if (this.rowOf(side, event) >= 0) found.add(this.rowOf(side, event));
    }
    return { rows: [...found].sort((a, b) => a - b), problem };
  }

  describe(row: number): { name: string; note: string; shape: string; where: string } {
    const side: Side = this.event(row, 1) >= 0 ? 1 : 0;
    const event = this.event(row, side);
    const trace = this.sides[side];
    return {
      name: this.title(row),
      note: trace.isModule(event) ? trace.eventName(event) : (trace.module(event) ?? ""),
      shape: trace.output(event),
      where: [this.words(row), trace.siteText(event)].filter(Boolean).join(" · "),
    };
  }

  go(row: number): void {
    this.choose(row, "search");
  }

  /** The state of a row in words. */
  words(row: number): string {
    const state = this.state(row);
    if (state === "only_a") return this.harm[row] ? "only in a" : "only in a, harmless";
    if (state === "only_b") return this.harm[row] ? "only in b" : "only in b, harmless";
    return state === "unknown" ? "not compared" : state === "changed" ? "differs" : "matches";
  }
}

/** An error in a few characters. */
export function errorText(error: number): string {
  if (Number.isNaN(error)) return "";
  return error === 0 ? "equal" : Number.isFinite(error) ? measured(error, 2) : "other";
}

/** How long the bar of an error is, from 0 to 1, on a logarithmic scale. */
export function errorShare(error: number): number {
  if (!(error > 0)) return 0;
  return Number.isFinite(error) ? max(0.02, min(1, (log10(error) - LEAST) / -LEAST)) : 1;
}

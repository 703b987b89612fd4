// One trace of a report: columns of events and values, and the questions the panes ask of them.

import { learnClass, learnOp } from "./format.ts";
import type { TraceHead } from "./head.ts";
import type { Column, Payload } from "./payload.ts";
import { KIND } from "./spec.ts";

export interface Leaf {
  role: "in" | "out";
  path: string;
  /** The text of a constant, null for a tensor. */
  constant: string | null;
  /** The value's number, -1 for a constant. */
  value: number;
}

export interface Stats {
  min: number;
  max: number;
  mean: number;
  std: number;
  norm: number;
  nan: number;
  inf: number;
  zeros: number;
  count: number;
}

export interface Place {
  file: number;
  line: number;
  endLine: number;
  col: number;
  endCol: number;
  function: string;
  library: boolean;
}

type TemplateLeaf = [role: number, path: string, constant: string | null];

export class Trace {
  readonly rows: number;
  readonly name: string;
  readonly start: Column;
  readonly duration: Column;
  readonly parentBack: Column;
  readonly step: Column;
  readonly rank: Column;
  readonly phaseOf: Column;
  readonly kindOf: Column;
  readonly nameOf: Column;
  readonly producerOf: Column;
  readonly refs: Column;
  /** Rows of the children of each row, one after the other; row r has [first[r+1], first[r+2]). */
  readonly kidFirst: Int32Array;
  readonly kidList: Int32Array;
  readonly params = new Map<string, number>();
  readonly ranks: number[];
  readonly steps: number[];
  private readonly strings: string[];
  private readonly c: (name: string) => Column;
  private uses: { first: Int32Array; rows: Int32Array } | null = null;
  private lineIndex = new Map<number, Map<number, number[]>>();

  constructor(
    readonly head: TraceHead,
    private readonly payload: Payload,
    readonly prefix: string,
  ) {
    const columns = new Map<string, Column>();
    const c = (this.c = (name: string) => {
      // Asked for once per row by some, so it may not cost anything.
      let column = columns.get(name);
      if (column) return column;
      column = payload.column(prefix + name);
      if (column.length || !payload.pending) columns.set(name, column);
      return column;
    });
    this.rows = head.rows;
    this.name = head.name || "trace";
    this.strings = head.strings;
    this.start = c("start");
    this.duration = c("duration");
    this.parentBack = c("parent");
    this.step = c("step");
    this.rank = c("rank");
    this.phaseOf = c("phase");
    this.kindOf = c("kind");
    this.nameOf = c("name");
    this.producerOf = c("producer");
    this.refs = c("refs");
    for (const [path, , params] of head.modules) this.params.set(path, params);
    for (const [cls, family] of Object.entries(head.classes)) learnClass(cls, family);
    for (const [name, [short, family]] of Object.entries(head.ops)) learnOp(name, short, family);
    this.ranks = distinct(this.rank);
    this.steps = distinct(this.step, (row) => this.kindOf[row] !== KIND.step);
    [this.kidFirst, this.kidList] = this.children();
  }

  /** A column of one of the charts. */
  column(name: string): Column {
    return this.c(name);
  }

  private children(): [Int32Array, Int32Array] {
    const n = this.rows;
    const first = new Int32Array(n + 3);
    for (let r = 0; r < n; r++) first[this.parent(r) + 3]++;
    for (let r = 1; r < n + 3; r++) first[r] += first[r - 1];
    const list = new Int32Array(n);
    const at = first.slice(1);
    for (let r = 0; r < n; r++) list[at[this.parent(r) + 1]++] = r;
    return [first.subarray(1), list];
  }

  /** Rows directly in a row; of -1, rows in none. */
  kids(row: number): Int32Array {
    return this.kidList.subarray(this.kidFirst[row + 1], this.kidFirst[row + 2]);
  }

  hasKids(row: number): boolean {
    return this.kidFirst[row + 2] > this.kidFirst[row + 1];
  }

  parent(row: number): number {
    const back = this.parentBack[row];
    return back ? row - back : -1;
  }

  forward(row: number): number {
    const back = this.c("forward")[row];
    return back ? row - back : -1;
  }

  kind(row: number): string {
    return this.head.kinds[this.kindOf[row]] ?? "event";
  }

  phase(row: number): string {
    return this.head.phases[this.phaseOf[row]] ?? "";
  }

  eventName(row: number): string {
    return this.strings[this.nameOf[row]];
  }

  isModule(row: number): boolean {
    return this.kindOf[row] === KIND.module;
  }

  isOp(row: number): boolean {
    return this.kindOf[row] === KIND.op;
  }

  /** The path of the module an event ran in, of a module call its own; null outside any. */
  module(row: number): string | null {
    const id = this.c("module")[row];
    return id ? this.strings[id - 1] : null;
  }

  moduleId(row: number): number {
    return this.c("module")[row];
  }

  call(row: number): number {
    return this.c("call")[row];
  }

  /** The composite that stands for an op, as people wrote it: its number, 0 for none, and its name. */
  written(row: number): [number: number, name: string] {
    const number = this.c("written")[row];
    return [number, number ? this.strings[this.c("written.name")[number - 1]] : ""];
  }

  /** The column of groups, or one of their facts. */
  groups(fact = ""): Column {
    return this.c(fact ? `group.${fact}` : "group");
  }

  text(number: number): string {
    return this.strings[number];
  }

  thread(row: number): string {
    return this.head.threads[this.c("thread")[row]] ?? "";
  }

  threadId(row: number): number {
    return this.c("thread")[row];
  }

  error(row: number): string | null {
    const id = this.c("error")[row];
    return id ? this.strings[id - 1] : null;
  }

  failed(row: number): boolean {
    return this.c("error")[row] > 0;
  }

  /** The address that names one event of its rank: a stem, the call if the stem ends in `#`, a role. */
  address(row: number): string {
    const stem = this.strings[this.c("stem")[row]];
    return stem.endsWith("#") ? stem + this.call(row) + this.strings[this.c("role")[row]] : stem;
  }

  /** What a row is called in a list, as the printed tree calls it; nothing where no list shows it. */
  label(row: number): string {
    return this.strings[this.c("label")[row]];
  }

  /** The nearest module call from a row up, the row itself included; -1 for none. */
  enclosing(row: number): number {
    while (row >= 0 && !this.isModule(row)) row = this.parent(row);
    return row;
  }

  leaves(row: number): Leaf[] {
    const template = this.head.templates[this.c("template")[row]] as TemplateLeaf[];
    let at = this.c("first_ref")[row];
    const found = template.map(([role, path, constant]): Leaf => {
      return { role: role ? "out" : "in", path, constant, value: constant === null ? this.refs[at++] : -1 };
    });
    for (const [path, value] of this.head.extra[row] ?? []) found.push({ role: "out", path, constant: null, value });
    return found;
  }

  /** The numbers of the values an event takes, or returns. */
  valuesOf(row: number, role: "in" | "out"): number[] {
    const found = [];
    for (const leaf of this.leaves(row)) if (leaf.value >= 0 && leaf.role === role) found.push(leaf.value);
    return found;
  }

  /** The row that made a value, -1 if that was not seen. */
  producer(value: number): number {
    return this.producerOf[value] - 1;
  }

  valueText(value: number): string {
    return this.head.metas[this.c("meta")[value]][0];
  }

  meta(value: number): { dtype: string; shape: string | null; stride: string | null; device: string } {
    const [, , shape, stride, device, dtype] = this.head.metas[this.c("meta")[value]];
    return { dtype, shape, stride, device };
  }

  /** The path of a parameter or buffer, empty for other values. */
  valueName(value: number): string {
    const id = this.c("value_name")[value];
    return id ? this.strings[id - 1] : "";
  }

  version(value: number): number {
    return this.c("version")[value];
  }

  needsGrad(value: number): boolean {
    return this.c("grad")[value] > 0;
  }

  /** Whether there are statistics; of a long run they come a moment after the rest. */
  get hasStats(): boolean {
    return this.c("stat.count").length > 0;
  }

  stats(value: number): Stats | null {
    const at = this.c("stat")[value] - 1;
    if (at < 0 || !this.hasStats) return null;
    const of = (name: string) => this.c(`stat.${name}`)[at];
    return {
      min: of("min"), max: of("max"), mean: of("mean"), std: of("std"), norm: of("norm"),
      nan: of("nan"), inf: of("inf"), zeros: of("zeros"), count: of("count"),
    };
  }

  preview(value: number): number {
    return this.c("preview")[value] - 1;
  }

  /** `NaN` or `Inf` where a result of a row holds one that a finding warns of. */
  nonfinite(row: number): string {
    return ["", "NaN", "Inf"][this.c("nonfinite")[row]];
  }

  /** Result of a row in a few characters. */
  output(row: number): string {
    return this.strings[this.c("result")[row]];
  }

  /** Rows that take a value. */
  consumers(value: number): Int32Array {
    this.uses ??= this.indexUses();
    return this.uses.rows.subarray(this.uses.first[value], this.uses.first[value + 1]);
  }

  private indexUses(): { first: Int32Array; rows: Int32Array } {
    const values = this.producerOf.length;
    const first = new Int32Array(values + 2);
    const each = (visit: (value: number, row: number) => void) => {
      const templates = this.c("template");
      const starts = this.c("first_ref");
      for (let row = 0; row < this.rows; row++) {
        let at = starts[row];
        for (const [role, , constant] of this.head.templates[templates[row]] as TemplateLeaf[]) {
          if (constant !== null) continue;
          if (!role) visit(this.refs[at], row);
          at++;
        }
      }
    };
    each((value) => first[value + 2]++);
    for (let i = 1; i < first.length; i++) first[i] += first[i - 1];
    const rows = new Int32Array(first[values + 1]);
    each((value, row) => (rows[first[value + 1]++] = row));
    return { first, rows };
  }

  place(number: number): Place {
    const of = (name: string) => this.c(`place.${name}`)[number];
    return {
      file: of("file"), line: of("line"), endLine: of("end_line"), col: of("col"), endCol: of("end_col"),
      function: this.strings[of("function")], library: of("library") > 0,
    };
  }

  /** The line of the user's code an event came from, null where none is known. */
  site(row: number): Place | null {
    const number = this.c("site")[row] - 1;
    return number >= 0 ? this.place(number) : null;
  }

  siteId(row: number): number {
    return this.c("site")[row];
  }

  /** Every place on the way to an event, outermost first. */
  stack(row: number): Place[] {
    const found: Place[] = [];
    for (let at = this.c("place")[row]; at >= 0; at = this.c("place.parent")[at] - 1) {
      const place = this.place(at);
      if (place.line > 0) found.push(place);
    }
    return found.reverse();
  }

  fileName(file: number): string {
    return this.head.files[file];
  }

  filePath(file: number): string {
    return this.head.paths[file] ?? this.head.files[file];
  }

  siteText(row: number): string {
    const site = this.site(row);
    return site ? `${this.fileName(site.file)}:${site.line}` : "";
  }

  /** The text of a source file, null where it was not kept. */
  source(file: number): string | null {
    const name = `${this.prefix}source.${file}`;
    return this.payload.has(name) ? this.payload.text(name) : null;
  }

  /** Rows of a file by their line; what a call on the same line runs belongs to that call. */
  lines(file: number): Map<number, number[]> {
    let index = this.lineIndex.get(file);
    if (index) return index;
    index = new Map();
    this.lineIndex.set(file, index);
    const sites = this.c("site");
    const files = this.c("place.file");
    const numbers = this.c("place.line");
    for (let row = 0; row < this.rows; row++) {
      const site = sites[row] - 1;
      if (site < 0 || files[site] !== file) continue;
      const above = this.parent(row);
      if (above >= 0 && sites[above] === sites[row]) continue;
      const found = index.get(numbers[site]);
      if (found) found.push(row);
      else index.set(numbers[site], [row]);
    }
    return index;
  }

  /** Whether a row is another, or lies in it. */
  within(row: number, outer: number): boolean {
    while (row > outer) row = this.parent(row);
    return row === outer;
  }

  /** The same call in other steps, ranks and runs of its module, in order. */
  history(row: number): number[] {
    const found: number[] = [];
    const position = this.position(row);
    const kind = this.kindOf[row];
    const name = this.nameOf[row];
    const module = this.moduleId(row);
    const site = this.siteId(row);
    const phase = this.phaseOf[row];
    for (let r = 0; r < this.rows; r++) {
      if (this.kindOf[r] !== kind || this.nameOf[r] !== name || this.moduleId(r) !== module) continue;
      if (kind === KIND.module ? this.phaseOf[r] === phase : this.siteId(r) === site && this.position(r) === position) {
        found.push(r);
      }
    }
    return found;
  }

  /** The how many-th of its kind on its line an event is within its parent and step. */
  private position(row: number): number {
    let position = 0;
    const kids = this.kids(this.parent(row));
    for (let at = lowerBound(kids, row) - 1, tries = 0; at >= 0 && tries < 400; at--, tries++) {
      const other = kids[at];
      if (this.step[other] !== this.step[row]) break;
      if (this.nameOf[other] === this.nameOf[row] && this.siteId(other) === this.siteId(row)) position++;
    }
    return position;
  }
}

/** Where in a sorted list the first thing lies that is not below what is wanted. */
export function lowerBound(sorted: ArrayLike<number>, wanted: number, key = (item: number) => item): number {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (key(sorted[middle]) < wanted) low = middle + 1;
    else high = middle;
  }
  return low;
}

function distinct(column: Column, counts: (row: number) => boolean = () => true): number[] {
  const seen = new Set<number>();
  let last = NaN;
  for (let i = 0; i < column.length; i++) {
    // Neighbours are mostly equal.
    if (column[i] === last || !counts(i)) continue;
    seen.add((last = column[i]));
  }
  return [...seen].sort((a, b) => a - b);
}

// Where the time and memory go: events of the run, or of the range chosen in the timeline, added up by
// op, class, module or source line, in a table that sorts.

import { percent } from "./chart_text.ts";
import { picker } from "./chart.ts";
import { button, h, replace } from "./dom.ts";
import { bytes, count, shortOp, time, whole } from "./format.ts";
import { max, min } from "./maths.ts";
import type { TimeRange } from "./range.ts";
import type { View } from "./state.ts";
import { classOf } from "./timeline_paint.ts";
import type { Trace } from "./trace.ts";

export type By = "op" | "class" | "module" | "line";
const WAYS: [By, string][] = [["op", "Op"], ["class", "Class"], ["module", "Module"], ["line", "Line"]];

export interface Total {
  name: string;
  note: string;
  /** Time in the events themselves, not in those inside them. */
  self: number;
  total: number;
  calls: number;
  bytes: number;
  /** The event of it that took longest. */
  row: number;
  longest: number;
}

export interface Scope {
  from: number;
  to: number;
  /** The number of a phase, or of a rank; -1 for all. */
  phase: number;
  rank: number;
}

/** How long each event ran within a scope, and how long without those inside it. */
function times(trace: Trace, scope: Scope): { inside: Float64Array; self: Float64Array } {
  const { rows, start, duration, phaseOf, rank } = trace;
  const inside = new Float64Array(rows);
  const self = new Float64Array(rows);
  for (let row = 0; row < rows; row++) {
    const took = duration[row];
    if (!(took >= 0) || (!trace.isOp(row) && !trace.isModule(row))) continue;
    if (scope.rank >= 0 && rank[row] !== scope.rank) continue;
    const from = start[row];
    const here = max(0, min(from + took, scope.to) - max(from, scope.from));
    inside[row] = self[row] = here;
    const above = trace.parent(row);
    if (above >= 0 && trace.threadId(above) === trace.threadId(row)) self[above] = max(0, self[above] - here);
  }
  if (scope.phase >= 0) {
    for (let row = 0; row < rows; row++) if (phaseOf[row] !== scope.phase) inside[row] = self[row] = 0;
  }
  return { inside, self };
}

function added(found: Map<number, Total>, key: number, row: number, self: number, size: number): Total {
  let total = found.get(key);
  if (!total) found.set(key, (total = { name: "", note: "", self: 0, total: 0, calls: 0, bytes: 0, row, longest: -1 }));
  total.self += self;
  total.bytes += size;
  return total;
}

function longest(total: Total, row: number, took: number): void {
  if (took > total.longest) {
    total.longest = took;
    total.row = row;
  }
}

/** Add up all events of a scope. */
export function totals(trace: Trace, by: By, scope: Scope): { rows: Total[]; all: number } {
  const { inside, self } = times(trace, scope);
  const made = trace.column("memory.made");
  const lines = by === "line" ? lineKeys(trace) : null;
  const found = new Map<number, Total>();
  let all = 0;
  for (let row = 0; row < trace.rows; row++) {
    const own = self[row];
    const begins = trace.start[row] >= scope.from && trace.start[row] < scope.to;
    if (!inside[row] && !(begins && (scope.phase < 0 || trace.phaseOf[row] === scope.phase) && (scope.rank < 0 || trace.rank[row] === scope.rank))) continue;
    const isOp = trace.isOp(row);
    if (!isOp && !trace.isModule(row)) continue;
    all += own;
    if (by === "op" && !isOp) continue;
    const key = by === "op" ? trace.nameOf[row] : lines ? lines(row) : trace.moduleId(row);
    const total = added(found, key, row, own, begins ? made[row] : 0);
    if (by === "op") {
      total.total += inside[row];
      total.calls++;
      longest(total, row, inside[row]);
    } else if (lines) {
      let above = trace.parent(row);
      while (above >= 0 && lines(above) !== key) above = trace.parent(above);
      if (above < 0) {
        total.total += inside[row];
        total.calls++;
        longest(total, row, inside[row]);
      }
    } else {
      if (!isOp) total.calls++;
      longest(total, row, inside[row] + (isOp ? 0 : 1e15));
    }
  }
  if (by === "op") for (const total of found.values()) total.name = shortOp(trace.eventName(total.row));
  else if (lines) for (const total of found.values()) [total.name, total.note] = [trace.siteText(total.row) || "no line known", lineText(trace, total.row)];
  else return { rows: byModule(trace, by, [...found.values()]), all };
  return { rows: [...found.values()], all };
}

/** A number for the source line of each event, shared by the events of a line. */
function lineKeys(trace: Trace): (row: number) => number {
  const keys = new Map<number, number>();
  const lines = new Map<string, number>();
  return (row) => {
    const site = trace.siteId(row);
    let key = keys.get(site);
    if (key === undefined) {
      const text = trace.siteText(row);
      key = lines.get(text) ?? lines.size;
      lines.set(text, key);
      keys.set(site, key);
    }
    return key;
  };
}

function lineText(trace: Trace, row: number): string {
  const site = trace.site(row);
  const source = site && trace.source(site.file);
  return source ? (source.split("\n")[site.line - 1] ?? "").trim() : "";
}

/** Totals of modules: their own and those of the modules in them. Of classes: those of their modules. */
function byModule(trace: Trace, by: By, found: Total[]): Total[] {
  const modules = new Map<string, Total>();
  for (const total of found) {
    const path = trace.module(total.row);
    total.total = total.self;
    total.name = path ?? "outside any module";
    modules.set(path ?? "\0", total);
  }
  const around = (path: string): string | null => {
    for (let at = path.lastIndexOf("."); at > 0; at = path.lastIndexOf(".", at - 1)) if (modules.has(path.slice(0, at))) return path.slice(0, at);
    return path && modules.has("") ? "" : null;
  };
  for (const [path, total] of modules) {
    if (path === "\0") continue;
    for (let above = around(path); above !== null; above = around(above)) modules.get(above)!.total += total.self;
  }
  if (by === "module") {
    for (const [path, total] of modules) {
      total.note = path === "\0" ? "" : classOf(trace, path);
      if (path === "") total.name = "the root module";
    }
    return found;
  }
  const classes = new Map<string, Total>();
  for (const [path, total] of modules) {
    const cls = path === "\0" ? "outside any module" : classOf(trace, path) || total.name;
    let one = classes.get(cls);
    if (!one) classes.set(cls, (one = { ...total, name: cls, self: 0, total: 0, calls: 0, bytes: 0 }));
    one.self += total.self;
    one.calls += total.calls;
    one.bytes += total.bytes;
    longest(one, total.row, total.longest);
    // A module inside another of its class is in the other's total.
    let above = path === "\0" ? null : around(path);
    while (above !== null && classOf(trace, above) !== cls) above = around(above);
    if (above === null) one.total += total.total;
  }
  return [...classes.values()];
}

type Column = "name" | "self" | "total" | "calls" | "share" | "bytes";
const COLUMNS: [Column, string, string][] = [
  ["name", "", ""], ["self", "Self", "time not spent in what is inside"], ["total", "Total", "time with all that is inside"],
  ["calls", "Calls", ""], ["share", "Share", "of the time of all events"], ["bytes", "Bytes", "memory that was made"],
];
const MOST_ROWS = 400;

/** The table, with what it is added up by. */
export class Totals {
  readonly element: HTMLElement;
  readonly tools = h("span.tools", null);
  private readonly table = h("table.totals", null);
  private readonly said = h("span.dim.clip", { role: "status" });
  private by: By;
  private order: Column = "self";
  private down = true;
  private readonly scope = { phase: -1, rank: -1 };
  private stale = true;
  private timer = 0;

  constructor(private readonly view: View, private readonly range: TimeRange, private readonly inSight: () => boolean) {
    const { trace } = view;
    this.by = trace.head.modules.length ? "module" : "op";
    this.element = h("div.tablepane", { tabindex: 0, role: "region", label: "Where it goes" }, this.table);
    const ways = h("span.choice", { role: "group", label: "Add up by" }, WAYS.map(([by, name]) =>
      h("button", { "aria-pressed": String(by === this.by), onclick: (event: Event) => {
        this.by = by;
        for (const other of ways.children) other.setAttribute("aria-pressed", String(other === event.currentTarget));
        this.refresh();
      } }, name)));
    replace(this.tools, this.said, ways, this.choices(), button("✕", "The whole run (no range)", () => range.clear(), "norange"));
    range.onChange(() => this.refresh());
    this.tools.classList.add("totaltools");
  }

  private choices(): (HTMLElement | false)[] {
    const { trace } = this.view;
    const phases = new Set<number>();
    for (let row = 0; row < trace.rows; row++) phases.add(trace.phaseOf[row]);
    const all: [number, string][] = [[-1, "all phases"]];
    const ranks: [number, string][] = [[-1, "all ranks"]];
    return [
      phases.size > 1 && picker("Phase", [...all, ...[...phases].sort().map((n): [number, string] => [n, trace.head.phases[n]])], -1, (n) => { this.scope.phase = n; this.refresh(); }),
      trace.ranks.length > 1 && picker("Rank", [...ranks, ...trace.ranks.map((n): [number, string] => [n, `rank ${n}`])], -1, (n) => { this.scope.rank = n; this.refresh(); }),
    ];
  }

  /** Add up again if the table is in sight; not for every move of a range over a long run. */
  refresh(): void {
    this.stale = true;
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => this.inSight() && this.wake(), this.view.trace.rows > 100_000 ? 150 : 0);
  }

  wake(): void {
    if (!this.stale) return;
    this.stale = false;
    const { chosen } = this.range;
    const scope: Scope = { from: chosen?.from ?? -Infinity, to: chosen?.to ?? Infinity, ...this.scope };
    const { rows, all } = totals(this.view.trace, this.by, scope);
    this.said.textContent = `${chosen ? `range of ${time(chosen.to - chosen.from)}: ` : ""}${time(all)} in events`;
    (this.tools.querySelector(".norange") as HTMLElement).hidden = !chosen;
    this.fill(rows, all);
  }

  private fill(rows: Total[], all: number): void {
    const key = this.order === "share" ? "self" : this.order;
    rows.sort((a, b) => (key === "name" ? a.name.localeCompare(b.name, "en", { numeric: true }) : a[key] - b[key]) * (this.down ? -1 : 1) || b.self - a.self);
    const first = WAYS.find(([by]) => by === this.by)![1];
    const head = COLUMNS.map(([column, name, about]) => {
      const mine = column === this.order;
      return h("th", { "aria-sort": mine ? (this.down ? "descending" : "ascending") : "none", scope: "col" },
        h("button", { title: about || null, onclick: () => this.sortBy(column, rows, all) }, name || first, mine && h("span", { "aria-hidden": "true" }, this.down ? " ▾" : " ▴")));
    });
    const body = rows.slice(0, MOST_ROWS).map((total) => {
      const share = all > 0 ? total.self / all : 0;
      const bar = h("td.share", null, percent(share));
      bar.style.setProperty("--share", `${share * 100}%`);
      return h("tr", null,
        h("th", { scope: "row" }, h("button.link", { title: "Go to the longest", onclick: () => this.view.choose(total.row, "totals") }, total.name), total.note && h("span.dim", null, ` ${total.note}`)),
        h("td", null, time(total.self)), h("td", null, time(total.total)), h("td", null, total.calls ? whole(total.calls) : "–"), bar, h("td", null, total.bytes ? bytes(total.bytes) : "–"));
    });
    const left = rows.length - MOST_ROWS;
    replace(this.table, h("thead", null, h("tr", null, head)), h("tbody", null, body,
      left > 0 && h("tr", null, h("td.dim", { colspan: COLUMNS.length }, `${count(left, "row")} more`))));
  }

  private sortBy(column: Column, rows: Total[], all: number): void {
    this.down = column === this.order ? !this.down : column !== "name";
    this.order = column;
    this.fill(rows, all);
    this.table.querySelectorAll<HTMLElement>("thead button")[COLUMNS.findIndex(([name]) => name === column)].focus();
  }
}

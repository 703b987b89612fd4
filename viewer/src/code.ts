// The source of the selected event: every line with what it ran, its results and failures.

import { h, on, replace, stop } from "./dom.ts";
import { clip, isView } from "./format.ts";
import { highlight, type Piece } from "./highlight.ts";
import type { View } from "./state.ts";
import { VirtualList } from "./virtual.ts";

const ROW = 20;
const MOST_NAMES = 4;

interface Note {
  text: string;
  result: string;
  look: string;
  rows: number[];
}

export class Code {
  readonly element: HTMLElement;
  private file = -1;
  private pieces: Piece[][] | null = null;
  private current = -1;
  private lastLine = -1;
  private context = -1;
  private notes = new Map<number, Note | null>();
  private readonly title = h("h2", null, "Source");
  private readonly where = h("span.dim.clip", null);
  private readonly note = h("p.empty", null);
  private readonly list: VirtualList;

  constructor(private readonly view: View) {
    this.list = new VirtualList(ROW, makeLine, (element, index) => this.fill(element, index), {
      role: "listbox", label: "Source lines with what they ran", id: "code",
    });
    on(this.list.element, "click", (event) => {
      const index = this.list.indexOf(event.target);
      if (index >= 0) this.pick(index + 1);
    });
    on(this.list.element, "keydown", (event) => this.key(event));
    this.element = h("section.pane.code", { label: "Source code" },
      h("header.bar", null, this.title, this.where), this.note, this.list.element);
    view.onSelect((from) => this.follow(from));
    this.empty("Select a call or an op to see the line it came from.");
  }

  private empty(text: string): void {
    this.note.textContent = text;
    this.note.hidden = false;
    this.list.element.hidden = true;
  }

  private follow(from: string): void {
    const { trace } = this.view;
    const row = this.view.row;
    const site = row < 0 ? null : trace.site(row);
    if (!site) {
      replace(this.where, "");
      return this.empty(row < 0 ? "Nothing is selected." : "No line of your own code is known for this event.");
    }
    replace(this.where, h("b", null, `${trace.fileName(site.file)}:${site.line}`), site.function ? ` in ${site.function}` : "");
    this.where.title = trace.filePath(site.file);
    if (site.file !== this.file) {
      this.file = site.file;
      const source = trace.source(site.file);
      this.pieces = source === null ? null : highlight(source);
    }
    this.current = site.line;
    this.lastLine = site.endLine || site.line;
    const context = trace.enclosing(trace.isModule(row) ? trace.parent(row) : this.home(row));
    if (context !== this.context) this.context = context;
    this.notes.clear();
    if (!this.pieces) {
      const why = trace.head.redacted
        ? "The sources were left out of this report (redact)."
        : "The text of this file is not in the trace.";
      return this.empty(`${trace.fileName(site.file)}:${site.line}: ${why}`);
    }
    this.note.hidden = true;
    this.list.element.hidden = false;
    this.list.setLength(this.pieces.length);
    if (from !== "code") this.list.reveal(site.line - 1, true);
    this.list.draw();
  }

  /** For an op of the backward pass, the op of the forward pass it belongs to. */
  private home(row: number): number {
    const forward = this.view.trace.forward(row);
    return forward >= 0 ? forward : row;
  }

  private rowsOf(line: number): number[] {
    const { trace } = this.view;
    const all = trace.lines(this.file).get(line) ?? [];
    if (all.length < 2) return all;
    // What ran within the same call; outside any, in the same step.
    const now = this.view.row;
    const mine = all.filter((row) => this.context < 0
      ? trace.parent(row) < 0 && trace.step[row] === trace.step[now] && trace.rank[row] === trace.rank[now]
      : trace.within(row, this.context));
    return mine.length ? mine : firstRun(all, (r) => trace.parent(r));
  }

  private noteOf(line: number): Note | null {
    let note = this.notes.get(line);
    if (note === undefined) this.notes.set(line, (note = this.makeNote(line)));
    return note;
  }

  private makeNote(line: number): Note | null {
    const { trace } = this.view;
    const rows = this.rowsOf(line);
    if (!rows.length) return null;
    const failed = rows.find((r) => trace.failed(r));
    const shown = rows.filter((r) => trace.phase(r) !== "backward");
    const listed = shown.length ? shown : rows;
    const counts = new Map<string, number>();
    const bound: string[] = [];
    let views = 0;
    let whole = 0;
    for (const row of listed) {
      if (!trace.isOp(row) && !trace.isModule(row)) {
        if (trace.kind(row) !== "step") bound.push(trace.label(row));
        continue;
      }
      // Ops of one `linear` are one thing on the line.
      const [number, written] = trace.failed(row) ? [0, ""] : trace.written(row);
      if (number && number === whole) continue;
      whole = number;
      if (!number && trace.isOp(row) && isView(trace.eventName(row)) && listed.length > 1) {
        views++;
        continue;
      }
      const name = written || trace.label(row);
      counts.set(name, (counts.get(name) ?? 0) + 1);
    }
    const names = [...counts].map(([name, n]) => (n > 1 ? `${name} ×${n}` : name));
    const extra = names.length - MOST_NAMES;
    const parts = names.slice(0, MOST_NAMES);
    if (extra > 0) parts.push(`+${extra}`);
    if (views) parts.push(views === 1 ? "1 view" : `${views} views`);
    const last = listed[listed.length - 1];
    const bad = listed.map((r) => trace.nonfinite(r)).find(Boolean);
    return {
      text: [bound, parts].filter((list) => list.length).map((list) => list.join(", ")).join(" ← "),
      result: failed !== undefined ? clip((trace.error(failed) ?? "").split("\n")[0], 160) : trace.output(last),
      look: failed !== undefined ? "failed" : bad ?? "",
      rows,
    };
  }

  private fill(element: HTMLElement, index: number): void {
    const line = index + 1;
    const [gutter, text, note] = element.children as unknown as HTMLElement[];
    const now = line >= this.current && line <= this.lastLine;
    const found = this.noteOf(line);
    element.className = "line" + (now ? " now" : "") + (found ? " ran" : "");
    element.ariaSelected = String(now);
    gutter.textContent = String(line);
    replace(text, this.pieces![index].map(({ text, look }) => (look ? h("span", { class: look }, text) : text)));
    if (!found) return replace(note);
    note.className = `note ${found.look}`;
    note.title = `${found.text}${found.result ? ` → ${found.result}` : ""}`;
    replace(note, found.result && h("span.shape", null, `→ ${found.result}  `), found.text);
  }

  /** Select what a line ran; clicked again, the next thing it ran. */
  private pick(line: number): void {
    const rows = this.noteOf(line)?.rows;
    if (!rows?.length) return;
    const at = rows.indexOf(this.view.row);
    this.view.choose(rows[(at + 1) % rows.length], "code");
  }

  private key(event: KeyboardEvent): void {
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (!step || !this.pieces) return;
    stop(event);
    for (let line = this.current + step; line > 0 && line <= this.pieces.length; line += step) {
      if (this.noteOf(line)) {
        this.view.choose(this.noteOf(line)!.rows[0], "code");
        this.list.reveal(line - 1);
        return;
      }
    }
  }
}

/** The rows of the first call among several that ran the same line. */
function firstRun(rows: number[], parent: (row: number) => number): number[] {
  const first = parent(rows[0]);
  const found = [];
  for (const row of rows) {
    if (parent(row) !== first || found.length > 200) break;
    found.push(row);
  }
  return found;
}

function makeLine(): HTMLElement {
  return h("div.line", { role: "option" },
    h("span.gutter", null), h("code", null), h("span.note", null));
}

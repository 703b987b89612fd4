// The calls and ops of two runs, side by side: `a` at the left, `b` at the right, between them how
// they compare, and a bar that says how far apart their results are.

import type { Comparison, Side } from "./comparison.ts";
import { errorShare, errorText, SIDES } from "./comparison.ts";
import { button, h, on } from "./dom.ts";
import { whole } from "./format.ts";
import { max, min } from "./maths.ts";
import { VirtualList } from "./virtual.ts";

const ROW = 24;
const MOST_OPENED = 200_000;
const SIGNS: Record<string, string> = { matched: "=", changed: "≠", only_a: "◀", only_b: "▶", unknown: "?" };

export class DiffTree {
  readonly element: HTMLElement;
  private shown: number[] = [];
  private depths: number[] = [];
  private at = new Map<number, number>();
  private open = new Set<number>();
  private marked = new Set<number>();
  private readonly list: VirtualList;
  private readonly only: HTMLInputElement;

  constructor(private readonly runs: Comparison) {
    this.list = new VirtualList(ROW, makeRow, (element, index) => this.fill(element, index), {
      role: "tree", label: "Calls and operations of both runs", id: "tree",
    });
    on(this.list.element, "click", (event) => this.click(event));
    on(this.list.element, "dblclick", (event) => {
      const index = this.list.indexOf(event.target);
      if (index >= 0) this.toggle(this.shown[index]);
    });
    on(this.list.element, "keydown", (event) => this.key(event));
    this.only = h("input", { type: "checkbox", id: "only", onchange: () => this.rebuild() });
    this.element = h("section.pane.tree", { label: "Both runs" },
      h("header.bar", null, h("h2", null, "Both runs, side by side"), h("span.grow", null),
        h("label.check", { title: "Hide what matches (x)" }, this.only, "differences only"),
        button("⊞", "Open one level more (*)", () => this.openMore()),
        button("⊟", "Close everything", () => { this.open.clear(); this.rebuild(); })),
      h("div.columns", { "aria-hidden": "true" }, h("b.a", null, "a"), h("span.sign", null), h("b.b", null, "b"), h("span.apart", null, "error of b")),
      this.list.element);
    this.openFirst();
    this.rebuild();
    runs.onSelect((from) => this.follow(from));
  }

  focus(): void {
    this.list.element.focus({ preventScroll: true });
  }

  mark(rows: Set<number>): void {
    this.marked = rows;
    this.list.draw();
  }

  get differencesOnly(): boolean {
    return this.only.checked;
  }

  set differencesOnly(wanted: boolean) {
    this.only.checked = wanted;
    this.rebuild();
  }

  /** Open what leads to the first call's own parts. */
  private openFirst(): void {
    for (let at = this.runs.kids(-1), depth = 0; at.length && depth < 4; depth++) {
      const next = at.find((row) => this.runs.hasKids(row));
      if (next === undefined) return;
      this.open.add(next);
      at = this.runs.kids(next);
      if (this.runs.isCall(next)) return at.forEach((row) => this.openWrapper(row));
    }
  }

  /** Open a call of one run in which both go on. */
  private openWrapper(row: number): void {
    const lacking = SIDES.find((side) => !this.runs.label(row, side).name);
    if (lacking !== undefined && this.runs.kids(row).some((kid) => this.runs.label(kid, lacking).name)) this.open.add(row);
  }

  private rebuild(): void {
    this.shown = [];
    this.depths = [];
    this.at.clear();
    const hide = this.only.checked;
    const stack: [number, number][] = Array.from(this.runs.kids(-1), (row): [number, number] => [row, 0]).reverse();
    while (stack.length) {
      const [row, depth] = stack.pop()!;
      if (hide && !this.runs.harm[row]) continue;
      this.at.set(row, this.shown.length);
      this.shown.push(row);
      this.depths.push(depth);
      if (!this.open.has(row)) continue;
      const kids = this.runs.kids(row);
      for (let i = kids.length - 1; i >= 0; i--) stack.push([kids[i], depth + 1]);
    }
    this.list.setLength(this.shown.length);
  }

  private fill(element: HTMLElement, index: number): void {
    const { runs } = this;
    const row = this.shown[index];
    const depth = this.depths[index];
    const [a, sign, b, error] = element.children as unknown as HTMLElement[];
    const selected = row === runs.selected;
    const hasKids = runs.hasKids(row);
    const first = row === runs.head.first.row;
    element.className = `row ${runs.state(row)}${runs.harm[row] ? " harm" : ""}${hasKids ? " outer" : ""}${first ? " first" : ""}${selected ? " selected" : ""}${this.marked.has(row) ? " marked" : ""}`;
    element.id = `row-${row}`;
    element.ariaLevel = String(depth + 1);
    element.ariaSelected = String(selected);
    element.ariaExpanded = hasKids ? String(this.open.has(row)) : null;
    if (selected) this.list.element.setAttribute("aria-activedescendant", element.id);
    const twist = hasKids ? (this.open.has(row) ? "▾" : "▸") : "";
    for (const side of SIDES) this.fillSide([a, b][side], row, side, depth, twist);
    sign.textContent = first ? "◆" : SIGNS[runs.state(row)];
    sign.title = first ? "the runs part here" : runs.words(row);
    const size = runs.error[row];
    error.textContent = runs.more[row] && !hasKids ? `${whole(runs.more[row])} left out` : errorText(size);
    error.className = `apart${runs.beyond[row] || (runs.state(row) === "changed" && !runs.isCall(row)) ? " beyond" : ""}`;
    error.style.setProperty("--share", `${(100 * errorShare(size)).toFixed(1)}%`);
  }

  private fillSide(cell: HTMLElement, row: number, side: Side, depth: number, twist: string): void {
    const [fold, name, note, shape] = cell.children as unknown as HTMLElement[];
    const label = this.runs.label(row, side);
    cell.classList.toggle("none", !label.name);
    cell.style.paddingLeft = `${4 + min(depth, 24) * 12}px`;
    fold.textContent = label.name || side === 0 ? twist : "";
    name.textContent = label.name;
    note.textContent = label.note;
    shape.textContent = label.shape;
  }

  private click(event: MouseEvent): void {
    const index = this.list.indexOf(event.target);
    if (index < 0) return;
    if ((event.target as HTMLElement).classList.contains("twist")) this.toggle(this.shown[index]);
    else this.runs.choose(this.shown[index], "tree");
  }

  private toggle(row: number, wanted?: boolean): void {
    if (!this.runs.hasKids(row)) return;
    if (wanted ?? !this.open.has(row)) this.open.add(row);
    else this.open.delete(row);
    this.rebuild();
  }

  openMore(): void {
    for (const row of [...this.shown]) {
      if (this.runs.hasKids(row) && this.shown.length < MOST_OPENED) this.open.add(row);
    }
    this.rebuild();
  }

  private follow(from: string): void {
    const row = this.runs.selected;
    let changed = false;
    for (let at = this.runs.parent(row); at >= 0; at = this.runs.parent(at)) {
      if (!this.open.has(at)) changed = !!this.open.add(at);
    }
    if (this.only.checked && !this.runs.harm[row]) {
      this.only.checked = false;
      changed = true;
    }
    if (changed) this.rebuild();
    const index = this.at.get(row);
    if (index !== undefined) this.list.reveal(index, from !== "tree" && from !== "keys");
    this.list.draw();
  }

  private key(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { runs } = this;
    const row = runs.selected;
    const index = this.at.get(row) ?? -1;
    const go = (to: number) => {
      const target = this.shown[max(0, min(this.shown.length - 1, to))];
      if (target !== undefined) runs.choose(target, "keys");
    };
    const open = this.open.has(row);
    const acts: Record<string, () => void> = {
      ArrowDown: () => go(index + 1),
      ArrowUp: () => go(index - 1),
      PageDown: () => go(index + this.list.visible),
      PageUp: () => go(index - this.list.visible),
      Home: () => go(0),
      End: () => go(this.shown.length - 1),
      Enter: () => this.toggle(row),
      " ": () => this.toggle(row),
      "*": () => this.openMore(),
      ArrowRight: () => (runs.hasKids(row) && !open ? this.toggle(row, true) : go(index + 1)),
      ArrowLeft: () => (open ? this.toggle(row, false) : runs.parent(row) >= 0 && runs.choose(runs.parent(row), "keys")),
    };
    if (!acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  }
}

function makeRow(): HTMLElement {
  const side = (name: string) => h("span", { class: `side ${name}` }, h("span.twist", null), h("span.name", null), h("span.cls", null), h("span.shape", null));
  return h("div.row", { role: "treeitem" }, side("a"), h("span.sign", null), side("b"), h("span.apart", null));
}

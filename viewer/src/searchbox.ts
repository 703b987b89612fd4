// The search field: addresses as in Python, or any text; the rows found, one by one.

import { h, on, replace } from "./dom.ts";
import { count, whole } from "./format.ts";

const MOST_LISTED = 100;

/** What can be searched: rows by a text, what a list says of a row, and how to go there. */
export interface Searched {
  find(text: string): { rows: number[]; problem: string };
  describe(row: number): { name: string; note: string; shape: string; where: string };
  go(row: number): void;
}

export class SearchBox {
  readonly element: HTMLElement;
  readonly input: HTMLInputElement;
  private readonly list = h("ul.results", { role: "listbox", id: "results", hidden: true, label: "Events found" });
  private readonly status = h("span.status", { role: "status", "aria-live": "polite" });
  private rows: number[] = [];
  private at = -1;
  private timer = 0;

  /** `mark` shows the rows found, `leave` gives the keys to another pane, `asked` is told the text. */
  constructor(
    private readonly searched: Searched,
    private readonly mark: (rows: Set<number>) => void,
    private readonly leave: () => void,
    private readonly asked: (text: string) => void = () => undefined,
  ) {
    this.input = h("input", {
      type: "search", id: "search", placeholder: "Search: blocks.*.attn   op:softmax   line:model.py:57   any text", spellcheck: "false", autocomplete: "off",
      role: "combobox", "aria-expanded": "false", "aria-controls": "results", label: "Search by address or text",
    });
    this.element = h("div.search", { role: "search" }, this.input, this.status, this.list);
    on(this.input, "input", () => {
      clearTimeout(this.timer);
      this.timer = window.setTimeout(() => this.run(), 60);
    });
    on(this.input, "keydown", (event) => this.key(event));
    on(this.input, "focus", () => this.open(this.rows.length > 0));
    on(document, "pointerdown", (event) => {
      if (!this.element.contains(event.target as Node)) this.open(false);
    });
    on(this.list, "click", (event) => {
      const item = (event.target as Element).closest<HTMLElement>("[data-at]");
      if (!item) return;
      this.go(Number(item.dataset.at));
      this.open(false);
    });
  }

  get text(): string {
    return this.input.value;
  }

  /** Search for a text; `from` is the row from which `n` and `p` go on, if it is among those found. */
  set(text: string, from = -1): void {
    this.input.value = text;
    this.run();
    this.open(false);
    this.at = this.rows.indexOf(from);
  }

  /** Close the list if it is open, else forget what was searched; whether there was anything to do. */
  escape(): boolean {
    if (!this.list.hidden) this.open(false);
    else if (this.input.value) this.set("");
    else return false;
    return true;
  }

  private run(): void {
    const found = this.searched.find(this.input.value);
    this.rows = found.rows;
    this.at = -1;
    this.mark(new Set(found.rows));
    this.asked(this.input.value.trim());
    const asked = this.input.value.trim() !== "";
    this.status.textContent = !asked ? "" : found.problem && !found.rows.length ? found.problem : found.rows.length ? count(found.rows.length, "match", "matches") : "no match";
    this.element.classList.toggle("none", asked && !found.rows.length);
    this.fill();
    this.open(asked && found.rows.length > 0 && document.activeElement === this.input);
  }

  private fill(): void {
    const items = this.rows.slice(0, MOST_LISTED).map((row, at) => {
      const { name, note, shape, where } = this.searched.describe(row);
      return h("li", { role: "option", id: `found-${at}`, "data-at": at, "aria-selected": "false" },
        h("b", null, name), h("span.dim", null, ` ${note}`), h("span.shape", null, shape), h("span.dim.where", null, where));
    });
    const rest = this.rows.length - MOST_LISTED;
    replace(this.list, items, rest > 0 && h("li.dim", null, `… ${whole(rest)} more, n and p go through all`));
  }

  private open(wanted: boolean): void {
    this.list.hidden = !wanted;
    this.input.ariaExpanded = String(wanted);
  }

  /** Go to the next match, or the one before. */
  step(by: number): void {
    if (!this.rows.length) return;
    this.go((this.at + by + this.rows.length) % this.rows.length);
  }

  private go(at: number): void {
    this.at = at;
    this.searched.go(this.rows[at]);
    this.status.textContent = `${whole(at + 1)} of ${count(this.rows.length, "match", "matches")}`;
    for (const item of this.list.querySelectorAll("[aria-selected]")) item.ariaSelected = "false";
    const item = this.list.children[at];
    if (at < MOST_LISTED && item) {
      item.ariaSelected = "true";
      item.scrollIntoView({ block: "nearest" });
      this.input.setAttribute("aria-activedescendant", item.id);
    }
  }

  private key(event: KeyboardEvent): void {
    event.stopPropagation();
    if (event.key === "Enter") this.enter(event.shiftKey ? -1 : 1);
    else if (event.key === "ArrowDown") this.step(1);
    else if (event.key === "ArrowUp") this.step(-1);
    else if (event.key === "Escape") {
      this.escape();
      if (this.list.hidden && !this.input.value) this.leave();
    } else return;
    event.preventDefault();
  }
  /** Go to a match, close the list and give the keys away, so that `n` and `p` go on from there. */
  private enter(by: number): void {
    clearTimeout(this.timer);
    if (this.at < 0) this.run();
    if (!this.rows.length) return;
    this.step(by);
    this.open(false);
    this.leave();
  }
}

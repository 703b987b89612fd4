// Module by module, how far the results of `b` are from those of `a`: bars on a logarithmic scale.

import { type Comparison, errorShare, errorText } from "./comparison.ts";
import { h, on } from "./dom.ts";
import { count, whole } from "./format.ts";
import { max, min } from "./maths.ts";
import { VirtualList } from "./virtual.ts";

export class DiffCalls {
  readonly element: HTMLElement;
  private readonly list: VirtualList;

  constructor(private readonly runs: Comparison) {
    const { calls } = runs.head;
    this.list = new VirtualList(22, makeRow, (element, index) => this.fill(element, index), { role: "listbox", label: "Calls and how far their results differ", id: "calls" });
    on(this.list.element, "click", (event) => {
      const index = this.list.indexOf(event.target);
      if (index >= 0) runs.choose(calls[index], "calls");
    });
    on(this.list.element, "keydown", (event) => {
      const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!by) return;
      event.preventDefault();
      const next = calls[max(0, min(calls.length - 1, calls.indexOf(runs.selected) + by))];
      if (next !== undefined) runs.choose(next, "keys");
    });
    const left = runs.head.calls_left_out;
    const off = calls.filter((row) => runs.beyond[row]).length;
    this.element = h("section.pane.calls", { label: "Module by module" },
      h("header.bar", null, h("h2", null, "Module by module"), h("span.dim", null, `${whole(off)} of ${count(calls.length, "call")} beyond noise, in the order they ended${left ? `; ${whole(left)} more left out` : ""}`)),
      h("div.scale", { "aria-hidden": "true" }, ["1e-8", "1e-6", "1e-4", "1e-2", "1"].map((text) => h("i", null, text))),
      this.list.element);
    this.list.setLength(calls.length);
    runs.onSelect(() => this.follow());
  }

  /** Go to the first call whose result differs. */
  begin(): void {
    const at = this.runs.head.calls.findIndex((row) => this.runs.beyond[row]);
    if (at >= 0) this.list.reveal(at, true);
  }

  focus(): void {
    this.list.element.focus();
  }

  private follow(): void {
    const at = this.runs.head.calls.indexOf(this.runs.selected);
    if (at >= 0) this.list.reveal(at);
    this.list.draw();
  }

  private fill(element: HTMLElement, index: number): void {
    const row = this.runs.head.calls[index];
    const [name, bar, error] = element.children as unknown as HTMLElement[];
    const selected = row === this.runs.selected;
    element.className = `row${this.runs.beyond[row] ? " beyond" : ""}${selected ? " selected" : ""}`;
    element.ariaSelected = String(selected);
    name.textContent = this.runs.title(row);
    name.title = name.textContent;
    bar.style.setProperty("--share", `${(100 * errorShare(this.runs.error[row])).toFixed(1)}%`);
    error.textContent = errorText(this.runs.error[row]);
  }
}

function makeRow(): HTMLElement {
  return h("div.row", { role: "option" }, h("span.name", null), h("span.bar-track", null), h("span.apart", null));
}

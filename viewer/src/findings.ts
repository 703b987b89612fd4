// What to see first: the findings as the trace lists them, what was left out, the all-clear.

import { h, replace } from "./dom.ts";
import { clip, count } from "./format.ts";
import type { Finding } from "./head.ts";
import type { View } from "./state.ts";

const LOOKS = { error: "bad", warning: "warn", info: "info" };
/** Kinds that are no alarm, and yet not nothing: Inf that was meant, or reaches nobody. */
const MILD = new Set(["absorbed", "constant", "produced"]);

export class Findings {
  readonly element = h("section.findings", { label: "Findings" });
  private readonly more = h("div.more", { hidden: true });
  private shown = -1;

  constructor(private readonly view: View) {
    const { head } = view.trace;
    const chips = head.findings.map((finding, at) => (finding.kind === "crash" ? this.crash(finding) : this.chip(finding, at)));
    for (const text of head.left_out) chips.push(h("div.finding.warn", { role: "status" }, h("b", null, "Left out "), text));
    if (head.all_clear.length) chips.push(h("div.finding.fine", null, h("b", null, "✓ "), head.all_clear.join(" · ")));
    replace(this.element, h("div.chips", null, chips), this.more);
  }

  private crash(finding: Finding): HTMLElement {
    const go = finding.row >= 0 && h("button", { onclick: () => this.go(finding) }, "Go to it");
    return h("div.finding.crash", { role: "alert" }, h("span.message", null, clip(finding.text, 600)), go);
  }

  /** A finding in its colour; a click leads to its event and opens what there is to list. */
  private chip(finding: Finding, at: number): HTMLElement {
    const list = this.list(finding);
    const look = `finding ${finding.severity === "info" && MILD.has(finding.kind) ? "mild" : LOOKS[finding.severity]}`;
    if (!list.length && finding.row < 0) return h("div", { class: look }, h("span", null, finding.text));
    const chip = h("button", { class: look, "aria-expanded": list.length ? "false" : null, title: finding.row >= 0 ? "Go to it" : "List them", onclick: () => {
      this.go(finding);
      if (list.length) this.toggle(chip, at, list);
    } }, h("span", null, clip(finding.text, 300)));
    return chip;
  }

  private toggle(chip: HTMLElement, at: number, list: HTMLElement[]): void {
    const open = this.shown !== at;
    this.shown = open ? at : -1;
    this.more.hidden = !open;
    for (const other of this.element.querySelectorAll("[aria-expanded]")) other.ariaExpanded = "false";
    chip.ariaExpanded = String(open);
    if (open) replace(this.more, h("ul", null, list));
  }

  private go(finding: Finding): void {
    if (finding.row >= 0) this.view.choose(finding.row, "findings");
  }

  /** The gaps of the coverage, or where NaN and Inf of this kind come from. */
  private list(finding: Finding): HTMLElement[] {
    const { trace } = this.view;
    const { gaps, origins } = trace.head;
    if (finding.kind === "coverage") {
      return gaps.first.map(([what, where, why, remedy]) =>
        h("li", null, h("b", null, what), where && ` at ${where}`, `: ${why}. `, h("span.remedy", null, remedy)));
    }
    const mine = origins.filter((origin) => origin.kind === finding.kind && origin.severity === finding.severity && origin.row >= 0);
    const items = mine.map(({ row, what, hint }) => {
      const where = [trace.module(row), trace.siteText(row), hint].filter(Boolean).join(", ");
      return h("li", null, h("button", { class: "link", onclick: () => this.view.choose(row, "findings") }, `${what} at ${trace.label(row)}`, h("span.dim", null, ` ${where}`)));
    });
    const rest = finding.count - mine.length;
    if (items.length && rest > 0) items.push(h("li.dim", null, `${count(rest, "more", "more")}; t.nonfinite() lists them`));
    return items;
  }
}

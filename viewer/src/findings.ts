// What to see first: the findings as the trace lists them, what was left out, the all-clear.

import { h, replace } from "./dom.ts";
import { clip, count } from "./format.ts";
import type { Finding } from "./head.ts";
import type { View } from "./state.ts";

const LOOKS = { error: "bad", warning: "warn", info: "info" };

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
    return h("div.finding.crash", { role: "alert" }, h("span.message", null, clip(finding.text, 600)), this.go(finding));
  }

  /** A finding in its colour; it opens what there is to list, else leads to its event. */
  private chip(finding: Finding, at: number): HTMLElement {
    const list = this.list(finding);
    const look = `finding ${LOOKS[finding.severity]}`;
    if (!list.length) return h("div", { class: look }, h("span", null, finding.text), this.go(finding));
    const chip = h("button", { class: look, "aria-expanded": "false", onclick: () => {
      const open = this.shown !== at;
      this.shown = open ? at : -1;
      this.more.hidden = !open;
      for (const other of this.element.querySelectorAll("[aria-expanded]")) other.ariaExpanded = "false";
      chip.ariaExpanded = String(open);
      if (open) replace(this.more, h("ul", null, list));
    } }, h("span", null, clip(finding.text, 300)));
    return chip;
  }

  private go(finding: Finding): HTMLElement | false {
    return finding.row >= 0 && h("button", { onclick: () => this.view.choose(finding.row, "findings") }, "Go to it");
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

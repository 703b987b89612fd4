// What to see first: the crash, values that are not finite, what was not recorded or left out.

import { h, replace } from "./dom.ts";
import { clip, count } from "./format.ts";
import type { Crash } from "./head.ts";
import type { View } from "./state.ts";

export class Findings {
  readonly element = h("section.findings", { label: "Findings" });
  private readonly more = h("div.more", { hidden: true });
  private shown = "";

  constructor(private readonly view: View) {
    const { head } = view.trace;
    const chips: HTMLElement[] = [];
    for (const crash of head.crashes) chips.push(this.crash(crash));
    for (const text of head.left_out) chips.push(h("div.finding.warn", { role: "status" }, h("b", null, "Left out "), text));
    if (head.nonfinite.total) chips.push(this.nonfinite());
    if (head.gaps.total) chips.push(this.chip("gaps", "warn", `${count(head.gaps.total, "coverage gap")}`, "what could not be seen, and what to do", () => this.gapList()));
    if (!head.crashes.length && !head.nonfinite.total) chips.push(this.fine());
    replace(this.element, h("div.chips", null, chips), this.more);
  }

  private crash(crash: Crash): HTMLElement {
    const { trace } = this.view;
    const at = crash.row >= 0 ? `${trace.label(crash.row)}${trace.module(crash.row) ? ` in ${trace.module(crash.row)}` : ""}${trace.siteText(crash.row) ? `, ${trace.siteText(crash.row)}` : ""}` : "";
    return h("div.finding.crash", { role: "alert" },
      h("b", null, trace.ranks.length > 1 ? `Rank ${crash.rank} crashed ` : "Crashed "), h("span.message", null, clip(crash.text, 400)),
      crash.row >= 0 && h("button", { onclick: () => this.view.choose(crash.row, "findings") }, `Go to ${at}`));
  }

  private nonfinite(): HTMLElement {
    const { nonfinite } = this.view.trace.head;
    return this.chip("nonfinite", "bad", `${count(nonfinite.total, "op")} made NaN or Inf`, "from finite inputs", () => {
      const { trace } = this.view;
      return nonfinite.first.filter((f) => f.row >= 0).map((f) => this.entry(f.row, `${f.kind} from ${trace.label(f.row)}`, [trace.module(f.row), trace.siteText(f.row)].filter(Boolean).join(", ")));
    });
  }

  private gapList(): HTMLElement[] {
    return this.view.trace.head.gaps.first.map(([what, where, why, remedy]) =>
      h("li", null, h("b", null, what), where && ` at ${where}`, `: ${why}. `, h("span.remedy", null, remedy)));
  }

  private entry(row: number, text: string, where: string): HTMLElement {
    return h("li", null, h("button", { class: "link", onclick: () => this.view.choose(row, "findings") }, text, h("span.dim", null, ` ${where}`)));
  }

  private chip(key: string, look: string, text: string, hint: string, list: () => HTMLElement[]): HTMLElement {
    const chip = h("button", { class: `finding ${look}`, "aria-expanded": "false", onclick: () => {
      const open = this.shown !== key;
      this.shown = open ? key : "";
      this.more.hidden = !open;
      for (const other of this.element.querySelectorAll("[aria-expanded]")) other.ariaExpanded = "false";
      chip.ariaExpanded = String(open);
      if (open) replace(this.more, h("ul", null, list()));
    } }, h("b", null, text), h("span", null, hint));
    return chip;
  }

  private fine(): HTMLElement {
    const { head } = this.view.trace;
    const checked = ["no crash", head.nonfinite.known ? "no NaN or Inf" : "NaN and Inf not checked: no values recorded", head.gaps.total ? "" : "no coverage gaps"];
    return h("div.finding.fine", null, h("b", null, "✓ "), checked.filter(Boolean).join(" · "));
  }
}

// One pane at a time where the screen has no room for all of them: tabs to choose it. On a large screen
// all panes are in sight, and the choice means nothing.

import { h, on, stop } from "./dom.ts";

type Pane = [key: string, name: string, element: HTMLElement];

export class PaneTabs {
  readonly element = h("nav.panetabs", { role: "tablist", label: "Panes" });
  private readonly tabs = new Map<string, HTMLElement>();

  /** `chosen` is told when another pane is asked for, where there is a choice. */
  constructor(private readonly app: HTMLElement, panes: Pane[], private readonly chosen: (key: string) => void) {
    for (const [key, name, element] of panes) {
      element.dataset.part = key;
      const tab = h("button", { role: "tab", onclick: () => this.show(key) }, name);
      this.tabs.set(key, tab);
      this.element.append(tab);
    }
    on(this.element, "keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by) return;
      stop(event);
      const keys = [...this.tabs.keys()];
      const next = keys[(keys.indexOf(this.app.dataset.pane!) + by + keys.length) % keys.length];
      this.show(next);
      this.tabs.get(next)!.focus();
    });
    this.mark(panes[0][0]);
  }

  show(key: string): void {
    if (!this.tabs.has(key)) return;
    this.mark(key);
    if (this.element.checkVisibility()) this.chosen(key);
  }

  private mark(key: string): void {
    this.app.dataset.pane = key;
    for (const [each, tab] of this.tabs) {
      tab.ariaSelected = String(each === key);
      tab.tabIndex = each === key ? 0 : -1;
    }
  }
}

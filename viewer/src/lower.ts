// The lower pane: tabs with the timeline, layers by step, memory, gradients, and where the time goes.
// Each is built when it is first looked at.

import { button, h, on, replace, stop } from "./dom.ts";
import { Gradients } from "./gradients.ts";
import { HeatMap } from "./heatmap.ts";
import { MemoryChart } from "./memory.ts";
import { TimeRange } from "./range.ts";
import type { View } from "./state.ts";
import { Timeline } from "./timeline.ts";
import { Totals } from "./totals.ts";

export const TABS = ["timeline", "layers", "memory", "gradients", "totals"] as const;
export type Tab = (typeof TABS)[number];
const NAMES: Record<Tab, string> = { timeline: "Timeline", layers: "Layers × steps", memory: "Memory", gradients: "Gradients", totals: "Where it goes" };
const TALL = "62vh";

/** One tab: what it shows, what stands in the bar for it. */
interface Shown {
  element: HTMLElement;
  tools: HTMLElement;
  /** It has come into sight. */
  wake(): void;
  recolour?(): void;
}

export class Lower {
  readonly element: HTMLElement;
  private readonly range = new TimeRange();
  private readonly charts = new Map<Tab, Shown>();
  private readonly buttons: HTMLButtonElement[];
  private readonly panels: Record<string, HTMLElement> = {};
  private readonly toolPlace = h("span.toolplace", null);
  private readonly listeners: ((tab: Tab) => void)[] = [];
  private shown: Tab = "timeline";
  private usual = "";
  /** Totals of the chosen range, beside the timeline. */
  private beside: Totals | null = null;
  private readonly side = h("aside.side", { hidden: true, label: "Totals of the range" });

  constructor(private readonly view: View) {
    this.buttons = TABS.map((tab) => h("button", { role: "tab", id: `tab-${tab}`, "aria-controls": `panel-${tab}`, onclick: () => this.show(tab) }, NAMES[tab]));
    const panels = TABS.map((tab) => (this.panels[tab] = h("div.tabpanel", { role: "tabpanel", id: `panel-${tab}`, "aria-labelledby": `tab-${tab}`, hidden: true })));
    const taller = button("⤒", "Taller or as before", () => this.grow());
    this.element = h("section.pane.timeline.lower", { label: "Charts" },
      h("header.bar", null, h("div.tabs", { role: "tablist", label: "Charts" }, this.buttons), h("span.grow", null), this.toolPlace, taller), panels);
    on(this.element.querySelector(".tabs")!, "keydown", (event) => this.arrows(event));
    this.range.onChange(() => this.tellRange());
    this.show("timeline");
  }

  /** The tab that is shown. */
  get tab(): Tab {
    return this.shown;
  }

  /** Be told when another tab is shown. */
  onTab(listener: (tab: Tab) => void): void {
    this.listeners.push(listener);
  }

  /** Show a tab; a name that is none is ignored. */
  show(tab: string): void {
    if (!TABS.includes(tab as Tab)) return;
    const changed = this.shown !== tab;
    this.shown = tab as Tab;
    const chart = this.chart(this.shown);
    TABS.forEach((name, i) => {
      const mine = name === tab;
      this.panels[name].hidden = !mine;
      this.buttons[i].setAttribute("aria-selected", String(mine));
      this.buttons[i].tabIndex = mine ? 0 : -1;
    });
    replace(this.toolPlace, chart.tools);
    chart.wake();
    if (tab === "timeline") this.tellRange();
    if (changed) for (const listener of this.listeners) listener(this.shown);
  }

  /** Colours have changed. */
  recolour(): void {
    for (const chart of this.charts.values()) chart.recolour?.();
  }

  private chart(tab: Tab): Shown {
    let chart = this.charts.get(tab);
    if (!chart) {
      chart = this.made(tab);
      this.charts.set(tab, chart);
      this.panels[tab].append(chart.element);
      if (tab === "timeline") this.panels[tab].append(this.side);
    }
    return chart;
  }

  private made(tab: Tab): Shown {
    const { view, range } = this;
    if (tab === "timeline") return new Timeline(view, range);
    if (tab === "layers") return new HeatMap(view);
    if (tab === "memory") return new MemoryChart(view, range);
    if (tab === "gradients") return new Gradients(view);
    return new Totals(view, range, () => this.shown === "totals");
  }

  /** A chosen range has its totals beside the timeline. */
  private tellRange(): void {
    // Not while it is dragged: the timeline would shrink under the pointer.
    if (!this.range.moving) this.side.hidden = !this.range.chosen;
    if (this.side.hidden) return;
    if (!this.beside) {
      this.beside = new Totals(this.view, this.range, () => this.shown === "timeline" && !this.side.hidden);
      this.side.append(h("div.bar", null, this.beside.tools), this.beside.element);
    }
    this.beside.refresh();
  }

  private grow(): void {
    const { style } = document.documentElement;
    const before = style.getPropertyValue("--time");
    style.setProperty("--time", before === TALL ? this.usual : TALL);
    this.usual = before;
  }

  private arrows(event: KeyboardEvent): void {
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -TABS.length, End: TABS.length }[event.key];
    if (!by) return;
    const at = Math.max(0, Math.min(TABS.length - 1, TABS.indexOf(this.shown) + by));
    this.show(TABS[at]);
    this.buttons[at].focus();
    stop(event);
  }
}

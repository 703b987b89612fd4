// What charts of the lower pane have in common: a surface, tools for the bar, a legend, and figures
// that are shown beside the pointer and said to those who do not see them.

import { h, on, replace } from "./dom.ts";
import type { Column } from "./payload.ts";
import type { View } from "./state.ts";
import { type Pen, Surface } from "./surface.ts";

export abstract class Chart {
  readonly element: HTMLElement;
  readonly tools = h("span.tools", null);
  protected readonly surface: Surface;
  protected readonly legend = h("div.legendline", null);
  private readonly said = h("span.visually-hidden", { role: "status" });

  constructor(protected readonly view: View, private readonly id: string, label: string) {
    this.surface = new Surface(id, label, (pen) => this.paint(pen));
    this.element = h("div.chart", null, this.surface.element, this.legend, this.said);
  }

  protected abstract paint(pen: Pen): void;

  /** It has come into sight. */
  wake(): void {
    this.surface.draw();
  }

  recolour(): void {
    this.surface.recolour();
  }

  protected column(name: string): Column {
    return this.view.trace.column(`${this.id}.${name}`);
  }

  /** Say why there is nothing to draw. */
  protected nothing(why: string): void {
    this.surface.element.hidden = true;
    this.legend.classList.add("alone");
    replace(this.legend, h("p", null, why));
  }

  protected tell(x: number, y: number, lines: (string | HTMLElement)[]): void {
    this.surface.showTip(x, y, lines);
    this.said.textContent = lines.map((line) => (typeof line === "string" ? line : line.textContent)).join(", ");
  }
}

/** A list to choose one of several things from; nothing where there is only one. */
export function picker<T extends string | number>(label: string, options: [T, string][], chosen: T, act: (chosen: T) => void): HTMLElement | false {
  if (options.length < 2) return false;
  const select = h("select", { label }, options.map(([value, text]) => h("option", { value, selected: value === chosen }, text)));
  on(select, "change", () => act(options[select.selectedIndex][0]));
  return select;
}

/** A colour of a legend and what it means; the look is a class of the style sheet or a colour. */
export function swatch(text: string, cls: string, colour = ""): HTMLElement {
  const box = h("i", { class: cls });
  if (colour) box.style.background = colour;
  return h("span.swatch", null, box, text);
}

// A list of any length of which only the rows in sight are elements.

import { h, on, perFrame } from "./dom.ts";
import { fit } from "./fit.ts";
import { ceil, floor, max, min } from "./maths.ts";

// Browsers cut off elements taller than some ten million pixels.
const TALLEST = 8_000_000;
const SMALL = matchMedia("(max-width: 860px)");
// What may have less room than it needs.
const CELLS = "div:not([hidden]) > :is(.name, .cls, .shape, .stat, .note, code)";

export class VirtualList {
  readonly element: HTMLElement;
  private readonly space = h("div.space", null);
  private readonly layer = h("div.layer", { role: "presentation" });
  private pool: HTMLElement[] = [];
  private length = 0;
  private first = 0;
  private tall: number | null = null;

  constructor(
    private readonly least: number,
    private readonly make: () => HTMLElement,
    private readonly fill: (element: HTMLElement, index: number) => void,
    facts: Record<string, unknown>,
  ) {
    this.element = h("div.list", { tabindex: 0, ...facts }, this.space, this.layer);
    this.space.append(this.layer);
    on(this.element, "scroll", () => this.draw(), { passive: true });
    new ResizeObserver(perFrame(() => this.draw())).observe(this.element);
    on(SMALL, "change", () => {
      this.tall = null;
      this.setLength(this.length);
    });
  }

  /** How tall a row is: on a small screen tall enough for a finger, if the style sheet says so. */
  get rowHeight(): number {
    return max(this.least, this.finger);
  }

  private get finger(): number {
    this.tall ??= parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--finger")) || 0;
    return this.tall;
  }

  setLength(length: number): void {
    this.length = length;
    this.space.style.height = `${min(length * this.rowHeight, TALLEST)}px`;
    this.draw();
  }

  /** How many times the scroll bar stands for more than it can hold. */
  private get scale(): number {
    const full = this.length * this.rowHeight;
    return full > TALLEST ? full / TALLEST : 1;
  }

  get visible(): number {
    return max(1, floor(this.element.clientHeight / this.rowHeight));
  }

  draw(): void {
    const shown = ceil(this.element.clientHeight / this.rowHeight) + 2;
    const top = this.element.scrollTop * this.scale;
    const most = max(0, this.length - shown + 2);
    this.first = min(floor(top / this.rowHeight), most);
    const offset = this.scale === 1 ? this.first * this.rowHeight : this.element.scrollTop;
    this.layer.style.transform = `translateY(${offset}px)`;
    while (this.pool.length < shown) {
      const row = this.make();
      this.pool.push(row);
      this.layer.append(row);
    }
    for (let i = 0; i < this.pool.length; i++) {
      const index = this.first + i;
      const there = i < shown && index < this.length;
      this.pool[i].hidden = !there;
      if (there) {
        this.pool[i].dataset.index = String(index);
        this.fill(this.pool[i], index);
      }
    }
    fit(this.layer.querySelectorAll(CELLS));
  }

  /** The index of the row that an element inside the list belongs to. */
  indexOf(target: EventTarget | null): number {
    const row = (target as HTMLElement | null)?.closest<HTMLElement>("[data-index]");
    return row && this.layer.contains(row) ? Number(row.dataset.index) : -1;
  }

  reveal(index: number, middle = false): void {
    const height = this.element.clientHeight;
    const top = index * this.rowHeight;
    const at = this.element.scrollTop * this.scale;
    if (top >= at && top + this.rowHeight <= at + height) return;
    const wanted = middle || top < at - height || top > at + 2 * height
      ? top - height / 2 + this.rowHeight
      : top < at ? top : top + this.rowHeight - height;
    this.element.scrollTop = max(0, wanted) / this.scale;
    this.draw();
  }
}

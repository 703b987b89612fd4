// A canvas the size of its pane over a content of any size, which scrolls; colours of the style
// sheet; a box with figures beside the pointer. The charts of the lower pane draw on it.

import { h, on, perFrame, replace } from "./dom.ts";
import { max, min, round } from "./maths.ts";

export type Pen = CanvasRenderingContext2D;

/** No colours of values: these mean what is wrong. */
export const NAN = "rgb(214, 0, 40)";
export const INF = "rgb(255, 128, 0)";

export class Surface {
  readonly element = h("div.surface", null);
  readonly tip = h("div.tip", { hidden: true });
  readonly canvas: HTMLCanvasElement;
  width = 0;
  height = 0;
  private readonly holder: HTMLElement;
  private readonly space = h("div.extent", null);
  private readonly colours = new Map<string, string>();
  private readonly inks = new Map<string, string>();

  /** Draw again in the next frame. */
  readonly draw: () => void;

  /** `paint` draws what is in sight, at `left` and `top` of the content. */
  constructor(id: string, label: string, private readonly paint: (pen: Pen) => void) {
    this.canvas = h("canvas", { tabindex: 0, id, role: "application", label });
    this.holder = h("div.holder", null, this.canvas, this.space);
    this.element.append(this.holder, this.tip);
    this.draw = perFrame(() => this.repaint());
    new ResizeObserver(() => this.draw()).observe(this.holder);
    on(this.holder, "scroll", () => this.draw());
    on(this.canvas, "pointerleave", () => this.hideTip());
    on(this.canvas, "blur", () => this.hideTip());
  }

  get left(): number {
    return this.holder.scrollLeft;
  }

  get top(): number {
    return this.holder.scrollTop;
  }

  /** Whether there is more than fits. */
  get scrolls(): boolean {
    return this.holder.scrollHeight > this.holder.clientHeight + 1;
  }

  /** How large the content is; 0 where it is as large as the pane. */
  extent(width: number, height: number): void {
    this.space.style.width = `${max(1, round(width))}px`;
    this.space.style.height = `${max(1, round(height))}px`;
  }

  /** Bring a part of the content into sight; `margin` is covered by what does not scroll. */
  reveal(x: number, y: number, width: number, height: number, marginX = 0, marginY = 0): void {
    const { holder } = this;
    if (y - marginY < holder.scrollTop) holder.scrollTop = y - marginY;
    else if (y + height > holder.scrollTop + this.height) holder.scrollTop = y + height - this.height;
    if (x - marginX < holder.scrollLeft) holder.scrollLeft = x - marginX;
    else if (x + width > holder.scrollLeft + this.width) holder.scrollLeft = x + width - this.width;
  }

  recolour(): void {
    this.colours.clear();
    this.inks.clear();
    this.draw();
  }

  /** A colour of the style sheet, as the current theme has it. */
  colour(name: string): string {
    let found = this.colours.get(name);
    if (!found) {
      // Only a colour in use tells which of the two, light or dark, it is.
      this.space.style.color = `var(--${name})`;
      found = getComputedStyle(this.space).color;
      this.colours.set(name, found);
    }
    return found;
  }

  /** Black or white, whichever can be read on a colour: one of them has a contrast of 4.5. */
  ink(colour: string): string {
    let found = this.inks.get(colour);
    if (!found) {
      const [red, green, blue] = (colour.match(/[\d.]+/g) ?? []).map(Number);
      const light = (c: number) => (c <= 10 ? c / 3295 : ((c / 255 + 0.055) / 1.055) ** 2.4);
      const bright = 0.2126 * light(red) + 0.7152 * light(green) + 0.0722 * light(blue);
      found = bright > 0.179 ? "#000" : "#fff";
      this.inks.set(colour, found);
    }
    return found;
  }

  /** Where the pointer is, in the canvas. */
  at(event: MouseEvent): [x: number, y: number] {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  /** Show lines of text beside a point of the canvas. */
  showTip(x: number, y: number, lines: (string | HTMLElement)[]): void {
    const { tip } = this;
    replace(tip, lines.map((line) => (typeof line === "string" ? h("div", null, line) : line)));
    tip.hidden = false;
    const canvas = this.canvas.getBoundingClientRect();
    const wide = tip.offsetWidth;
    const tall = tip.offsetHeight;
    const left = canvas.left + x + 14;
    const top = canvas.top + y + 16;
    tip.style.left = `${round(max(4, left + wide > innerWidth - 6 ? canvas.left + x - wide - 10 : left))}px`;
    tip.style.top = `${round(max(4, min(top, innerHeight - tall - 6)))}px`;
  }

  hideTip(): void {
    this.tip.hidden = true;
  }

  private repaint(): void {
    const { holder, canvas } = this;
    const width = holder.clientWidth;
    const height = holder.clientHeight;
    if (!width || !height) return;
    const ratio = devicePixelRatio || 1;
    this.width = width;
    this.height = height;
    if (canvas.width !== round(width * ratio) || canvas.height !== round(height * ratio)) {
      canvas.width = round(width * ratio);
      canvas.height = round(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    const pen = canvas.getContext("2d")!;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    this.paint(pen);
  }
}

/** Text that ends with … where it does not fit. */
export function fitted(pen: Pen, text: string, room: number): string {
  if (pen.measureText(text).width <= room) return text;
  let low = 0;
  let high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (pen.measureText(text.slice(0, middle) + "…").width <= room) low = middle;
    else high = middle - 1;
  }
  return low ? text.slice(0, low) + "…" : "";
}

/** The steps of an axis: 1, 2 or 5 times a power of ten, no smaller than `rough`. */
export function roundStep(rough: number): number {
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((m) => m * power >= rough * 0.999)!;
}

/** Grey stripes for what was not taken. */
export function hatch(pen: Pen, x: number, y: number, width: number, height: number, colour: string): void {
  pen.save();
  pen.beginPath();
  pen.rect(x, y, width, height);
  pen.clip();
  pen.strokeStyle = colour;
  pen.lineWidth = 1;
  pen.beginPath();
  // The stripes of neighbours meet.
  const first = Math.floor((x - height) / 5) * 5 + (y % 5);
  for (let at = first; at < x + width; at += 5) {
    pen.moveTo(at, y + height);
    pen.lineTo(at + height, y);
  }
  pen.stroke();
  pen.restore();
}

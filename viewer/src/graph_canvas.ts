// The surface on which a graph is drawn: drag to pan, wheel to zoom at the pointer, fit, a small map.

import { h, on, r, s, stop } from "./dom.ts";
import type { Picture, Rect } from "./layout_shapes.ts";
import { max, min } from "./maths.ts";

const LEAST = 0.05;
const MOST = 4;
const MARGIN = 16;
const MAP: [number, number] = [150, 190];

export class Canvas {
  readonly element: HTMLElement;
  readonly svg = s("svg.graph.clew", { role: "group", label: "Data flow" });
  readonly group = s("g.drawn");
  /** Whether the pointer has moved since it went down, so that a click is none. */
  moved = false;
  private x = MARGIN;
  private y = MARGIN;
  zoom = 1;
  private size: [number, number] = [1, 1];
  private readonly map = s("svg.minimap.clew", { label: "Map of the graph", role: "img" });
  private readonly mapped = s("g");
  private readonly window = s("rect.window");

  constructor() {
    this.svg.append(this.group);
    this.map.append(this.mapped, this.window);
    this.element = h("div.canvas", { tabindex: 0, id: "graph", role: "region", label: "Data-flow graph: arrows move, Enter opens, Page Up and Down pick a layer" }, this.svg, this.map);
    on(this.svg, "wheel", (event) => this.wheel(event), { passive: false });
    on(this.svg, "pointerdown", (event) => this.drag(event));
    on(this.map, "pointerdown", (event) => this.dragMap(event));
    new ResizeObserver(() => this.apply()).observe(this.element);
  }

  get width(): number {
    return this.element.clientWidth;
  }

  get height(): number {
    return this.element.clientHeight;
  }

  /** Take the size of a new picture, and draw its map. */
  take(picture: Picture, rects: [css: string, rect: Rect][]): void {
    this.size = [max(1, picture.width), max(1, picture.height)];
    const scale = min(MAP[0] / this.size[0], min(MAP[1], max(60, this.height * 0.55)) / this.size[1]);
    this.map.setAttribute("width", String(r(this.size[0] * scale)));
    this.map.setAttribute("height", String(r(this.size[1] * scale)));
    this.map.setAttribute("viewBox", `0 0 ${r(this.size[0])} ${r(this.size[1])}`);
    this.mapped.replaceChildren(...rects.map(([css, { x, y, width, height }]) => s("rect", { class: css, x: r(x), y: r(y), width: r(width), height: r(height) })));
    this.apply();
  }

  /** Show all of it. */
  fit(): void {
    const across = (this.width - 2 * MARGIN) / this.size[0];
    const down = (this.height - 2 * MARGIN) / this.size[1];
    this.zoom = bounded(min(1.5, across, down));
    this.x = max(MARGIN, this.middle(0));
    this.y = max(MARGIN, this.middle(1));
    this.apply();
  }

  /** Show the beginning in a size that can be read: the whole width, or height of what leads right. */
  start(right: boolean): void {
    const [room, size] = right ? [this.height, this.size[1]] : [this.width, this.size[0]];
    this.zoom = bounded(max(0.6, min(1, (room - 2 * MARGIN) / size)));
    this.x = right ? MARGIN : this.middle(0);
    this.y = right ? this.middle(1) : MARGIN;
    this.apply();
  }

  /** Where the picture begins if it lies in the middle. */
  private middle(axis: 0 | 1): number {
    return ((axis ? this.height : this.width) - this.size[axis] * this.zoom) / 2;
  }

  /** Zoom so that a place on the screen, else the middle, stays where it is. */
  scale(by: number, atX = this.width / 2, atY = this.height / 2): void {
    const zoom = bounded(this.zoom * by);
    this.x = atX - ((atX - this.x) * zoom) / this.zoom;
    this.y = atY - ((atY - this.y) * zoom) / this.zoom;
    this.zoom = zoom;
    this.apply();
  }

  pan(dx: number, dy: number): void {
    this.x += dx;
    this.y += dy;
    this.apply();
  }

  /** Where a place of the picture is on the screen. */
  onScreen(x: number, y: number): [number, number] {
    return [this.x + x * this.zoom, this.y + y * this.zoom];
  }

  /** Move a rectangle into sight, if it is not; of a large one the beginning. */
  reveal({ x, y, width, height }: Rect): void {
    const [left, top] = this.onScreen(x, y);
    const wide = min(width * this.zoom, this.width - 2 * MARGIN);
    const high = min(height * this.zoom, 90);
    if (left < 0 || left + wide > this.width) this.x += (this.width - wide) / 2 - left;
    if (top < 0 || top + high > this.height) this.y += max(MARGIN, (this.height - high) / 2.5) - top;
    this.apply();
  }

  private apply(): void {
    if (!this.width) return;
    this.group.setAttribute("transform", `translate(${r(this.x)} ${r(this.y)}) scale(${Math.round(this.zoom * 1000) / 1000})`);
    const [x, y] = [-this.x / this.zoom, -this.y / this.zoom];
    const [width, height] = [this.width / this.zoom, this.height / this.zoom];
    const all = x <= 0 && y <= 0 && x + width >= this.size[0] && y + height >= this.size[1];
    this.map.classList.toggle("idle", all);
    const [left, top] = [max(0, x), max(0, y)];
    for (const [name, n] of [["x", left], ["y", top], ["width", max(0, min(this.size[0], x + width) - left)], ["height", max(0, min(this.size[1], y + height) - top)]] as const) {
      this.window.setAttribute(name, String(r(n)));
    }
  }

  private wheel(event: WheelEvent): void {
    stop(event);
    const { left, top } = this.element.getBoundingClientRect();
    if (event.shiftKey) return this.pan(-(event.deltaX || event.deltaY), 0);
    const unit = event.deltaMode ? 30 : 1;
    this.scale(Math.exp(-max(-300, min(300, event.deltaY * unit)) / (event.ctrlKey ? 120 : 400)), event.clientX - left, event.clientY - top);
  }

  private drag(event: PointerEvent): void {
    this.moved = false;
    if (event.button) return;
    let [x, y] = [event.clientX, event.clientY];
    follow(this.svg, event, (move) => {
      if (!this.moved && Math.hypot(move.clientX - x, move.clientY - y) < 4) return;
      this.moved = true;
      this.element.classList.add("dragged");
      this.pan(move.clientX - x, move.clientY - y);
      [x, y] = [move.clientX, move.clientY];
    }, () => this.element.classList.remove("dragged"));
  }

  private dragMap(event: PointerEvent): void {
    stop(event);
    const go = ({ clientX, clientY }: PointerEvent) => {
      const { left, top, width, height } = this.map.getBoundingClientRect();
      this.x = this.width / 2 - ((clientX - left) / width) * this.size[0] * this.zoom;
      this.y = this.height / 2 - ((clientY - top) / height) * this.size[1] * this.zoom;
      this.apply();
    };
    go(event);
    follow(this.map, event, go);
  }
}

function bounded(zoom: number): number {
  return min(MOST, max(LEAST, zoom));
}

/** Follow a pointer until it is let go. */
function follow(element: SVGElement, down: PointerEvent, move: (event: PointerEvent) => void, done = () => {}): void {
  const end = () => {
    element.removeEventListener("pointermove", act);
    done();
  };
  // Only a pointer that moves is taken: a click still goes to what is under it.
  const act = (event: Event) => {
    if (!element.hasPointerCapture(down.pointerId) && (event as PointerEvent).buttons) element.setPointerCapture(down.pointerId);
    move(event as PointerEvent);
  };
  element.addEventListener("pointermove", act);
  for (const name of ["pointerup", "pointercancel"]) element.addEventListener(name, end, { once: true });
}

// The bars between panes: drag them, or move them with the arrow keys. Their places are lengths of the
// style sheet, which the page's address keeps.

import { h, on, stop } from "./dom.ts";
import { max, round } from "./maths.ts";

/** Lengths that bars set, by their names in the page's address. */
export const SIZES = ["left", "right", "code", "time"];

export function setSize(name: string, size: number): void {
  if (size >= 0) document.documentElement.style.setProperty(`--${name}`, `${max(60, round(size))}px`);
}

/** A bar that sets a length of the style sheet; `sign` is -1 where the pane lies after it. `moved` is
 * told the new length once the bar is let go. */
export function splitter(along: "row" | "column", name: string, sign = along === "row" ? -1 : 1, moved: (name: string, size: number) => void = () => undefined): HTMLElement {
  const bar = h("div", { class: `splitter ${along}`, role: "separator", tabindex: 0, "aria-orientation": along === "row" ? "horizontal" : "vertical", label: "Resize" });
  const now = () => parseFloat(getComputedStyle(document.documentElement).getPropertyValue(name));
  const set = (size: number) => setSize(name.slice(2), size);
  const done = () => moved(name.slice(2), now());
  on(bar, "pointerdown", (event) => {
    const start = along === "row" ? event.clientY : event.clientX;
    const size = now();
    bar.setPointerCapture(event.pointerId);
    const move = (to: PointerEvent) => set(size + sign * ((along === "row" ? to.clientY : to.clientX) - start));
    on(bar, "pointermove", move);
    on(bar, "pointerup", () => {
      bar.removeEventListener("pointermove", move);
      done();
    }, { once: true });
  });
  on(bar, "keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (!by) return;
    set(now() + sign * by * 20);
    done();
    stop(event);
  });
  return bar;
}

// The bars between panes: drag them, or move them with the arrow keys.

import { h, on, stop } from "./dom.ts";
import { max, round } from "./maths.ts";

/** A bar that sets a length of the style sheet; `sign` is -1 where the pane lies after it. */
export function splitter(along: "row" | "column", name: string, sign = along === "row" ? -1 : 1): HTMLElement {
  const bar = h("div", { class: `splitter ${along}`, role: "separator", tabindex: 0, "aria-orientation": along === "row" ? "horizontal" : "vertical", label: "Resize" });
  const root = document.documentElement;
  const now = () => parseFloat(getComputedStyle(root).getPropertyValue(name));
  const set = (size: number) => root.style.setProperty(name, `${max(60, round(size))}px`);
  on(bar, "pointerdown", (event) => {
    const start = along === "row" ? event.clientY : event.clientX;
    const size = now();
    bar.setPointerCapture(event.pointerId);
    const move = (to: PointerEvent) => set(size + sign * ((along === "row" ? to.clientY : to.clientX) - start));
    on(bar, "pointermove", move);
    on(bar, "pointerup", () => bar.removeEventListener("pointermove", move), { once: true });
  });
  on(bar, "keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (!by) return;
    set(now() + sign * by * 20);
    stop(event);
  });
  return bar;
}

// The bars between panes: drag them, or move them with the arrow keys.

import { h } from "./dom.ts";

/** A bar that sets a length of the style sheet; `sign` is -1 where the pane lies after it. */
export function splitter(along: "row" | "column", name: string, sign = along === "row" ? -1 : 1): HTMLElement {
  const bar = h("div", { class: `splitter ${along}`, role: "separator", tabindex: 0, "aria-orientation": along === "row" ? "horizontal" : "vertical", "aria-label": "Resize" });
  const root = document.documentElement;
  const now = () => parseFloat(getComputedStyle(root).getPropertyValue(name));
  const set = (size: number) => root.style.setProperty(name, `${Math.max(60, Math.round(size))}px`);
  bar.addEventListener("pointerdown", (event) => {
    const start = along === "row" ? event.clientY : event.clientX;
    const size = now();
    bar.setPointerCapture(event.pointerId);
    const move = (to: PointerEvent) => set(size + sign * ((along === "row" ? to.clientY : to.clientX) - start));
    bar.addEventListener("pointermove", move);
    bar.addEventListener("pointerup", () => bar.removeEventListener("pointermove", move), { once: true });
  });
  bar.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    if (!by) return;
    set(now() + sign * by * 20);
    event.preventDefault();
    event.stopPropagation();
  });
  return bar;
}

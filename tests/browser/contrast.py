"""How well texts stand out from what is behind them, by the measure of WCAG 2."""

from __future__ import annotations

from tests.browser.page import Page

LEAST = 4.5

# Colours are read by painting them, as a browser writes mixed ones in other ways.
_CODE = """(() => {
  const pen = Object.assign(document.createElement("canvas"), { width: 1, height: 1 })
    .getContext("2d", { willReadFrequently: true });
  const over = (below, colour, opacity) => {
    pen.globalAlpha = 1;
    pen.fillStyle = `rgb(${below.join(",")})`;
    pen.fillRect(0, 0, 1, 1);
    pen.globalAlpha = opacity;
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((c) => c / 255)
      .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = new Map();
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    const box = element.getBoundingClientRect();
    if (!texts.currentNode.textContent.trim() || !box.width || !box.height) continue;
    const away = "[hidden], script, style, noscript, dialog:not([open]), :disabled";
    if (element.closest(away)) continue;
    const drawn = element.closest("svg");
    // What lies behind the texts of the graph are boxes, which are not around them.
    if (drawn && !drawn.closest(".details")) continue;
    const around = [];
    for (let at = element; at; at = at.parentElement) around.unshift(getComputedStyle(at));
    let behind = [255, 255, 255];
    let opacity = 1;
    for (const style of around) {
      opacity *= Number(style.opacity);
      behind = over(behind, style.backgroundColor, opacity);
    }
    const ink = drawn ? around.at(-1).fill : around.at(-1).color;
    const [x, y] = [over(behind, ink, opacity), behind].map(light);
    const contrast = (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
    const text = `${texts.currentNode.textContent.slice(0, 40)} ${contrast.toFixed(2)}`;
    if (contrast < %s) found.set(element.localName + element.className, text);
  }
  return [...found].map(([name, text]) => `${name} ${text}`);
})()"""


def poor(page: Page) -> list[str]:
    """Return the texts in sight that stand out too little, one of each kind."""
    return list(page.evaluate(_CODE % LEAST))

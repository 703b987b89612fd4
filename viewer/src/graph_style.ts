// The colours of the graph come with the data, from `clew/views/graph/stylesheet.py`, for light and
// dark pages; here they are made those of the page.

import type { GraphHead } from "./graph_model.ts";
import { currentTheme } from "./theme.ts";

/** The style sheet for the page as it is. */
export function currentStyle({ style }: GraphHead): string {
  return currentTheme() === "dark" ? style.dark : style.light;
}

/** Keep the style of the page's graphs that of its theme. */
export function followTheme(head: GraphHead): void {
  const sheet = new CSSStyleSheet();
  const apply = () => sheet.replaceSync(currentStyle(head));
  apply();
  document.adoptedStyleSheets = [sheet, ...document.adoptedStyleSheets];
  new MutationObserver(apply).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", apply);
}

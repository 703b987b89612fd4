// The list of keys.

import { button, h, on } from "./dom.ts";

const KEYS: [string, string][] = [
  ["↑ ↓ ← →", "move, open and close; in the graph along the edges"],
  ["/", "search for an address or any text"],
  ["n  p", "next and previous match, after Enter in the search field"],
  ["Esc", "close the list of matches, end the search"],
  ["[  ]", "the same call in other steps, ranks, rounds"],
  ["u", "up to the call it ran in"],
  ["*", "open one level more"],
  ["Enter", "open or close the selected node"],
  ["f c o w r", "graph: fit, collapse all, open one level more, whole page, turn"],
  ["PgUp PgDn", "graph: the layer before and after, of a stack"],
  ["z  +  −  0", "timeline: zoom to the selection, in, out, all"],
  ["r  Esc", "timeline: totals of what is in sight, of all"],
  ["1 … 5", "to the tree, graph, source, details, charts"],
  ["d", "dark or light"],
  ["?", "this list"],
];
const ADDRESSES: [string, string][] = [
  ["blocks.*.attn#2", "a module's third call; ** any number of segments"],
  ["blocks.0:in.mask", "a value by its place in the arguments"],
  ["op:aten._softmax*", "operations by name"],
  ["line:model.py:57", "what a source line ran"],
];

export function help(): HTMLDialogElement {
  return keyList([["Keys", KEYS], ["Search", ADDRESSES]]);
}

/** A dialog with tables of keys or signs, each under its title. */
export function keyList(tables: [title: string, pairs: [string, string][]][]): HTMLDialogElement {
  const table = (pairs: [string, string][]) => h("table", null, h("tbody", null, pairs.map(([key, text]) => h("tr", null, h("th", { scope: "row" }, h("kbd", null, key)), h("td", null, text)))));
  const dialog = h("dialog.help", { label: "Keys" }, tables.flatMap(([title, pairs]) => [h("h2", null, title), table(pairs)]),
    h("p.dim", null, "The page's address holds what you see: copy it to link to it. Nothing is sent or loaded."),
    button("Close", "Close", () => dialog.close(), "primary"));
  on(dialog, "click", (event) => { if (event.target === dialog) dialog.close(); });
  return dialog;
}

// Opens the page of a comparison: reads the payload, builds the panes, ties them together.

import { Comparison } from "./comparison.ts";
import { DiffCalls } from "./diff_calls.ts";
import { DiffDetails } from "./diff_details.ts";
import { DiffTree } from "./diff_tree.ts";
import { verdict } from "./diff_verdict.ts";
import { button, h, on, replace } from "./dom.ts";
import { keyList } from "./help.ts";
import { PageLink } from "./link.ts";
import { round } from "./maths.ts";
import { type Payload, readPayload } from "./payload.ts";
import { SearchBox } from "./searchbox.ts";
import { splitter } from "./splitter.ts";
import { currentTheme, nextTheme, setTheme } from "./theme.ts";
import type { Trace } from "./trace.ts";

const KEYS: [string, string][] = [
  ["↑ ↓ ← →", "move, open and close"],
  ["f", "to where the runs part"],
  ["[  ]", "the difference before and after"],
  ["x", "differences only"],
  ["/", "search for an address or any text"],
  ["n  p", "next and previous match"],
  ["u", "up to the call it is in"],
  ["*", "open one level more"],
  ["1  2  3", "to the runs, the modules, the details"],
  ["d", "dark or light"],
  ["?", "this list"],
];
const SIGNS: [string, string][] = [
  ["=", "matches: the results agree up to noise"],
  ["≠", "differs"],
  ["◀", "only in a; grey where its results are right all the same"],
  ["▶", "only in b"],
  ["◆", "the runs part here"],
];

async function main(): Promise<void> {
  const app = document.getElementById("app")!;
  try {
    const payload = await readPayload("clew-data");
    if (payload.head.format !== 1) throw new Error(`format ${payload.head.format} is not known to this viewer`);
    let values: Promise<Payload> | null = null;
    open(app, new Comparison(payload), () => (values ??= readPayload("clew-values")));
    document.documentElement.dataset.ready = String(round(performance.now()));
  } catch (error) {
    replace(app, h("div.broken", { role: "alert" }, h("h1", null, "This page cannot be opened"),
      h("p", null, String(error instanceof Error ? error.message : error)),
      h("p", null, "Make it again with clew.diff(a, b).html(path) or `clew diff a.clew b.clew --html out.html`.")));
    throw error;
  }
}

function open(app: HTMLElement, runs: Comparison, values: () => Promise<Payload>): void {
  const tree = new DiffTree(runs);
  const calls = new DiffCalls(runs);
  const details = new DiffDetails(runs, values);
  const searchBox = new SearchBox(runs, (rows) => tree.mark(rows), () => tree.focus(), (text) => address.keep("q", text));
  const dialog = keyList([["Keys", KEYS], ["Signs", SIGNS]]);
  const theme = button("☾", "Dark or light (d)", () => {
    theme.textContent = nextTheme() === "dark" ? "☀" : "☾";
    address.keep("theme", currentTheme());
  });
  const left = h("div.left", null, tree.element, runs.head.calls.length > 0 && [splitter("row", "--calls", -1), calls.element]);
  const address = link(runs, searchBox, tree);
  setTheme(address.get("theme"));
  theme.textContent = currentTheme() === "dark" ? "☀" : "☾";
  replace(app,
    h("header.top", null, h("h1", null, runs.head.title), h("span.summary", null, runs.sides.map((trace, side) => `${"ab"[side]}: ${about(trace)}`).join("  │  ")),
      searchBox.element, button("?", "Keys (?)", () => dialog.showModal()), theme),
    address.problem, verdict(runs), h("main.panes", null, left, splitter("column", "--left"), details.element), dialog);
  keys(runs, tree, calls, details, searchBox, dialog, theme);
  begin(runs, address);
  calls.begin();
  tree.focus();
}

function about(trace: Trace): string {
  const { name, torch, time, engine } = trace.head.environment;
  return [name, torch && `torch ${torch}`, engine, time && new Date(time * 1000).toISOString().slice(0, 16).replace("T", " ")].filter(Boolean).join(" · ");
}

function link(runs: Comparison, searchBox: SearchBox, tree: DiffTree): PageLink {
  const found = new PageLink((wanted) => {
    const text = wanted.get("q");
    if (text !== null && text !== searchBox.text) searchBox.set(text);
    if (wanted.has("only")) tree.differencesOnly = true;
    const address = wanted.get("at");
    if (address === null) return null;
    const row = runs.linked(address);
    if (row >= 0) runs.choose(row, "link");
    return row >= 0 ? null : address;
  });
  runs.onSelect((from) => {
    const at = runs.address(runs.selected);
    if (!at) return;
    found.keep("only", tree.differencesOnly ? "differences" : null);
    found.write({ at }, from);
  });
  return found;
}

/** Go where the address says, or else to where the runs part, or to the first call. */
function begin(runs: Comparison, address: PageLink): void {
  if (address.read()) return;
  const start = runs.head.first.row >= 0 ? runs.head.first.row : runs.kids(-1)[0];
  if (start !== undefined) runs.choose(start, "start");
}

function keys(runs: Comparison, tree: DiffTree, calls: DiffCalls, details: DiffDetails, searchBox: SearchBox, dialog: HTMLDialogElement, theme: HTMLElement): void {
  const difference = (by: number) => {
    for (let row = runs.selected + by; row >= 0 && row < runs.rows; row += by) {
      if (runs.harm[row] && !runs.hasKids(row)) return runs.choose(row, "keys");
    }
  };
  const acts: Record<string, () => void> = {
    "/": () => { searchBox.input.focus(); searchBox.input.select(); },
    "?": () => dialog.showModal(),
    f: () => { if (runs.head.first.row >= 0) runs.choose(runs.head.first.row, "keys"); },
    n: () => searchBox.step(1),
    p: () => searchBox.step(-1),
    "[": () => difference(-1),
    "]": () => difference(1),
    x: () => { tree.differencesOnly = !tree.differencesOnly; },
    u: () => { if (runs.parent(runs.selected) >= 0) runs.choose(runs.parent(runs.selected), "keys"); },
    d: () => theme.click(),
    1: () => tree.focus(),
    2: () => calls.focus(),
    3: () => details.focus(),
  };
  on(document, "keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
    if ((event.target as Element).matches?.("input:not([type=checkbox]), textarea, select")) return;
    const act = acts[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
}

void main();

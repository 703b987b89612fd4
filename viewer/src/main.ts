// Opens the report: reads the payload, builds the panes, ties them together.

import { search } from "./address.ts";
import { Code } from "./code.ts";
import { Details } from "./details.ts";
import { button, h, on, replace } from "./dom.ts";
import { Findings } from "./findings.ts";
import { fit } from "./fit.ts";
import { Graph } from "./graph.ts";
import { help } from "./help.ts";
import { PageLink } from "./link.ts";
import { Lower } from "./lower.ts";
import { round } from "./maths.ts";
import { type Payload, readPayload } from "./payload.ts";
import { PaneTabs } from "./phone.ts";
import { SearchBox, type Searched } from "./searchbox.ts";
import { printSheet } from "./sheet.ts";
import { setSize, SIZES, splitter } from "./splitter.ts";
import { View } from "./state.ts";
import { currentTheme, nextTheme, setTheme } from "./theme.ts";
import { Trace } from "./trace.ts";
import { Tree } from "./tree.ts";

async function main(): Promise<void> {
  const app = document.getElementById("app")!;
  try {
    const payload = await readPayload("clew-data");
    if (payload.head.format !== 1) throw new Error(`format ${payload.head.format} is not known to this viewer`);
    const { later } = payload.head;
    payload.pending = !!later;
    const traces = payload.head.traces.map((head, i) => new Trace(head, payload, `${i}.`));
    let values: Promise<Payload> | null = null;
    const view = new View(traces[0]);
    open(app, payload, view, () => (values ??= readPayload("clew-values")));
    document.documentElement.dataset.ready = String(round(performance.now()));
    if (later) await complete(app, view, payload);
  } catch (error) {
    replace(app, h("div.broken", { role: "alert" }, h("h1", null, "This report cannot be opened"),
      h("p", null, String(error instanceof Error ? error.message : error)),
      h("p", null, "Make it again with t.html(path) or `clew html run.clew`.")));
    throw error;
  }
}

/** Unpack what a long run has left for after the first picture, and show it. */
async function complete(app: HTMLElement, view: View, payload: Payload): Promise<void> {
  await new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)));
  try {
    payload.join(await readPayload("clew-later"));
    view.tell("loaded");
  } catch (error) {
    app.prepend(h("p.badlink", { role: "alert" }, `The statistics in this page cannot be read, the rest can: ${error instanceof Error ? error.message : error}`));
  }
  document.documentElement.dataset.complete = String(round(performance.now()));
}

function open(app: HTMLElement, payload: Payload, view: View, values: () => Promise<Payload>): void {
  const tree = new Tree(view);
  const graph = new Graph(view, payload);
  const code = new Code(view);
  const details = new Details(view, values);
  const lower = new Lower(view);
  const searchBox = new SearchBox(searched(view), (rows) => tree.mark(rows), () => tree.focus(), (text) => address.keep("q", text));
  const address = link(view, searchBox);
  const dialog = help();
  const theme = button("☾", "Dark or light (d)", () => address.keep("theme", nextTheme()));
  const recolour = () => {
    theme.textContent = currentTheme() === "dark" ? "☀" : "☾";
    lower.recolour();
  };
  on(theme, "click", recolour);
  on(matchMedia("(prefers-color-scheme: dark)"), "change", recolour);
  const moved = (name: string, size: number) => address.keep(name, String(size));
  const centre = h("div.centre", null, graph.element, splitter("row", "--code", -1, moved), code.element);
  const panes = h("main.panes", null, tree.element, splitter("column", "--left", 1, moved), centre, splitter("column", "--right", -1, moved), details.element);
  const tabs = new PaneTabs(app, [
    ["tree", "Tree", tree.element], ["graph", "Graph", graph.element], ["code", "Code", code.element],
    ["details", "Details", details.element], ["charts", "Charts", lower.element],
  ], (key) => address.keep("pane", key));
  const about = h("span.summary", null, summary(view.trace));
  const head = h("header.top", null, h("h1", null, view.trace.name), about, searchBox.element, button("?", "Keys (?)", () => dialog.showModal()), theme);
  const sheet = printSheet(view, about.textContent!, details.body);
  fitInto(head, about);
  replace(app, head, address.problem, new Findings(view).element, panes, splitter("row", "--time", -1, moved), lower.element, tabs.element, sheet, dialog);
  keys(view, searchBox, dialog, theme, tabs);
  setTheme(address.get("theme"));
  recolour();
  for (const name of SIZES) setSize(name, parseFloat(address.get(name) ?? ""));
  tabs.show(address.get("pane") ?? "");
  lower.show(address.get("tab") ?? "");
  lower.onTab((tab) => address.keep("tab", tab));
  begin(view, address);
  tree.focus();
}

/** Shorten a line of text in the head of the page where there is too little room for it. */
function fitInto(head: HTMLElement, line: HTMLElement): void {
  const whole = line.textContent!;
  new ResizeObserver(() => {
    line.textContent = whole;
    fit([line]);
  }).observe(head);
}

/** How the search field asks a trace. */
function searched(view: View): Searched {
  const { trace } = view;
  return {
    find: (text) => search(trace, text),
    describe: (row) => ({
      name: trace.isModule(row) ? trace.module(row) || trace.eventName(row) : trace.label(row),
      note: trace.isModule(row) ? trace.eventName(row) : (trace.module(row) ?? ""),
      shape: trace.output(row),
      where: [trace.steps.length > 1 && `step ${trace.step[row]}`, trace.ranks.length > 1 && `rank ${trace.rank[row]}`, trace.phase(row) !== "forward" && trace.phase(row), trace.siteText(row)].filter(Boolean).join(" · "),
    }),
    go: (row) => view.choose(row, "search"),
  };
}

function summary(trace: Trace): string {
  const { environment } = trace.head;
  return [
    ...trace.head.summary,
    environment.torch && `torch ${environment.torch}`,
    environment.time && new Date(environment.time * 1000).toISOString().slice(0, 16).replace("T", " ") + " UTC",
  ].filter(Boolean).join(" · ");
}

function link(view: View, searchBox: SearchBox): PageLink {
  const { trace } = view;
  const found = new PageLink((wanted) => {
    const address = wanted.get("at");
    const lacking = address && goTo(view, address, wanted);
    const text = wanted.get("q") ?? "";
    if (text !== searchBox.text) searchBox.set(text, view.row);
    return lacking || null;
  });
  view.onSelect((from) => {
    if (view.selected < 0) return;
    const { row, outline } = view;
    const selection: Record<string, string> = { at: trace.address(row) + role(view) };
    // A group is named by its first event and how far above that it lies.
    if (outline.isGroup(view.selected)) selection.up = String(outline.path(row).length - outline.path(view.selected).length);
    if (trace.ranks.length > 1) selection.rank = String(trace.rank[row]);
    found.write(selection, from);
  });
  return found;
}

/** Select what an address of the page names; the name of what is not there, else null. */
function goTo(view: View, address: string, wanted: URLSearchParams): string | null {
  const { trace } = view;
  const { rows, role, path } = search(trace, address);
  const rank = wanted.get("rank");
  const row = rows.find((r) => rank === null || trace.rank[r] === Number(rank));
  if (row === undefined) return rank === null ? address : `${address} of rank ${rank}`;
  const up = Number(wanted.get("up") ?? 0);
  const leaf = role && trace.leaves(row).find((l) => l.role === role && l.value >= 0 && (!path || l.path === path));
  view.choose(up > 0 ? (view.outline.path(row).at(-1 - up) ?? row) : row, "link", leaf && !up ? leaf.value : -1);
  return null;
}

/** Go where the address says; failing that to the worst finding, or the model's forward pass. */
function begin(view: View, address: PageLink): void {
  if (address.read()) return;
  if (view.trace.head.start >= 0) view.choose(view.trace.head.start, "start");
}

/** The part of the address that names the value that is looked at. */
function role(view: View): string {
  if (view.value < 0) return "";
  const leaf = view.trace.leaves(view.selected).find((l) => l.value === view.value);
  return leaf ? `:${leaf.role}${leaf.path ? `.${leaf.path}` : ""}` : "";
}

function keys(view: View, searchBox: SearchBox, dialog: HTMLDialogElement, theme: HTMLElement, tabs: PaneTabs): void {
  const to = (pane: string, place: string) => () => {
    tabs.show(pane);
    document.querySelector<HTMLElement>(place)?.focus({ preventScroll: true });
  };
  const beside = (by: number) => {
    if (view.selected < 0 || view.outline.isGroup(view.selected)) return;
    const rows = view.trace.history(view.selected);
    const next = rows[rows.indexOf(view.selected) + by];
    if (next !== undefined) view.scrub(next);
  };
  const acts: Record<string, () => void> = {
    "/": () => { searchBox.input.focus(); searchBox.input.select(); },
    "?": () => dialog.showModal(),
    n: () => searchBox.step(1),
    p: () => searchBox.step(-1),
    "[": () => beside(-1),
    "]": () => beside(1),
    d: () => theme.click(),
    u: () => { const above = view.outline.parent(view.selected); if (above >= 0) view.choose(above, "keys"); },
    1: to("tree", "#tree"),
    2: to("graph", "#graph"),
    3: to("code", "#code"),
    4: to("details", ".details .body"),
    5: to("charts", ".lower .tabpanel:not([hidden]) [tabindex]"),
    Escape: () => searchBox.escape(),
  };
  on(document, "keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
    if ((event.target as Element).matches?.("input, textarea, select")) return;
    const act = acts[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
}

void main();

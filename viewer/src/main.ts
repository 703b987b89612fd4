// Opens the report: reads the payload, builds the panes, ties them together.

import { search } from "./address.ts";
import { Code } from "./code.ts";
import { Details } from "./details.ts";
import { button, h, on, replace } from "./dom.ts";
import { Findings } from "./findings.ts";
import { Graph } from "./graph.ts";
import { help } from "./help.ts";
import { PageLink } from "./link.ts";
import { round } from "./maths.ts";
import { type Payload, readPayload } from "./payload.ts";
import { SearchBox, type Searched } from "./searchbox.ts";
import { splitter } from "./splitter.ts";
import { View } from "./state.ts";
import { currentTheme, nextTheme } from "./theme.ts";
import { Timeline } from "./timeline.ts";
import { Trace } from "./trace.ts";
import { Tree } from "./tree.ts";

async function main(): Promise<void> {
  const app = document.getElementById("app")!;
  try {
    const payload = await readPayload("clew-data");
    if (payload.head.format !== 1) throw new Error(`format ${payload.head.format} is not known to this viewer`);
    const traces = payload.head.traces.map((head, i) => new Trace(head, payload, `${i}.`));
    let values: Promise<Payload> | null = null;
    open(app, new View(traces[0]), () => (values ??= readPayload("clew-values")));
    document.documentElement.dataset.ready = String(round(performance.now()));
  } catch (error) {
    replace(app, h("div.broken", { role: "alert" }, h("h1", null, "This report cannot be opened"),
      h("p", null, String(error instanceof Error ? error.message : error)),
      h("p", null, "Make it again with t.html(path) or `clew html run.clew`.")));
    throw error;
  }
}

function open(app: HTMLElement, view: View, values: () => Promise<Payload>): void {
  const tree = new Tree(view);
  const graph = new Graph(view);
  const code = new Code(view);
  const details = new Details(view, values);
  const timeline = new Timeline(view);
  const searchBox = new SearchBox(searched(view), (rows) => tree.mark(rows), () => tree.focus());
  const address = link(view, searchBox);
  const dialog = help();
  const theme = button(currentTheme() === "dark" ? "☀" : "☾", "Dark or light (d)", () => {
    theme.textContent = nextTheme() === "dark" ? "☀" : "☾";
    timeline.recolour();
  });
  const centre = h("div.centre", null, graph.element, splitter("row", "--code"), code.element);
  const panes = h("main.panes", null, tree.element, splitter("column", "--left"), centre, splitter("column", "--right", -1), details.element);
  replace(app,
    h("header.top", null, h("h1", null, view.trace.name), h("span.summary", null, summary(view.trace)),
      searchBox.element, button("?", "Keys (?)", () => dialog.showModal()), theme),
    address.problem, new Findings(view).element, panes, splitter("row", "--time", -1), timeline.element, dialog);
  on(matchMedia("(prefers-color-scheme: dark)"), "change", () => timeline.recolour());
  keys(view, searchBox, dialog, theme, tree);
  begin(view, address);
  tree.focus();
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
    if (wanted.get("q") !== null && wanted.get("q") !== searchBox.text) searchBox.set(wanted.get("q")!);
    const address = wanted.get("at");
    if (!address) return null;
    const { rows, role, path } = search(trace, address);
    const rank = wanted.get("rank");
    const row = rows.find((r) => rank === null || trace.rank[r] === Number(rank));
    if (row === undefined) return rank === null ? address : `${address} of rank ${rank}`;
    const leaf = role && trace.leaves(row).find((l) => l.role === role && l.value >= 0 && (!path || l.path === path));
    view.choose(row, "link", leaf ? leaf.value : -1);
    return null;
  });
  view.onSelect((from) => {
    if (view.selected < 0 || view.outline.isGroup(view.selected)) return;
    const parts = new URLSearchParams();
    parts.set("at", trace.address(view.selected) + role(view));
    if (trace.ranks.length > 1) parts.set("rank", String(trace.rank[view.selected]));
    found.write(parts, from);
  });
  return found;
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

function keys(view: View, searchBox: SearchBox, dialog: HTMLDialogElement, theme: HTMLElement, tree: Tree): void {
  const beside = (by: number) => {
    if (view.selected < 0 || view.outline.isGroup(view.selected)) return;
    const rows = view.trace.history(view.selected);
    const next = rows[rows.indexOf(view.selected) + by];
    if (next !== undefined) view.choose(next, "keys");
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
    1: () => tree.focus(),
    2: () => document.getElementById("graph")!.focus(),
    3: () => document.getElementById("code")!.focus(),
    4: () => document.querySelector<HTMLElement>(".details .body")!.focus(),
    5: () => document.getElementById("timeline")!.focus(),
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

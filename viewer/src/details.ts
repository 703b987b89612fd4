// Everything about what is selected: facts, arguments and results, numbers, history.

import { histogram, numberOf, type Preview, PreviewReader, range } from "./charts.ts";
import { button, h, replace } from "./dom.ts";
import { clip, count, number, short, time } from "./format.ts";
import { History } from "./history.ts";
import type { Payload } from "./payload.ts";
import { plot } from "./plot.ts";
import type { View } from "./state.ts";
import { PER_PAGE, type Place, slicesOf, tiles } from "./tiles.ts";
import type { Leaf, Stats } from "./trace.ts";

const MOST_LEAVES = 40;
const MOST_USERS = 12;
const MOST_PLACES = 14;

export class Details {
  readonly element: HTMLElement;
  readonly body = h("div.body", { tabindex: 0, role: "region", label: "Details of the selection" });
  private reader: PreviewReader | null = null;
  private shown = -1;
  /** Where the pane is scrolled to as soon as everything is there. */
  private top = 0;
  private place: Place = { page: 0, channels: false };

  constructor(private readonly view: View, private readonly values: () => Promise<Payload>) {
    this.element = h("section.pane.details", { label: "Details" },
      h("header.bar", null, h("h2", null, "Details")), this.body);
    view.onSelect((from) => this.follow(from));
    this.show();
  }

  /** Show the selection. Another value of the same event, or the same call elsewhere, keeps its place. */
  private follow(from: string): void {
    const stays = from === "scrub" || this.view.selected === this.shown;
    const { scrollTop } = this.body;
    const stack = this.body.querySelector<HTMLDetailsElement>(".stack")?.open;
    const active = this.body.contains(document.activeElement) ? document.activeElement!.ariaLabel : null;
    this.shown = this.view.selected;
    if (!stays) this.place = { page: 0, channels: false };
    this.show();
    if (stays && stack) this.body.querySelector<HTMLDetailsElement>(".stack")!.open = true;
    this.body.scrollTop = this.top = stays ? scrollTop : 0;
    // The button or plot that was used is there again.
    if (active) ([...this.body.querySelectorAll<HTMLElement>("[aria-label]")].find((each) => each.ariaLabel === active) ?? this.body).focus({ preventScroll: true });
  }

  /** The room for charts. */
  private get width(): number {
    return Math.max(180, this.body.clientWidth - 28);
  }

  private show(): void {
    const { selected, outline } = this.view;
    if (selected < 0) return replace(this.body, h("p.empty", null, "Select something in the tree, the graph, the code or the timeline."));
    if (outline.isGroup(selected)) return this.showGroup(selected);
    this.showEvent(selected);
  }

  private showGroup(node: number): void {
    const { outline } = this.view;
    const group = outline.group(node);
    const kids = Array.from(outline.kids(node)).slice(0, 60);
    replace(this.body,
      h("div.title", null, h("h3", null, group.label), h("span.badge", null, group.kind)),
      facts([["holds", outline.summary(node)], ["phase", group.phase], ["time", `${time(outline.duration(node))} in all`]]),
      h("h4", null, "Inside"),
      h("ul.links", null, kids.map((kid) => h("li", null, this.link(kid)))));
  }

  /** A way to another event. */
  private link(node: number, text = ""): HTMLElement {
    const { outline, trace } = this.view;
    const name = text || outline.label(node);
    const where = outline.isGroup(node) ? "" : trace.isModule(node) ? trace.eventName(node) : (trace.module(node) ?? "");
    return h("button", { class: "link", onclick: () => this.view.choose(node, "details") },
      name, where && where !== name && h("span.dim", null, ` ${where}`));
  }

  private showEvent(row: number): void {
    const { trace } = this.view;
    const leaves = trace.leaves(row);
    const shown = this.shownValue(row, leaves);
    const history = new History(this.view, row, leaves.find((leaf) => leaf.value === shown && shown >= 0));
    replace(this.body,
      this.title(row),
      trace.failed(row) && h("pre.error", { role: "alert" }, trace.error(row) ?? ""),
      this.facts(row),
      this.table("Inputs", leaves.filter((l) => l.role === "in"), shown),
      this.table("Outputs", leaves.filter((l) => l.role === "out"), shown),
      shown >= 0 && this.numbers(row, shown, history),
      history.element(this.width),
      this.stack(row));
  }

  private shownValue(row: number, leaves: Leaf[]): number {
    const { value } = this.view;
    if (value >= 0 && leaves.some((l) => l.value === value)) return value;
    const out = leaves.find((l) => l.role === "out" && l.value >= 0);
    const first = out ?? (this.view.trace.failed(row) ? undefined : leaves.find((l) => l.value >= 0));
    return first ? first.value : -1;
  }

  private title(row: number): HTMLElement {
    const { trace } = this.view;
    const address = trace.address(row);
    const copy = button("copy", "Copy the address", () => {
      void navigator.clipboard?.writeText(address).then(() => (copy.textContent = "copied"), () => undefined);
    }, "copy");
    return h("div.title", null,
      h("h3", null, trace.isModule(row) ? trace.module(row) || trace.eventName(row) : trace.label(row)),
      h("div.badges", null, h("span", { class: `badge ${trace.kind(row)}` }, trace.kind(row)),
        h("span", { class: `badge ${trace.phase(row)}` }, trace.phase(row)),
        trace.nonfinite(row) && h("span.badge.bad", null, trace.nonfinite(row))),
      h("div.address", null, h("code", null, address), copy));
  }

  private facts(row: number): HTMLElement {
    const { trace } = this.view;
    const module = trace.module(row);
    const params = trace.isModule(row) && module !== null ? (trace.params.get(module) ?? 0) : 0;
    const above = trace.parent(row);
    const forward = trace.forward(row);
    const when = [trace.steps.length > 1 && `step ${trace.step[row]}`, trace.ranks.length > 1 && `rank ${trace.rank[row]}`, trace.head.threads.length > 1 && trace.thread(row)];
    const spent = trace.duration[row];
    return facts([
      ["class", trace.isModule(row) ? trace.eventName(row) : ""],
      ["op", trace.isOp(row) ? trace.eventName(row) : ""],
      ["in", above >= 0 ? this.link(above, trace.module(above) || trace.eventName(above)) : ""],
      ["backward of", forward >= 0 ? this.link(forward) : ""],
      ["parameters", params ? short(params) : ""],
      ["time", `${spent ? `${time(spent) || "did not end"}, from` : "at"} ${time(trace.start[row])}`],
      ["when", when.filter(Boolean).join(", ")],
      ["line", trace.siteText(row)],
    ]);
  }

  private table(title: string, leaves: Leaf[], shown: number): HTMLElement | null {
    if (!leaves.length) return null;
    const rows = leaves.slice(0, MOST_LEAVES).map((leaf) => this.leafRow(leaf, shown));
    const rest = leaves.length - MOST_LEAVES;
    return h("div", null, h("h4", null, title), h("table.leaves", null, h("tbody", null, rows)),
      rest > 0 && h("p.dim", null, `… ${rest} more`));
  }

  private leafRow(leaf: Leaf, shown: number): HTMLElement {
    const { trace } = this.view;
    if (leaf.value < 0) {
      return h("tr.constant", null, h("th", { scope: "row" }, leaf.path), h("td", { colspan: 2 }, leaf.constant ?? ""));
    }
    const value = leaf.value;
    const name = trace.valueName(value);
    const producer = trace.producer(value);
    const stats = trace.stats(value);
    const bad = stats && (stats.nan || stats.inf);
    const from = name || (leaf.role === "in" && producer >= 0 ? `← ${trace.label(producer)}` : "");
    const goes = leaf.role === "in" && producer >= 0 && !name;
    return h("tr", { class: value === shown ? "shown" : "" },
      h("th", { scope: "row" }, leaf.path || (leaf.role === "out" ? "result" : "0")),
      h("td", null, h("button", { class: "link shape", "aria-pressed": String(value === shown), title: "Show this value", onclick: () => this.view.choose(this.view.selected, "details", value) }, trace.valueText(value)),
        bad ? h("b.bad", null, stats.nan ? " NaN" : " Inf") : null),
      h("td.from", null, goes ? h("button", { class: "link", title: "Go to what made it", onclick: () => this.view.choose(producer, "details", value) }, clip(from, 28)) : h("span.dim", { title: from }, clip(from, 28))));
  }

  private numbers(row: number, value: number, history: History): HTMLElement {
    const { trace } = this.view;
    const stats = trace.stats(value);
    const meta = trace.meta(value);
    const pictures = h("div.pictures", null);
    const preview = trace.preview(value);
    if (preview >= 0) this.pictures(pictures, row, value, history);
    else if (stats) replace(pictures, range(stats));
    const users = Array.from(trace.consumers(value));
    return h("div.value", null,
      h("h4", null, "Value ", h("span.shape", null, trace.valueText(value)), trace.valueName(value) && h("span.dim", null, ` ${trace.valueName(value)}`)),
      pictures, stats ? statsTable(stats) : null,
      facts([
        ["memory", `${meta.device}, stride (${meta.stride ?? "?"})${trace.version(value) > 0 ? `, version ${trace.version(value)}` : ""}`],
        ["gradient", trace.needsGrad(value) ? "required" : ""],
        ["numbers", stats || preview >= 0 ? "" : "not recorded; clew.trace(values=\"stats\") takes them"],
      ]),
      users.length ? h("div.users", null, h("span.dim", null, `taken by ${count(users.length, "event")}: `),
        users.slice(0, MOST_USERS).map((user) => [this.link(user), " "]).flat(), users.length > MOST_USERS && `… ${users.length - MOST_USERS} more`) : null);
  }

  /** Fill in the pictures of a value: at once if the data has been unpacked before. */
  private pictures(into: HTMLElement, row: number, value: number, history: History): void {
    const { trace } = this.view;
    const { reader } = this;
    if (!reader) {
      void this.values().then((payload) => {
        this.reader ??= new PreviewReader(payload, trace.prefix);
        const { scrollTop } = this.body;
        this.pictures(into, row, value, history);
        this.body.scrollTop = Math.max(scrollTop, this.top);
      });
      return;
    }
    const preview = reader.read(trace.preview(value));
    const slices = slicesOf(trace.meta(value).shape, `${trace.eventName(row)} ${trace.isModule(row) ? (trace.module(row) ?? "") : ""}`);
    const film = h("div", null);
    const strip = () => replace(film, history.film(reader, this.place.page * PER_PAGE, slices));
    replace(into, histogram(preview),
      preview.rows === 1 ? preview.columns > 1 && curve(preview, this.width) : tiles(preview, slices, this.place, strip),
      h("p.dim", null, shownText(preview)), exact(preview), film);
    strip();
  }

  private stack(row: number): HTMLElement | null {
    const { trace } = this.view;
    const places = trace.stack(row).filter((place) => !place.library).reverse();
    if (places.length < 2) return null;
    return h("details.stack", null, h("summary", null, `Call stack, ${count(places.length, "line")}`),
      h("ol", null, places.slice(0, MOST_PLACES).map((place) => h("li", null, h("b", null, `${trace.fileName(place.file)}:${place.line}`), ` ${place.function}`))));
  }
}

function facts(pairs: [string, string | Node][]): HTMLElement {
  return h("dl.facts", null, pairs.filter(([, fact]) => fact).flatMap(([name, fact]) => [h("dt", null, name), h("dd", null, fact)]));
}

function statsTable(stats: Stats): HTMLElement {
  const share = (n: number) => (stats.count ? ` (${((100 * n) / stats.count).toFixed(n / stats.count < 0.001 ? 2 : 1)} %)` : "");
  const cell = (name: string, text: string, look = "") => h("div", { class: look }, h("span", null, name), h("b", null, text));
  const counts: [string, number][] = [["NaN", stats.nan], ["Inf", stats.inf], ["zeros", stats.zeros]];
  return h("div.stats", null,
    cell("min", number(stats.min)), cell("max", number(stats.max)), cell("mean", number(stats.mean)), cell("std", number(stats.std)), cell("norm", number(stats.norm)), cell("count", short(stats.count)),
    counts.filter(([, n]) => n > 0).map(([name, n]) => cell(name, short(n) + share(n), name === "zeros" ? "wide" : "wide bad")));
}

/** The values of one line as a curve. */
function curve(preview: Preview, width: number): HTMLElement | null {
  const points = Array.from(preview.cells, (cell, i) => ({ x: i * preview.poolColumns, y: numberOf(preview, cell), row: -1 }));
  return plot([{ name: "values", look: "a", points }], { label: "values", x: "index", width });
}

function shownText(preview: Preview): string {
  if (preview.rows === 1 && preview.columns === 1) return "";
  const pooled = preview.poolRows * preview.poolColumns > 1 ? `each cell the mean of ${preview.poolRows} × ${preview.poolColumns}` : "each cell one number";
  return `${preview.rows} × ${preview.columns}, ${pooled}`;
}

function exact({ numbers }: Preview): HTMLElement | null {
  if (!numbers.length) return null;
  return h("p.exact", null, Array.from(numbers).map((n) => (Number.isFinite(n) ? number(n) : String(n))).join("  "));
}

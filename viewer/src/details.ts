// Everything about what is selected: facts, arguments and results, numbers, history.

import { curve, heatMaps, histogram, line, PreviewReader, range, type Preview } from "./charts.ts";
import { button, h, replace } from "./dom.ts";
import { clip, count, number, short, time } from "./format.ts";
import { max, min } from "./maths.ts";
import type { Payload } from "./payload.ts";
import type { View } from "./state.ts";
import type { Leaf, Stats } from "./trace.ts";

const MOST_LEAVES = 40;
const MOST_USERS = 12;
const MOST_PLACES = 14;

export class Details {
  readonly element: HTMLElement;
  private readonly body = h("div.body", { tabindex: 0, role: "region", label: "Details of the selection" });
  private reader: PreviewReader | null = null;

  constructor(private readonly view: View, private readonly values: () => Promise<Payload>) {
    this.element = h("section.pane.details", { label: "Details" },
      h("header.bar", null, h("h2", null, "Details")), this.body);
    view.onSelect(() => this.show());
    this.show();
  }

  private show(): void {
    const { selected, outline } = this.view;
    this.body.scrollTop = 0;
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
    replace(this.body,
      this.title(row),
      trace.failed(row) && h("pre.error", { role: "alert" }, trace.error(row) ?? ""),
      this.facts(row),
      this.table("Inputs", leaves.filter((l) => l.role === "in"), shown),
      this.table("Outputs", leaves.filter((l) => l.role === "out"), shown),
      shown >= 0 && this.numbers(shown),
      this.history(row),
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
      h("td", null, h("button", { class: "link shape", "aria-pressed": value === shown, title: "Show this value", onclick: () => this.view.choose(this.view.selected, "details", value) }, trace.valueText(value)),
        bad ? h("b.bad", null, stats.nan ? " NaN" : " Inf") : null),
      h("td.from", null, goes ? h("button", { class: "link", title: "Go to what made it", onclick: () => this.view.choose(producer, "details", value) }, clip(from, 28)) : h("span.dim", { title: from }, clip(from, 28))));
  }

  private numbers(value: number): HTMLElement {
    const { trace } = this.view;
    const stats = trace.stats(value);
    const meta = trace.meta(value);
    const pictures = h("div.pictures", null);
    const preview = trace.preview(value);
    if (preview >= 0) void this.pictures(pictures, preview);
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

  private async pictures(into: HTMLElement, at: number): Promise<void> {
    this.reader ??= new PreviewReader(await this.values(), this.view.trace.prefix);
    const preview = this.reader.read(at);
    replace(into, histogram(preview), preview.rows === 1 ? preview.columns > 1 && line(preview) : heatMaps(preview), h("p.dim", null, shownText(preview)), exact(preview));
  }

  /** The same call in other steps, ranks and rounds. */
  private history(row: number): HTMLElement | null {
    const { trace } = this.view;
    const rows = trace.history(row);
    if (rows.length < 2) return null;
    const at = rows.indexOf(row);
    const spent = rows.map((r) => trace.duration[r]);
    const pick = (index: number) => this.view.choose(rows[index], "details");
    const plots: (Node | string)[] = [];
    const stats = rows.map((r) => {
      const value = trace.valuesOf(r, "out")[0];
      return value === undefined ? null : trace.stats(value);
    });
    if (stats.some(Boolean)) {
      const of = (pick: (one: Stats) => number) => stats.map((one) => (one ? pick(one) : NaN));
      plots.push(h("p.legend", null, h("i.a", null), "mean", h("i.b", null), "std"), plot([of((one) => one.mean), of((one) => one.std)], at, "mean and deviation", pick));
    }
    plots.push(h("p.legend", null, h("i.c", null), "time ", time(min(...spent.filter((n) => n >= 0))), " to ", time(max(...spent.filter((n) => n >= 0)))), plot([spent], at, "time", pick, "c"));
    return h("div.history", null,
      h("h4", null, `History `, h("span.dim", null, `${at + 1} of ${count(rows.length, "call")}`), " ",
        button("‹", "Previous call of the same ([)", () => at > 0 && pick(at - 1)), button("›", "Next call of the same (])", () => at + 1 < rows.length && pick(at + 1))),
      plots);
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

function plot(series: number[][], at: number, label: string, pick: (index: number) => void, look = ""): SVGElement {
  const all = series.flat().filter(Number.isFinite);
  return curve(series.map((values, i) => ({ values, look: look || "ab"[i] })), min(...all, 0), max(...all), label, at, pick);
}

function shownText(preview: Preview): string {
  const pooled = preview.poolRows * preview.poolColumns > 1 ? `each cell the mean of ${preview.poolRows} × ${preview.poolColumns}` : "each cell one number";
  if (preview.rows === 1 && preview.columns === 1) return "";
  const tiles = preview.tiles > 1 ? `the last two axes, the first ${preview.tiles} slices; ` : "";
  return `${tiles}${preview.rows} × ${preview.columns}, ${pooled}`;
}

function exact({ numbers }: Preview): HTMLElement | null {
  if (!numbers.length) return null;
  return h("p.exact", null, Array.from(numbers).map((n) => (Number.isFinite(n) ? number(n) : String(n))).join("  "));
}

// Everything about the selected row, `a` beside `b`: source lines and callers, settings, arguments,
// results, and the numbers in them.

import { type Preview, PreviewReader } from "./charts.ts";
import { type Comparison, errorText, type Side, SIDES } from "./comparison.ts";
import { histograms, ranges } from "./diff_charts.ts";
import { h, replace } from "./dom.ts";
import { clip, count, number, short } from "./format.ts";
import { highlight, type Piece } from "./highlight.ts";
import { max, min } from "./maths.ts";
import type { Payload } from "./payload.ts";
import type { Leaf, Place, Stats } from "./trace.ts";

const AROUND = 2;
const MOST_CALLERS = 6;
const MOST_LEAVES = 40;
const NAMES = ["min", "max", "mean", "std", "norm"] as const;

type Pair = [Leaf | null, Leaf | null];

export class DiffDetails {
  readonly element: HTMLElement;
  private readonly body = h("div.body", { tabindex: 0, role: "region", label: "Details of the selection" });
  private readonly sources = new Map<string, Piece[][] | null>();
  private readonly readers: [PreviewReader | null, PreviewReader | null] = [null, null];
  private shown: Pair | null = null;

  constructor(private readonly runs: Comparison, private readonly values: () => Promise<Payload>) {
    this.element = h("section.pane.details", { label: "Details" }, this.body);
    runs.onSelect(() => {
      this.shown = null;
      this.show();
      this.body.scrollTop = 0;
    });
  }

  focus(): void {
    this.body.focus();
  }

  private show(): void {
    const { runs } = this;
    const row = runs.selected;
    if (row < 0) return replace(this.body, h("p.empty", null, "Select a row to see both sides."));
    const inputs = runs.leaves(row, "in");
    const outputs = runs.leaves(row, "out");
    this.shown ??= this.firstShown(outputs) ?? this.firstShown(inputs);
    replace(this.body,
      this.title(row),
      SIDES.some((side) => runs.shownEvent(row, side) >= 0) && h("div.cards", null, SIDES.map((side) => this.card(row, side))),
      this.settings(row),
      this.table("Inputs", inputs), this.table("Outputs", outputs),
      this.shown && this.numbers(this.shown),
      this.inside(row));
  }

  private title(row: number): HTMLElement {
    const { runs } = this;
    const first = row === runs.head.first.row;
    const error = runs.error[row];
    const size = Number.isNaN(error) ? "" : error === 0 ? ", bit for bit" : Number.isFinite(error) ? `${runs.state(row) === "changed" ? ", by" : ", to"} ${errorText(error)} (relative)` : ", has another size or other NaN";
    return h("div.title", null, h("h3", null, runs.title(row)),
      h("div.badges", null,
        first && h("span.badge.first", null, "◆ the runs part here"),
        h("span", { class: `badge ${runs.state(row)}${runs.harm[row] ? " harm" : ""}` }, runs.words(row) + size),
        runs.hasKids(row) && runs.harm[row] > 0 && h("span.badge", null, `${count(runs.harm[row], "op")} inside ${runs.harm[row] === 1 ? "differs" : "differ"}`)));
  }

  private card(row: number, side: Side): HTMLElement {
    const { runs } = this;
    const event = runs.shownEvent(row, side);
    const name = "ab"[side];
    if (event < 0) {
      return h("div", { class: `card none ${name}` }, h("header", null, h("b", null, name)), this.nothing(row, side));
    }
    const trace = runs.sides[side];
    const site = trace.site(event);
    const elsewhere = runs.event(row, side) < 0;
    const module = trace.module(event);
    return h("div", { class: `card ${name}` },
      h("header", null, h("b", null, name), h("span.where", { title: site ? trace.filePath(site.file) : "" }, site ? `${trace.fileName(site.file)}:${site.line}` : "line not recorded"), site?.function && h("span.dim", null, site.function)),
      site && this.snippet(side, site),
      this.callers(side, event, site),
      h("footer", null, h("code", null, trace.eventName(event)), module !== null && h("span.dim", null, ` in ${module || "the root module"}`),
        elsewhere && h("p", null, this.runs.comparedEvent(row, side) < 0 ? `${name} has no such op, and goes on here. ` : "", h("button", { class: "link", onclick: () => runs.choose(runs.rowOf(side, event), "details") }, "Go to its row"))));
  }

  /** What to say where one run has nothing: perhaps it has the same values elsewhere. */
  private nothing(row: number, side: Side): HTMLElement {
    const name = "ab"[side];
    const equal = this.runs.equalRow(row, side ? 0 : 1);
    return h("p.empty", null, `${name} has nothing in this place.`,
      equal >= 0 && [" It has an equal value from ", h("button", { class: "link", onclick: () => this.runs.choose(equal, "details") }, this.runs.fullName(equal, side)), "."]);
  }

  private pieces(side: Side, file: number): Piece[][] | null {
    const key = `${side}.${file}`;
    let found = this.sources.get(key);
    if (found === undefined) {
      const source = this.runs.sides[side].source(file);
      this.sources.set(key, (found = source === null ? null : highlight(source)));
    }
    return found;
  }

  private snippet(side: Side, site: Place): HTMLElement {
    const pieces = this.pieces(side, site.file);
    const redacted = this.runs.sides[side].head.redacted;
    if (!pieces) return h("p.dim.nosource", null, redacted ? "Sources were left out (redact)." : "The text of this file is not in the trace.");
    const last = max(site.endLine, site.line);
    const lines: HTMLElement[] = [];
    const from = max(1, site.line - AROUND);
    const to = min(pieces.length, last + AROUND, site.line + 12);
    const indent = min(...pieces.slice(from - 1, to).map(indentation));
    for (let line = from; line <= to; line++) {
      const here = line >= site.line && line <= last;
      lines.push(h("div", { class: here ? "line now" : "line" }, h("span.gutter", null, line), h("code", null, coloured(pieces[line - 1], indent))));
    }
    return h("div.snippet", null, lines);
  }

  /** The lines that led here, the nearest first. */
  private callers(side: Side, event: number, site: Place | null): HTMLElement | null {
    const trace = this.runs.sides[side];
    const places = trace.stack(event).filter((place) => !place.library).reverse();
    const at = places.findIndex((place) => site && place.file === site.file && place.line === site.line);
    const above = places.slice(at + 1);
    if (!above.length) return null;
    return h("ol.callers", null, above.slice(0, MOST_CALLERS).map((place) => {
      const pieces = this.pieces(side, place.file)?.[place.line - 1];
      const text = pieces ? pieces.map((piece) => piece.text).join("").trim() : place.function;
      return h("li", null, h("span.dim", null, `${trace.fileName(place.file)}:${place.line} `), h("code", null, clip(text, 120)));
    }), above.length > MOST_CALLERS && h("li.dim", null, `… ${above.length - MOST_CALLERS} more`));
  }

  private settings(row: number): HTMLElement | null {
    const found = this.runs.settings(row);
    if (!found.length) return null;
    return h("div", null, h("h4", null, "Settings that differ"),
      h("table.leaves", null, heads("module", ""), h("tbody", null, found.map(([where, name, a, b]) =>
        h("tr.off", null, h("th", { scope: "row" }, where, h("b", null, ` ${name}`)), h("td.a", null, h("code", null, a)), h("td.b", null, h("code", null, b)), h("td", null))))));
  }

  /** The first pair that differs, or else the first with numbers. */
  private firstShown(pairs: Pair[]): Pair | null {
    const values = pairs.filter((pair) => pair.some((leaf) => leaf && leaf.value >= 0));
    return values.find(([, b]) => b && b.value >= 0 && !this.runs.agrees(b.value)) ?? values[0] ?? null;
  }

  private table(title: string, pairs: Pair[]): HTMLElement | null {
    if (!pairs.length) return null;
    const rest = pairs.length - MOST_LEAVES;
    return h("div", null, h("h4", null, title),
      h("table.leaves", null, heads("", "b is off by"), h("tbody", null, pairs.slice(0, MOST_LEAVES).map((pair) => this.leafRow(pair)))),
      rest > 0 && h("p.dim", null, `… ${rest} more`));
  }

  private leafRow(pair: Pair): HTMLElement {
    const [a, b] = pair;
    const leaf = (a ?? b)!;
    const constants = pair.every((one) => !one || one.value < 0);
    if (constants) {
      const differs = a?.constant !== b?.constant && SIDES.every((side) => this.runs.comparedEvent(this.runs.selected, side) >= 0);
      return h("tr", { class: differs ? "constant off" : "constant" }, h("th", { scope: "row" }, leaf.path),
        SIDES.map((side) => h("td", { class: "ab"[side] }, pair[side] ? clip(pair[side]!.constant ?? "", 80) : "–")), h("td.far", null, differs ? "differs" : ""));
    }
    const known = a && b && a.value >= 0 && b.value >= 0;
    const far = known ? this.runs.far(a.value, b.value) : NaN;
    const wrong = b && b.value >= 0 && !this.runs.agrees(b.value);
    const shown = this.shown && this.shown[0] === a && this.shown[1] === b;
    const now = this.shown && (this.shown[0]?.value ?? -1) === (a?.value ?? -1) && (this.shown[1]?.value ?? -1) === (b?.value ?? -1);
    return h("tr", { class: `${wrong ? "off" : ""}${shown || now ? " shown" : ""}` },
      h("th", { scope: "row" }, leaf.path || (leaf.role === "out" ? "result" : "0")),
      SIDES.map((side) => this.valueCell(pair, side)),
      h("td.far", null, errorText(far) || (known && wrong ? "differs" : "")));
  }

  private valueCell(pair: Pair, side: Side): HTMLElement {
    const leaf = pair[side];
    const name = "ab"[side];
    if (!leaf) return h("td", { class: name }, h("span.dim", null, "–"));
    if (leaf.value < 0) return h("td", { class: name }, h("code", null, clip(leaf.constant ?? "", 80)));
    const trace = this.runs.sides[side];
    return h("td", { class: name }, h("button", { class: "link shape", title: "Show the numbers", onclick: () => { this.shown = pair; this.show(); } }, trace.valueText(leaf.value)),
      trace.valueName(leaf.value) && h("span.dim", null, ` ${clip(trace.valueName(leaf.value), 40)}`));
  }

  private numbers(pair: Pair): HTMLElement {
    const value = (side: Side) => pair[side]?.value ?? -1;
    const stats = SIDES.map((side) => (value(side) >= 0 ? this.runs.sides[side].stats(value(side)) : null)) as [Stats | null, Stats | null];
    const picture = h("div.pictures", null);
    const previews = SIDES.map((side) => (value(side) >= 0 ? this.runs.sides[side].preview(value(side)) : -1));
    if (previews.some((at) => at >= 0)) void this.histograms(picture, previews, stats);
    else replace(picture, ranges(stats));
    const leaf = (pair[0] ?? pair[1])!;
    return h("div.value", null, h("h4", null, `Numbers of ${leaf.role === "out" ? "output" : "input"} ${leaf.path || "0"}`), picture,
      stats.some(Boolean) ? statsTable(stats) : h("p.dim", null, "No numbers were recorded; clew.trace(values=\"stats\") takes them."));
  }

  private async histograms(into: HTMLElement, at: number[], stats: [Stats | null, Stats | null]): Promise<void> {
    const payload = await this.values();
    const both = SIDES.map((side) => {
      if (at[side] < 0) return null;
      return (this.readers[side] ??= new PreviewReader(payload, this.runs.sides[side].prefix)).read(at[side]);
    }) as [Preview | null, Preview | null];
    replace(into, both.every(Boolean) ? histograms(both) : [histograms(both), ranges(stats)]);
  }

  private inside(row: number): HTMLElement | null {
    const { runs } = this;
    const left = runs.more[row];
    const off = Array.from(runs.kids(row)).filter((kid) => runs.harm[kid] > 0);
    if (!off.length && !left) return null;
    return h("div", null, off.length > 0 && h("h4", null, "What differs in it"),
      h("ul.links", null, off.slice(0, 30).map((kid) => h("li", null, h("button", { class: "link", onclick: () => runs.choose(kid, "details") }, runs.title(kid)), h("span.dim", null, ` ${runs.words(kid)} ${errorText(runs.error[kid])}`)))),
      left > 0 && h("p.dim", null, `${count(left, "row")} in it were left out of this page.`));
  }
}

function heads(first: string, last: string): HTMLElement {
  return h("thead", null, h("tr", null, h("th", null, first), h("th.a", null, "a"), h("th.b", null, "b"), h("th.far", null, last)));
}

/** How many blanks a line begins with; of an empty line, more than any other. */
function indentation(pieces: Piece[]): number {
  const text = pieces.map((piece) => piece.text).join("");
  return text.trim() ? text.length - text.trimStart().length : 1000;
}

function coloured(pieces: Piece[], indent: number): (Node | string)[] {
  return pieces.map(({ text, look }, at) => {
    const shown = at ? text : text.slice(min(indent, text.length - text.trimStart().length));
    return look ? h("span", { class: look }, shown) : shown;
  });
}

function statsTable([a, b]: [Stats | null, Stats | null]): HTMLElement {
  const row = (name: string, left: string, right: string, off: string) => h("tr", { class: left !== right && a && b ? "other" : "" },
    h("th", { scope: "row" }, name), h("td.a", null, left), h("td.b", null, right), h("td.far", null, off));
  const lines = NAMES.map((name) => {
    const off = a && b && a[name] !== b[name] ? number(b[name] - a[name]) : "";
    return row(name, a ? number(a[name]) : "–", b ? number(b[name]) : "–", off && !off.startsWith("-") ? `+${off}` : off);
  });
  for (const name of ["nan", "inf", "zeros", "count"] as const) {
    if (name === "count" || a?.[name] || b?.[name]) lines.push(row(name === "nan" ? "NaN" : name, a ? short(a[name]) : "–", b ? short(b[name]) : "–", ""));
  }
  return h("table.leaves.numbers", null, heads("", "b − a"), h("tbody", null, lines));
}

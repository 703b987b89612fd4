// The graph pane: the model of `t.graph()`, drawn; boxes open and close, repeats show one run.

import { button, h, on, perFrame, replace, s, stop } from "./dom.ts";
import { Canvas } from "./graph_canvas.ts";
import { type Drawn, draw } from "./graph_draw.ts";
import { type GraphModel, GraphModels } from "./graph_model.ts";
import { save } from "./graph_save.ts";
import { currentStyle, followTheme } from "./graph_style.ts";
import { type Visible, visible } from "./graph_visible.ts";
import { layOut } from "./layout.ts";
import type { Picture } from "./layout_shapes.ts";
import type { Payload } from "./payload.ts";
import type { View } from "./state.ts";

const MOST_OPENED = 600;

export class Graph {
  readonly element: HTMLElement;
  private readonly canvas = new Canvas();
  private readonly models: GraphModels;
  private readonly widths: ArrayLike<number>;
  private readonly crumbs = h("span.crumbs", { label: "Part of the run that is drawn" });
  private readonly legend = h("div.graph-legend", { label: "Colours" });
  private readonly colors = h("select", { label: "Colour by", onchange: () => this.paint() });
  private readonly views = h("input", { type: "checkbox", onchange: () => this.redraw() });
  private readonly note = h("p.graph-note", { hidden: true });
  private part = -1;
  private model: GraphModel | null = null;
  /** Nodes the person opened or closed, by model; the others are as the model says. */
  private chosen = new Map<GraphModel, Map<number, boolean>>();
  /** Nodes that are open only so that the selection can be seen. */
  private lent = new Set<number>();
  private selected = -1;
  /** The box of the last single click: it may redraw the picture, so that the second click of a double click falls on another. */
  private clicked = -1;
  private seen: Visible | null = null;
  private picture: Picture | null = null;
  private drawn: Drawn = { boxes: new Map(), lines: [] };
  private readonly later: () => void;
  private waiting = false;
  /** Whether the picture leads to the right, not down. */
  private right = false;
  private fitted = false;

  constructor(private readonly view: View, payload: Payload) {
    this.models = new GraphModels(view.trace, payload);
    this.widths = payload.column(`${view.trace.prefix}graph.text_width`);
    followTheme(this.models.head);
    this.element = h("section.pane.graphs", { label: "Graph" }, this.bar(), h("div.drawing", null, this.canvas.element, this.legend, this.note));
    this.later = perFrame(() => this.follow());
    on(this.canvas.svg, "click", (event) => this.click(event));
    on(this.canvas.svg, "dblclick", () => this.toggle(this.clicked));
    on(this.canvas.element, "keydown", (event) => this.key(event));
    new ResizeObserver(() => { if (this.waiting) this.later(); }).observe(this.canvas.element);
    view.onSelect(() => this.later());
    if (this.models.head.parts.length) this.use(0);
    this.later();
  }

  private bar(): HTMLElement {
    return h("header.bar", null, h("h2", null, "Graph"), this.crumbs, h("span.grow", null),
      h("label.check", { title: "What boxes are coloured by" }, "colour", this.colors),
      this.models.hasViews && h("label.check", { title: "Draw ops that only view or copy memory" }, this.views, "views"),
      button("⊟", "Collapse all (c)", () => this.collapse()), button("⊞", "Open one level more (o)", () => this.expand()),
      button("−", "Smaller (-)", () => this.canvas.scale(1 / 1.25)), button("+", "Larger (+)", () => this.canvas.scale(1.25)),
      button("⤢", "Fit (f)", () => this.canvas.fit()), button("□", "Graph over the whole page, or back (w)", () => this.fill()),
      button("⇄", "Lead down or to the right (r)", () => this.turn()),
      button("SVG", "Save the picture as SVG", () => void this.save("svg")), button("PNG", "Save the picture as PNG", () => void this.save("png")));
  }

  /** Make a part of the run the one that is drawn. */
  private use(part: number): void {
    const model = this.models.model(part, this.views.checked);
    if (model === this.model) return;
    this.part = part;
    this.model = model;
    this.lent.clear();
    this.selected = -1;
    this.clicked = -1;
    this.seen = null;
    this.fitted = false;
    const kept = this.colors.value;
    replace(this.colors, h("option", { value: "class" }, "class"), Object.entries(model.head.colors).map(([by, [name]]) => h("option", { value: by }, name)));
    if (kept in model.head.colors) this.colors.value = kept;
  }

  private redraw(): void {
    this.part = -1;
    this.model = null;
    this.follow();
  }

  private isOpen(node: number): boolean {
    return this.lent.has(node) || this.meant(node);
  }

  /** Whether a node is open whatever is selected: as the person chose, else as the model says. */
  private meant(node: number): boolean {
    return this.chosen.get(this.model!)?.get(node) ?? this.model!.of(node, "open") > 0;
  }

  private choose(node: number, open: boolean): void {
    let chosen = this.chosen.get(this.model!);
    if (!chosen) this.chosen.set(this.model!, (chosen = new Map()));
    chosen.set(node, open);
    this.lent.delete(node);
  }

  /** Show the selection: open what it lies in, close what was opened for the one before. */
  private follow(): void {
    this.waiting = !this.canvas.height;
    if (this.waiting) return;
    const row = this.view.row;
    const found = row < 0 ? null : this.models.find(row, this.views.checked);
    if (found) this.use(found.part);
    else if (!this.model && this.models.head.parts.length) this.use(0);
    this.note.hidden = !!this.model;
    if (!this.model) return void (this.note.textContent = "No forward pass was recorded, so there is nothing to draw.");
    this.selected = found ? found.node : -1;
    const lent = new Set(found ? this.model.around(found.node).filter((node) => !this.meant(node)) : []);
    const same = this.seen && lent.size === this.lent.size && [...lent].every((node) => this.lent.has(node)) && (this.selected < 0 || this.drawn.boxes.has(this.selected));
    this.lent = lent;
    if (!same) this.layOut(this.selected);
    else this.highlight();
    this.paintCrumbs();
    const rect = this.picture?.boxes.get(this.selected);
    if (rect) this.canvas.reveal(rect);
  }

  /** Lay out and draw what is open; `anchor` stays where it is on the screen. */
  private layOut(anchor: number): void {
    const model = this.model!;
    const before = this.picture?.boxes.get(anchor);
    const was = before && this.seen ? this.canvas.onScreen(before.x, before.y) : null;
    const begun = performance.now();
    this.seen = visible(model, (node) => this.isOpen(node), this.selected, this.widths, this.models.head.texts, this.right);
    this.picture = layOut(this.seen.boxes, this.seen.flows, (id) => [model.text(id, "name").length * 6 + 16, 16], this.right);
    this.canvas.element.dataset.took = (performance.now() - begun).toFixed(1);
    this.paint();
    const after = this.picture.boxes.get(anchor);
    if (!this.fitted) {
      this.canvas.start(this.right);
      this.fitted = true;
    } else if (was && after) {
      const [x, y] = this.canvas.onScreen(after.x, after.y);
      this.canvas.pan(was[0] - x, was[1] - y);
    }
  }

  /** Draw what was laid out, in the colours that are wanted. */
  private paint(): void {
    const { model, seen, picture } = this;
    if (!model || !seen || !picture) return;
    const color = this.colors.value || "class";
    const focused = this.canvas.group.contains(document.activeElement);
    this.drawn = draw(this.canvas.group, model, seen, picture, { color, right: this.right, bad: (node) => this.badOf(node) });
    this.canvas.take(picture, seen.nodes.map((node) => [seen.open.has(node) ? "frame" : `call ${model.paint(node, color)}`, picture.boxes.get(node)!]));
    this.paintLegend(color);
    this.highlight();
    if (focused) (this.drawn.boxes.get(this.selected) ?? this.canvas.element).focus({ preventScroll: true });
  }

  private badOf(node: number): string {
    const { trace } = this.view;
    const found = this.model!.rowsOf(node).map((row) => (row >= 0 ? trace.nonfinite(row) : ""));
    return found.find(Boolean) ?? "";
  }

  private highlight(): void {
    const { model, selected } = this;
    if (!model) return;
    for (const [node, element] of this.drawn.boxes) {
      element.classList.toggle("selected", node === selected);
      element.setAttribute("tabindex", node === selected ? "0" : "-1");
      const picked = element.querySelector<SVGElement>(":scope > .picker .picked");
      if (picked) picked.textContent = `${model.picks[node] + 1} / ${model.of(node, "count")}`;
    }
    for (const { flow, element } of this.drawn.lines) {
      element.classList.toggle("into", flow.target === selected);
      element.classList.toggle("out", flow.source === selected);
    }
  }

  private paintLegend(color: string): void {
    const { model, seen } = this;
    const swatch = (paint: string) => s("svg", { class: "clew swatch", width: 12, height: 10, "aria-hidden": true }, s("rect", { class: `call ${paint}`, x: 0.5, y: 0.5, width: 11, height: 9, rx: 2 }));
    if (color !== "class") {
      const [name, low, high] = model!.head.colors[color];
      return replace(this.legend, h("span", null, name), h("span", null, low), h("span.scale", null, Array.from({ length: 7 }, (_, i) => swatch(`q${i}`))), h("span", null, high));
    }
    const paints = new Set(seen!.nodes.filter((node) => !seen!.open.has(node)).map((node) => model!.paint(node, color)));
    const shown = this.models.head.paints.filter((paint) => paints.has(paint) && !/^(op|io|frame|other)/.test(paint));
    replace(this.legend, shown.map((paint) => h("span", null, swatch(paint), paint === "regular" ? "dropout" : paint)));
  }

  /** Which forward pass is drawn, where there are several. */
  private paintCrumbs(): void {
    const { parts, left_out } = this.models.head;
    const { model, view: { trace } } = this;
    if (!model) return;
    const { pass } = model;
    const { passes } = model.head;
    const where = (row: number) => (row < 0 ? "" : [trace.steps.length > 1 && `step ${trace.step[row]}`, trace.ranks.length > 1 && `rank ${trace.rank[row]}`].filter(Boolean).join(" · "));
    const begins = (part: number) => {
      const other = this.models.model(part, this.views.checked);
      const call = other.tops.find((top) => other.kind(top) === "call");
      return [call === undefined ? "ops" : other.text(call, "name"), where(other.firstRow(0))].filter(Boolean).join(" · ");
    };
    const several = parts.length > 1 && h("select", { label: "Structure of the forward pass", onchange: (event: Event) => this.goToPart(Number((event.target as HTMLSelectElement).value)) },
      parts.map(({ passes: n }, i) => h("option", { value: i, selected: i === this.part }, begins(i) + (n > 1 ? ` and ${n - 1} alike` : ""))));
    const pickers = this.repeats().map((node) => stepper(model.text(node, "name"), model.picks[node], model.of(node, "count"), (by) => this.pick(node, by)));
    replace(this.crumbs, several, passes > 1 && stepper(where(model.firstRow(pass)) || "pass", pass, passes, (by) => this.goToPass(pass + by)), pickers,
      left_out > 0 && h("span.dim", { title: "t.graph(step=…) draws each" }, `${left_out} more not drawn`));
  }

  private goToPart(part: number): void {
    const model = this.models.model(part, this.views.checked);
    const row = model.firstRow(0);
    if (row >= 0) this.view.choose(row, "graph");
  }

  private goToPass(pass: number): void {
    const { model } = this;
    if (!model || pass < 0 || pass >= model.head.passes) return;
    model.pass = pass;
    const row = this.selected >= 0 ? model.row(this.selected) : -1;
    if (row >= 0) this.view.choose(row, "graph");
    else this.goToPart(this.part);
  }

  /** Look at another run of a repeat: the selection in it moves along, else the run is selected. */
  private pick(node: number, by: number): void {
    const model = this.model!;
    const count = model.of(node, "count");
    model.picks[node] = (model.picks[node] + by + count) % count;
    const inside = this.selected === node || (this.selected >= 0 && model.around(this.selected).includes(node));
    const row = model.row(inside ? this.selected : node);
    if (row >= 0) this.view.choose(row, "graph");
    this.highlight();
  }

  private toggle(node: number): void {
    if (node < 0 || !this.model || !this.model.kids[node].length) return;
    this.choose(node, !this.isOpen(node));
    this.layOut(node);
  }

  private collapse(): void {
    const { model } = this;
    if (!model) return;
    for (let node = 0; node < model.count; node++) if (model.kids[node].length) this.choose(node, model.parent(node) < 0);
    this.lent.clear();
    this.layOut(-1);
    this.canvas.start(this.right);
  }

  private expand(): void {
    const { model, seen } = this;
    if (!model || !seen) return;
    let boxes = seen.nodes.length;
    for (const node of seen.nodes) {
      if (seen.open.has(node) || !model.kids[node].length || boxes + model.kids[node].length > MOST_OPENED) continue;
      boxes += model.kids[node].length;
      this.choose(node, true);
    }
    this.layOut(this.selected);
  }

  private turn(): void {
    this.right = !this.right;
    this.fitted = false;
    this.layOut(this.selected);
    const rect = this.picture?.boxes.get(this.selected);
    if (rect) this.canvas.reveal(rect);
  }

  /** Give the graph the whole page, or its pane again. */
  private fill(): void {
    this.element.classList.toggle("full");
    this.canvas.start(this.right);
    const rect = this.picture?.boxes.get(this.selected);
    if (rect) this.canvas.reveal(rect);
  }

  private async save(kind: "svg" | "png"): Promise<void> {
    if (!this.picture || !this.model) return;
    const scale = this.model.head.colors[this.colors.value];
    await save({
      group: this.canvas.group, width: this.picture.width, height: this.picture.height, font: this.models.head.font,
      style: currentStyle(this.models.head), title: this.view.trace.name, legend: scale ? `${scale[0]}: ${scale[1]} – ${scale[2]}` : "",
    }, kind);
  }

  private click(event: MouseEvent): void {
    if (this.canvas.moved) return;
    const pick = pickOf(event.target);
    const node = boxOf(event.target);
    const isTwist = (event.target as Element).classList.contains("twist");
    if (event.detail < 2) this.clicked = pick || isTwist ? -1 : node;
    if (pick) return this.pick(pick.node, pick.by);
    if (node < 0 || !this.model) return;
    if (isTwist) return this.toggle(node);
    if (event.detail < 2) this.select(node);
  }

  private select(node: number): void {
    const row = this.model!.row(node);
    if (row >= 0) this.view.choose(row, "graph");
  }

  private key(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.model) return;
    const acts: Record<string, () => void> = {
      Enter: () => this.toggle(this.selected), " ": () => this.toggle(this.selected),
      f: () => this.canvas.fit(), c: () => this.collapse(), w: () => this.fill(), r: () => this.turn(), o: () => this.expand(), "+": () => this.canvas.scale(1.25), "=": () => this.canvas.scale(1.25), "-": () => this.canvas.scale(0.8),
      PageUp: () => this.pickAround(-1), PageDown: () => this.pickAround(1),
    };
    if (event.key === "Escape" && this.element.classList.contains("full")) acts.Escape = () => this.fill();
    const act = event.key.startsWith("Arrow") ? () => this.step(event.key) : acts[event.key];
    if (!act) return;
    stop(event);
    act();
  }

  /** The repeats around the selection, outermost first. */
  private repeats(): number[] {
    const model = this.model!;
    return this.selected < 0 ? [] : [...model.around(this.selected), this.selected].filter((node) => model.of(node, "count") > 1);
  }

  /** Pick another run of the innermost repeat around the selection. */
  private pickAround(by: number): void {
    const counted = this.repeats().pop();
    if (counted !== undefined) this.pick(counted, by);
  }

  /** Up to what the selection takes, down to who takes it or into a frame, sideways to neighbours. */
  private step(key: string): void {
    const { model, seen, selected } = this;
    if (!model || !seen) return;
    if (selected < 0 || !this.drawn.boxes.has(selected)) return this.focusOn(model.tops[0]);
    const beside = model.kids[model.parent(selected)] ?? model.tops;
    const at = beside.indexOf(selected);
    const next = key === "ArrowUp" ? seen.flows.find((flow) => flow.target === selected)?.source ?? model.parent(selected)
      : key === "ArrowDown" ? (seen.open.has(selected) ? model.kids[selected][0] : seen.flows.find((flow) => flow.source === selected)?.target ?? beside[at + 1])
        : beside[at + (key === "ArrowRight" ? 1 : -1)];
    if (next !== undefined && next >= 0) this.focusOn(next);
  }

  private focusOn(node: number): void {
    if (!this.drawn.boxes.has(node)) return;
    this.select(node);
    this.follow();
    this.drawn.boxes.get(node)?.focus({ preventScroll: true });
  }
}

/** A name and which one of several, with buttons to the one before and the next. */
function stepper(name: string, at: number, count: number, go: (by: number) => void): HTMLElement {
  return h("span.stepper", null, h("span.clip", null, name), button("‹", `${name}: the one before`, () => go(-1)), `${at + 1} / ${count}`, button("›", `${name}: the next`, () => go(1)));
}

function boxOf(target: EventTarget | null): number {
  const box = (target as Element | null)?.closest<SVGElement>("[data-box]");
  return box ? Number(box.dataset.box) : -1;
}

/** The repeat and the direction that a click on its control asks for. */
function pickOf(target: EventTarget | null): { node: number; by: number } | null {
  const control = (target as Element | null)?.closest<SVGElement>("[data-picker]");
  if (!control) return null;
  const by = (target as Element).closest<SVGElement>("[data-by]");
  return { node: Number(control.dataset.picker), by: by ? Number(by.dataset.by) : 0 };
}

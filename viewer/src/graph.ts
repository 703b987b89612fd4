// The graph of what flows where: nested boxes that open in place, one level laid out at a time.

import { button, h, on, perFrame, r, replace, s, stop } from "./dom.ts";
import { clip, count, family, hue, isView, time, whole } from "./format.ts";
import { type Box, type Edge, IN, layout, OUT } from "./layout.ts";
import { abs, ceil, max, min, round } from "./maths.ts";
import type { View } from "./state.ts";

const MOST_KIDS = 240;
const MOST_BOXES = 1500;
const PAD = 14;
const HEAD = 26;

interface Node extends Box {
  node: number;
  parent: Node | null;
  depth: number;
  kids: Node[];
  edges: Flow[];
  open: boolean;
  /** Siblings that were left out, for a box that stands for them. */
  rest: string;
}

interface Flow extends Edge {
  a: Node | null;
  b: Node | null;
  values: Set<number>;
  look: string;
}

export class Graph {
  readonly element: HTMLElement;
  private scope = -1;
  private open = new Set<number>();
  private zoom = 1;
  private readonly crumbs = h("nav.crumbs", { label: "Part of the trace that is drawn" });
  private readonly canvas = s("svg.graph", { role: "group", label: "Data flow" });
  private readonly scroller = h("div.scroller", { tabindex: 0, id: "graph", role: "region", label: "Data-flow graph" });
  private readonly facts = h("span.dim", null);
  private root: Node | null = null;
  private drawn = new Map<number, { node: Node; element: SVGElement }>();
  private flows: { flow: Flow; element: SVGElement }[] = [];
  private views = false;
  private readonly later: () => void;
  private pending = false;

  constructor(private readonly view: View) {
    const views = h("input", { type: "checkbox", onchange: () => { this.views = views.checked; this.draw(); } });
    this.scroller.append(this.canvas);
    this.element = h("section.pane.graphs", { label: "Graph" },
      h("header.bar", null, h("h2", null, "Graph"), this.crumbs, h("span.grow", null), this.facts,
        h("label.check", { title: "Draw ops that only view memory" }, views, "views"),
        button("−", "Smaller", () => this.scale(this.zoom / 1.2)), button("+", "Larger", () => this.scale(this.zoom * 1.2)),
        button("⤢", "Fit the width", () => this.fit())),
      this.scroller);
    this.later = perFrame(() => this.follow());
    on(this.scroller, "wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.scale(this.zoom * Math.exp(-event.deltaY / 300));
    }, { passive: false });
    on(this.canvas, "click", (event) => this.click(event));
    on(this.canvas, "dblclick", (event) => {
      const node = boxOf(event.target);
      if (node >= 0) this.toggle(node);
    });
    on(this.scroller, "keydown", (event) => this.key(event));
    new ResizeObserver(() => { if (this.pending) this.later(); }).observe(this.scroller);
    this.start();
    view.onSelect((from) => {
      if (from !== "graph") this.later();
      else this.highlight();
    });
  }

  /** Begin with the first thing that holds a module call, that call open. */
  private start(): void {
    const { outline, trace } = this.view;
    let nodes: ArrayLike<number> = outline.roots();
    while (nodes.length && outline.isGroup(nodes[0]) && ["rank", "step"].includes(outline.group(nodes[0]).kind)) {
      this.scope = nodes[0];
      nodes = outline.kids(nodes[0]);
    }
    const call = Array.from(nodes).find((n) => !outline.isGroup(n) && trace.isModule(n) && trace.hasKids(n));
    if (call !== undefined) this.open.add(call);
    this.draw();
  }

  private setScope(node: number): void {
    this.scope = node;
    if (node >= 0) this.open.add(node);
    this.draw();
    this.scroller.scrollTop = 0;
  }

  private focusSelected(): void {
    const { selected, outline } = this.view;
    if (selected >= 0) this.setScope(outline.hasKids(selected) ? selected : outline.parent(selected));
  }

  private toggle(node: number): void {
    if (!this.view.outline.hasKids(node)) return;
    if (this.open.has(node)) this.open.delete(node);
    else this.open.add(node);
    const before = this.drawn.get(node)?.element.getBoundingClientRect();
    this.draw();
    const after = this.drawn.get(node)?.element.getBoundingClientRect();
    if (before && after) {
      // What was clicked stays under the pointer.
      this.scroller.scrollLeft += after.left - before.left;
      this.scroller.scrollTop += after.top - before.top;
    }
  }

  /** Show the selection, opening what it lies in. */
  private follow(): void {
    this.pending = !this.scroller.clientHeight;
    const { outline } = this.view;
    const selected = this.shown;
    if (selected < 0 || this.pending) return;
    const path = outline.path(selected);
    if (this.scope >= 0 && !path.includes(this.scope)) {
      const top = path.findIndex((n) => !outline.isGroup(n) || outline.group(n).kind === "pass");
      this.scope = top > 0 ? path[top - 1] : -1;
    }
    let changed = !this.drawn.has(selected);
    for (const node of path.slice(path.indexOf(this.scope) + 1, -1)) {
      if (!this.open.has(node)) changed = true;
      this.open.add(node);
    }
    if (changed) this.draw();
    this.highlight();
    this.reveal(selected);
  }

  /** The node to show for the selection: itself, or the op that made what it is about. */
  private get shown(): number {
    const { selected, outline, trace } = this.view;
    if (selected < 0 || outline.isGroup(selected) || trace.isModule(selected) || trace.isOp(selected)) return selected;
    const [value] = trace.valuesOf(selected, "out");
    const producer = value === undefined ? -1 : trace.producer(value);
    return producer < 0 || producer === selected ? trace.parent(selected) : producer;
  }

  private reveal(node: number): void {
    const found = this.drawn.get(node);
    if (!found) return;
    const outer = this.scroller.getBoundingClientRect();
    const inner = found.element.getBoundingClientRect();
    const high = min(inner.height, 60);
    if (inner.top < outer.top + 4 || inner.top + high > outer.bottom) this.scroller.scrollTop += inner.top - outer.top - max(20, (outer.height - high) / 2.5);
    if (inner.left < outer.left || inner.right > outer.right) this.scroller.scrollLeft += inner.left - outer.left - max(20, (outer.width - inner.width) / 2);
  }

  private draw(): void {
    const root = this.build();
    this.root = root;
    this.connect(root);
    this.measure(root);
    this.paint(root);
    this.paintCrumbs();
  }

  private kidsOf(node: number): { nodes: number[]; before: number; after: number } {
    const { outline, trace } = this.view;
    let kids = Array.from(outline.kids(node));
    // Variables, taps and the like stand for what an op made: it is the op that is drawn.
    kids = kids.filter((k) => outline.isGroup(k) || trace.isModule(k) || k === this.shown
      || (trace.isOp(k) && (this.views || trace.failed(k) || !isView(trace.eventName(k)))));
    if (kids.length <= MOST_KIDS) return { nodes: kids, before: 0, after: 0 };
    const path = this.shown < 0 ? [] : outline.path(this.shown);
    const wanted = kids.findIndex((k) => path.includes(k));
    const first = max(0, min(kids.length - MOST_KIDS, wanted - MOST_KIDS / 2));
    return { nodes: kids.slice(first, first + MOST_KIDS), before: first, after: kids.length - first - MOST_KIDS };
  }

  private build(): Node {
    let boxes = 0;
    const make = (node: number, parent: Node | null, rest = ""): Node => {
      boxes++;
      const made: Node = { node, parent, depth: parent ? parent.depth + 1 : 0, kids: [], edges: [], open: false, rest, x: 0, y: 0, width: 0, height: 0 };
      const open = !parent || (!rest && this.open.has(node) && this.view.outline.hasKids(node));
      if (open && boxes < MOST_BOXES) {
        made.open = true;
        const { nodes, before, after } = this.kidsOf(node);
        if (before) made.kids.push(make(-2, made, `${whole(before)} before`));
        for (const kid of nodes) made.kids.push(make(kid, made));
        if (after) made.kids.push(make(-3, made, `${whole(after)} more`));
      }
      return made;
    };
    return make(this.scope, null);
  }

  /** Find which boxes values flow between, and put each edge on the level where the two part. */
  private connect(root: Node): void {
    const { trace, outline } = this.view;
    const home = new Map<number, Node>();
    const order: Node[] = [];
    const rowsIn: number[] = [];
    const cover = (row: number, box: Node) => {
      home.set(row, box);
      rowsIn.push(row);
      for (const kid of trace.kids(row)) cover(kid, box);
    };
    const visit = (box: Node) => {
      order.push(box);
      if (box.open) {
        for (const kid of box.kids) visit(kid);
      } else if (box.node >= 0) {
        if (outline.isGroup(box.node)) for (const row of Array.from(outline.group(box.node).rows)) cover(row, box);
        else cover(box.node, box);
      }
    };
    visit(root);
    const source = (value: number, tries = 0): Node | null | undefined => {
      const producer = trace.producer(value);
      if (producer < 0) return trace.valueName(value) ? undefined : null;
      const box = home.get(producer);
      if (box) return box;
      if (tries < 12 && trace.isOp(producer) && isView(trace.eventName(producer))) {
        const taken = trace.valuesOf(producer, "in")[0];
        return taken === undefined ? undefined : source(taken, tries + 1);
      }
      return trace.valueName(value) ? undefined : null;
    };
    const flows = new Map<string, Flow>();
    const number = new Map(order.map((box, i) => [box, i]));
    const add = (level: Node, a: Node | null, b: Node | null, value: number, look = "") => {
      const key = `${number.get(level)}:${a ? number.get(a) : "i"}:${b ? number.get(b) : "o"}`;
      let flow = flows.get(key);
      if (!flow) {
        flow = { a, b, from: a ? level.kids.indexOf(a) : IN, to: b ? level.kids.indexOf(b) : OUT, points: [], values: new Set(), look };
        flows.set(key, flow);
        level.edges.push(flow);
      }
      if (value >= 0) flow.values.add(value);
    };
    const join = (a: Node | null, b: Node, value: number) => {
      if (a === b) return;
      let from = a;
      let to = b;
      while (from && from.depth > to.depth) {
        add(from.parent!, from, null, value);
        from = from.parent!;
      }
      while (to.depth > (from ? from.depth : 1) || (!from && to.depth > 1)) {
        add(to.parent!, null, to, value);
        to = to.parent!;
      }
      if (!from) return add(root, null, to, value);
      while (from.parent !== to.parent) {
        add(from.parent!, from, null, value);
        add(to.parent!, null, to, value);
        from = from.parent!;
        to = to.parent!;
      }
      if (from !== to) add(to.parent!, from, to, value);
    };
    for (const row of rowsIn) {
      const box = home.get(row);
      if (!box || trace.hasKids(row)) continue;
      for (const value of trace.valuesOf(row, "in")) {
        const from = source(value);
        if (from === undefined) continue;
        if (from && !samePass(trace.phase(from.node >= 0 ? outline.firstRow(from.node) : row), trace.phase(row))) continue;
        if (!from && trace.phase(row) !== "forward" && !this.enters(row)) continue;
        join(from, box, value);
      }
    }
    for (const box of order) this.results(box, source, add);
    for (const box of order) this.chain(box, add);
  }

  /** Whether what a row of the backward pass takes from outside is worth an edge. */
  private enters(row: number): boolean {
    const { trace } = this.view;
    return this.scope >= 0 && !this.view.outline.isGroup(this.scope) && trace.phase(this.scope) === trace.phase(row);
  }

  /** What an open call returns leaves through its lower border, also where nobody takes it. */
  private results(box: Node, source: (value: number) => Node | null | undefined, add: (level: Node, a: Node | null, b: Node | null, value: number) => void): void {
    const { trace, outline } = this.view;
    if (!box.open || box.node < 0 || outline.isGroup(box.node)) return;
    for (const value of trace.valuesOf(box.node, "out")) {
      let from = source(value);
      while (from && from.parent !== box) from = from.parent;
      if (from) add(box, from, null, value);
    }
  }

  /** Passes follow each other even where no drawn value says so. */
  private chain(box: Node, add: (level: Node, a: Node | null, b: Node | null, value: number, look: string) => void): void {
    const { outline } = this.view;
    box.kids.forEach((kid, i) => {
      if (!i || !(kid.rest || (outline.isGroup(kid.node) && !box.edges.some((e) => e.b === kid)))) return;
      add(box, box.kids[i - 1], kid, -1, "then");
    });
  }

  private measure(box: Node): void {
    const { outline, trace } = this.view;
    if (box.open) {
      for (const kid of box.kids) this.measure(kid);
      const size = layout(box.kids, box.edges);
      const title = this.titleWidth(box);
      box.width = max(size.width, title) + 2 * PAD;
      box.height = size.height + HEAD + 10;
      const left = PAD + max(0, (title - size.width) / 2);
      for (const kid of box.kids) {
        kid.x += left;
        kid.y += HEAD;
      }
      for (const edge of box.edges) for (const point of edge.points) {
        point[0] += left;
        point[1] += HEAD;
      }
      for (const edge of box.edges) {
        if (edge.from === IN && edge.points.length) edge.points[0][1] -= HEAD - 24;
        if (edge.to === OUT && edge.points.length) edge.points[edge.points.length - 1][1] += 10;
      }
      return;
    }
    const under = box.rest || box.node < 0 ? "" : outline.isGroup(box.node) ? outline.summary(box.node) : trace.output(box.node);
    box.width = max(64, this.titleWidth(box), under.length * 6.4 + 50 * Number(this.isBad(box)) + 22);
    box.height = under ? 40 : 26;
  }

  private isBad(box: Node): boolean {
    return box.node >= 0 && !this.view.outline.isGroup(box.node) && this.view.trace.nonfinite(box.node) !== "";
  }

  private title(box: Node): { name: string; cls: string } {
    const { outline, trace } = this.view;
    if (box.rest) return { name: `… ${box.rest}`, cls: "" };
    if (box.node < 0) return { name: "", cls: "" };
    const name = clip(outline.label(box.node), 34);
    const cls = !outline.isGroup(box.node) && trace.isModule(box.node) ? trace.eventName(box.node) : "";
    return { name, cls: cls === name ? "" : clip(cls, 30) };
  }

  private titleWidth(box: Node): number {
    const { name, cls } = this.title(box);
    return (name.length + (cls ? cls.length + 1 : 0)) * 7 + (this.view.outline.hasKids(box.node) && !box.rest ? 16 : 0) + 22;
  }

  private paint(root: Node): void {
    this.drawn.clear();
    this.flows = [];
    this.canvas.textContent = "";
    const arrow = (id: string) => s("marker", { id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto", markerUnits: "userSpaceOnUse" }, s("path", { d: "M0 0.8L8 4L0 7.2z", class: id }));
    this.canvas.append(s("defs", null, arrow("arrow"), arrow("arrow-in"), arrow("arrow-out")));
    let boxes = 0;
    const paint = (box: Node, x: number, y: number, into: SVGElement) => {
      const element = box === root ? s("g") : this.paintBox(box, x, y);
      into.append(element);
      if (box !== root) boxes++;
      if (!box.open) return;
      const inside = s("g", { transform: box === root ? `translate(${x} ${y})` : "" });
      for (const flow of box.edges) inside.append(this.paintFlow(flow));
      element.append(inside);
      for (const kid of box.kids) paint(kid, kid.x, kid.y, inside);
    };
    const top = 20;
    paint(root, 20, top - HEAD, this.canvas);
    this.facts.textContent = count(boxes, "box", "boxes");
    this.canvas.dataset.width = String(ceil(root.width + 40));
    this.canvas.dataset.height = String(ceil(root.height + 40 - HEAD));
    this.scale(this.zoom);
    this.highlight();
  }

  private paintBox(box: Node, x: number, y: number): SVGElement {
    const { outline, trace } = this.view;
    const { name, cls } = this.title(box);
    const isGroup = box.node >= 0 && outline.isGroup(box.node);
    const isCall = box.node >= 0 && !isGroup && trace.isModule(box.node);
    const look = box.rest ? "rest" : isGroup ? `pass ${outline.group(box.node).phase}` : isCall ? `module h${hue(trace.eventName(box.node))}` : trace.isOp(box.node) ? `op ${family(trace.eventName(box.node))}` : "op other";
    const failed = box.node >= 0 && !isGroup && trace.failed(box.node);
    const bad = box.node >= 0 && !isGroup ? trace.nonfinite(box.node) : "";
    const twist = !box.rest && outline.hasKids(box.node) ? (box.open ? "▾ " : "▸ ") : "";
    const under = box.rest ? "" : isGroup ? outline.summary(box.node) : trace.output(box.node);
    const middle = box.width / 2;
    const label = `${name} ${cls} ${under}`;
    const element = s("g", { class: `box ${look}${box.open ? " open" : ""}${failed ? " failed" : ""}${bad ? ` ${bad}` : ""}`, transform: `translate(${r(x)} ${r(y)})`, "data-box": box.node, role: "button", label: label },
      s("rect", { width: r(box.width), height: r(box.height), rx: 6 }),
      s("text", { class: box.open ? "title" : "title mid", x: box.open ? 10 : middle, y: 17 },
        twist && s("tspan.twist", null, twist), s("tspan", null, name), cls && s("tspan.cls", null, ` ${cls}`)),
      !box.open && under && s("text.shape.mid", { x: middle, y: 32 }, bad ? `${bad}! ${under}` : under),
      s("title", null, `${label}${box.node >= 0 ? ` · ${time(outline.duration(box.node))}` : ""}`));
    if (box.node >= 0 && !box.rest) this.drawn.set(box.node, { node: box, element });
    return element;
  }

  private paintFlow(flow: Flow): SVGElement {
    const { trace } = this.view;
    const shapes = [...new Set([...flow.values].map((v) => trace.valueText(v)))].slice(0, 6).join(", ");
    let element: SVGElement;
    if (flow.points.length) {
      element = s("path", { class: `flow ${flow.look}`, d: pathOf(flow.points), "marker-end": "url(#arrow)" });
    } else {
      // Too long to follow with the eye: a stub at each end.
      const a = flow.a && [flow.a.x + flow.a.width / 2, flow.a.y + flow.a.height];
      const b = flow.b && [flow.b.x + flow.b.width / 2, flow.b.y];
      element = s("g.flow.stub", null,
        a && s("path", { d: `M${a[0] + 12} ${a[1]}v9` }), b && s("path", { d: `M${b[0] - 12} ${b[1] - 14}v12`, "marker-end": "url(#arrow)" }),
        b && flow.a && s("text.end", { x: b[0] - 16, y: b[1] - 5 }, clip(this.title(flow.a).name, 18)));
    }
    if (shapes) element.append(s("title", null, shapes));
    this.flows.push({ flow, element });
    return element;
  }

  private highlight(): void {
    const selected = this.shown;
    for (const [node, { element }] of this.drawn) element.classList.toggle("selected", node === selected);
    for (const { flow, element } of this.flows) {
      const into = flow.b?.node === selected && selected >= 0;
      const out = flow.a?.node === selected && selected >= 0;
      element.classList.toggle("into", into);
      element.classList.toggle("out", out);
      if (element.tagName === "path") element.setAttribute("marker-end", `url(#${into ? "arrow-in" : out ? "arrow-out" : "arrow"})`);
    }
  }

  private scale(zoom: number): void {
    this.zoom = min(2.5, max(0.15, zoom));
    const width = Number(this.canvas.dataset.width ?? 0);
    const height = Number(this.canvas.dataset.height ?? 0);
    this.canvas.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.canvas.setAttribute("width", String(round(width * this.zoom)));
    this.canvas.setAttribute("height", String(round(height * this.zoom)));
  }

  private fit(): void {
    const width = Number(this.canvas.dataset.width ?? 1);
    this.scale(min(1.4, (this.scroller.clientWidth - 16) / width));
  }

  private click(event: MouseEvent): void {
    const node = boxOf(event.target);
    if (node < 0) return;
    if ((event.target as Element).classList.contains("twist")) this.toggle(node);
    else this.view.choose(node, "graph");
  }

  private key(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { selected } = this.view;
    if (event.key === "Enter" && selected >= 0) this.toggle(selected);
    else if (event.key === "f") this.focusSelected();
    else if (event.key.startsWith("Arrow")) this.step(event.key);
    else return;
    stop(event);
  }

  /** Up to what the selection takes, down to who takes it, left and right among siblings. */
  private step(key: string): void {
    const found = this.drawn.get(this.view.selected)?.node;
    if (!found?.parent) return;
    const siblings = found.parent.kids;
    const at = siblings.indexOf(found);
    const edges = found.parent.edges;
    const next = key === "ArrowUp" ? edges.find((e) => e.b === found && e.a)?.a
      : key === "ArrowDown" ? edges.find((e) => e.a === found && e.b)?.b
        : siblings[at + (key === "ArrowRight" ? 1 : -1)];
    const target = next ?? (key === "ArrowUp" ? found.parent : null);
    if (target && target.node >= 0 && target !== this.root) {
      this.view.choose(target.node, "graph");
      this.reveal(target.node);
    }
  }

  private paintCrumbs(): void {
    const { outline, trace } = this.view;
    const path = this.scope < 0 ? [] : outline.path(this.scope);
    const name = (node: number) => outline.label(node) || trace.eventName(node);
    const crumb = (node: number, text: string) => h("button", { class: "link", "aria-current": node === this.scope ? "true" : null, onclick: () => this.setScope(node) }, text);
    const focus = button("◎", "Draw only the selected part (f)", () => this.focusSelected());
    replace(this.crumbs, crumb(-1, "all"), path.flatMap((node) => ["›", crumb(node, clip(name(node), 24))]), focus);
  }
}

function boxOf(target: EventTarget | null): number {
  const box = (target as Element | null)?.closest<SVGElement>("[data-box]");
  return box ? Number(box.dataset.box) : -1;
}

function samePass(from: string, to: string): boolean {
  return from === to || to === "forward";
}

function pathOf(points: [number, number][]): string {
  let [x, y] = points[0];
  let d = `M${r(x)} ${r(y)}`;
  for (const [nextX, nextY] of points.slice(1)) {
    if (abs(nextX - x) < 0.5) d += `V${r(nextY)}`;
    else {
      const bend = (nextY - y) * 0.5;
      d += `C${r(x)} ${r(y + bend)} ${r(nextX)} ${r(nextY - bend)} ${r(nextX)} ${r(nextY)}`;
    }
    x = nextX;
    y = nextY;
  }
  return d;
}


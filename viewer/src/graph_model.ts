// The model of a graph as `clew/views/html/page_graph.py` gives it: nodes that nest, edges, and the
// rows of the trace that each node stands for. Nothing is derived here; what is drawn depends only
// on which boxes are open and which run of a repeat is looked at.

import { max } from "./maths.ts";
import type { Column, Payload } from "./payload.ts";
import type { Trace } from "./trace.ts";

export interface GraphHead {
  kinds: string[];
  paints: string[];
  texts: string[];
  font: string;
  style: { light: string; dark: string };
  parts: { passes: number; models: ModelHead[] }[];
  /** How many structures of forward passes are not drawn. */
  left_out: number;
}

interface ModelHead {
  /** Where the columns of the model are. */
  prefix: string;
  used: number;
  passes: number;
  colors: Record<string, [name: string, low: string, high: string]>;
}

export class GraphModel {
  readonly count: number;
  readonly kids: number[][] = [];
  readonly tops: number[] = [];
  /** Which run of a repeat is looked at, by the node that carries its count. */
  readonly picks: Int32Array;
  pass = 0;
  private readonly firstEvent: Int32Array;
  private readonly firstValue: Int32Array;
  private readonly columns = new Map<string, Column>();
  private nodeAt: Int32Array | null = null;

  constructor(readonly head: ModelHead, private readonly graph: GraphHead, private readonly payload: Payload) {
    const parents = this.column("parent");
    this.count = parents.length;
    this.picks = new Int32Array(this.count);
    for (let node = 0; node < this.count; node++) {
      this.kids.push([]);
      (parents[node] ? this.kids[parents[node] - 1] : this.tops).push(node);
    }
    this.firstEvent = starts(this.column("events"));
    this.firstValue = starts(this.column("edge.values"));
  }

  private column(name: string): Column {
    let column = this.columns.get(name);
    if (!column) this.columns.set(name, (column = this.payload.column(this.head.prefix + name)));
    return column;
  }

  of(node: number, name: "width" | "height" | "title_width" | "title_height" | "title_line" | "count" | "varies" | "failed" | "open"): number {
    return this.column(name)[node];
  }

  text(node: number, name: "name" | "class" | "facts" | "result"): string {
    return this.graph.texts[this.column(name)[node]];
  }

  kind(node: number): string {
    return this.graph.kinds[this.column("kind")[node]];
  }

  /** The id that the node has in `t.graph()`. */
  id(node: number): string {
    const prefix = { call: "e", op: "e", repeat: "r", input: "in", output: "out" }[this.kind(node)];
    return `${prefix}${this.column("id")[node]}`;
  }

  parent(node: number): number {
    return this.column("parent")[node] - 1;
  }

  /** The colour of a node, by its class or by a number. */
  paint(node: number, by: string): string {
    return this.graph.paints[this.column(by === "class" ? "paint" : `color.${by}`)[node]];
  }

  get edges(): number {
    return this.column("edge.source").length;
  }

  edge(number: number): { source: number; target: number; kind: string; values: ArrayLike<number> } {
    return {
      source: this.column("edge.source")[number], target: this.column("edge.target")[number],
      kind: this.graph.texts[this.column("edge.kind")[number]],
      values: this.column("edge.value").subarray(this.firstValue[number], this.firstValue[number + 1]),
    };
  }

  /** Dtype and shape of a value, as a number of a text. */
  label(value: number): number {
    return this.column("value.label")[value];
  }

  /** The nodes that carry the count of a repeat around a node, outermost first, itself included. */
  private counted(node: number): number[] {
    const found: number[] = [];
    for (let at = node; at >= 0; at = this.parent(at)) if (this.of(at, "count") > 1) found.unshift(at);
    return found;
  }

  /** The row of the trace that a node stands for, with what is picked; -1 for none in the report. */
  row(node: number): number {
    const from = this.firstEvent[node];
    const events = this.firstEvent[node + 1] - from;
    if (!events) return -1;
    let run = 0;
    for (const at of this.counted(node)) run = run * this.of(at, "count") + this.picks[at];
    const position = this.column("event")[from + (run < events ? run : 0)];
    return this.column("rows")[this.pass * this.head.used + position];
  }

  /** The first row of a pass, -1 for none in the report. */
  firstRow(pass: number): number {
    const { used } = this.head;
    return this.column("rows").subarray(pass * used, (pass + 1) * used).find((row) => row >= 0) ?? -1;
  }

  /** The rows of all runs of a node in the pass that is looked at. */
  rowsOf(node: number): number[] {
    const found: number[] = [];
    for (let at = this.firstEvent[node]; at < this.firstEvent[node + 1]; at++) {
      found.push(this.column("rows")[this.pass * this.head.used + this.column("event")[at]]);
    }
    return found;
  }

  /** Where each row is drawn: calls `put` with the row and its place among the passes. */
  places(put: (row: number, place: number) => void): void {
    const rows = this.column("rows");
    for (let at = 0; at < rows.length; at++) if (rows[at] >= 0) put(rows[at], at);
  }

  /** Look at the pass and the runs in which a place lies; the node there. */
  show(place: number): number {
    this.nodeAt ??= this.indexed();
    this.pass = Math.floor(place / this.head.used);
    const position = place % this.head.used;
    const node = this.nodeAt[position];
    const events = this.column("event").subarray(this.firstEvent[node], this.firstEvent[node + 1]);
    let run = max(0, events.indexOf(position));
    for (const at of this.counted(node).reverse()) {
      const count = this.of(at, "count");
      this.picks[at] = run % count;
      run = Math.floor(run / count);
    }
    return node;
  }

  private indexed(): Int32Array {
    const nodeAt = new Int32Array(this.head.used).fill(-1);
    const events = this.column("event");
    for (let node = 0; node < this.count; node++) {
      // A repeat begins with its first call, which is the one to show.
      if (this.kind(node) === "repeat") continue;
      for (let at = this.firstEvent[node]; at < this.firstEvent[node + 1]; at++) nodeAt[events[at]] = node;
    }
    return nodeAt;
  }

  /** The frames around a node, outermost first. */
  around(node: number): number[] {
    const found: number[] = [];
    for (let at = this.parent(node); at >= 0; at = this.parent(at)) found.unshift(at);
    return found;
  }
}

function starts(counts: Column): Int32Array {
  const found = new Int32Array(counts.length + 1);
  for (let i = 0; i < counts.length; i++) found[i + 1] = found[i] + counts[i];
  return found;
}

/** The models of all parts, with or without the ops that only view memory. */
export class GraphModels {
  private readonly places = new Map<boolean, Int32Array>();
  private readonly made = new Map<string, GraphModel>();
  readonly head: GraphHead;

  constructor(private readonly trace: Trace, private readonly payload: Payload) {
    this.head = trace.head.graph;
  }

  get hasViews(): boolean {
    return this.head.parts.some((part) => part.models.length > 1);
  }

  model(part: number, views: boolean): GraphModel {
    const { models } = this.head.parts[part];
    const which = views && models.length > 1 ? 1 : 0;
    const key = `${part}.${which}`;
    let model = this.made.get(key);
    if (!model) this.made.set(key, (model = new GraphModel(models[which], this.head, this.payload)));
    return model;
  }

  /** The part and node in which an event is drawn, itself or what it belongs to; null for none. */
  find(row: number, views: boolean): { part: number; node: number } | null {
    const places = this.index(views);
    for (let at = row, tries = 0; at >= 0 && tries < 500; tries++) {
      if (places[at]) return this.show(places[at] - 1, views);
      at = this.above(at);
    }
    return null;
  }

  /** Where to look for an event that has no box: at its forward op, its maker, its caller. */
  private above(row: number): number {
    const { trace } = this;
    const forward = trace.forward(row);
    if (forward >= 0) return forward;
    if (!trace.isOp(row) && !trace.isModule(row)) {
      const [value] = trace.valuesOf(row, "out");
      const producer = value === undefined ? -1 : trace.producer(value);
      if (producer >= 0 && producer < row) return producer;
    }
    return trace.parent(row);
  }

  private show(place: number, views: boolean): { part: number; node: number } {
    let part = 0;
    for (; ; part++) {
      const { head } = this.model(part, views);
      const size = head.used * head.passes;
      if (place < size) break;
      place -= size;
    }
    return { part, node: this.model(part, views).show(place) };
  }

  private index(views: boolean): Int32Array {
    let places = this.places.get(views);
    if (places) return places;
    places = new Int32Array(this.trace.rows);
    let from = 0;
    for (let part = 0; part < this.head.parts.length; part++) {
      const model = this.model(part, views);
      model.places((row, place) => (places![row] = from + place + 1));
      from += model.head.used * model.head.passes;
    }
    this.places.set(views, places);
    return places;
  }
}

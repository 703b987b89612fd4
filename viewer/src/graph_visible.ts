// What of a model is in sight: boxes that nest as far as they are open, lines between them, labels.

import type { GraphModel } from "./graph_model.ts";
import type { Box, Link, Size } from "./layout_shapes.ts";
import { max, min } from "./maths.ts";

const MOST_KIDS = 240;
const MOST_BOXES = 2500;
const MOST_LABELS = 2;
const TWIST = 13;
const PICKER_HEIGHT = 16;

/** A line between two boxes in sight, with all that it carries. */
export interface Flow extends Link {
  kind: string;
  values: Set<number>;
  text: string;
}

/** Neighbours that are left out of a frame with very many boxes. */
export interface Rest {
  id: number;
  parent: number;
  text: string;
}

export interface Visible {
  boxes: Box[];
  flows: Flow[];
  /** Nodes in sight, a frame before what is in it. */
  nodes: number[];
  open: Set<number>;
  rests: Map<number, Rest>;
  parent: (id: number) => number;
}

/** The width of the control that picks one run of a repeat: `‹ 17 / 32 ›`. */
export function pickerWidth(count: number): number {
  return 46 + 13 * String(count).length;
}

/** The size of a box, or of the title of a frame, with room for its controls. */
export function sizeOf(model: GraphModel, node: number, open: boolean, right: boolean): Size {
  const count = model.of(node, "count");
  const picker = count > 1 ? pickerWidth(count) : 0;
  const twist = model.kids[node].length ? TWIST : 0;
  const [width, height] = titleOf(model, node, right);
  if (open) return [max(width + twist + (picker && picker + 8), 30), height];
  return [max(model.of(node, "width") + twist, picker && picker + 20), model.of(node, "height") + (picker && PICKER_HEIGHT)];
}

/** The size of a frame's title alone: to the right there is room for one line. */
export function titleOf(model: GraphModel, node: number, right: boolean): Size {
  return right ? [model.of(node, "title_line"), 20] : [model.of(node, "title_width"), model.of(node, "title_height")];
}

/** What is in sight of a model. `wanted` is a node whose neighbours are shown where not all are. */
export function visible(model: GraphModel, isOpen: (node: number) => boolean, wanted: number, widths: ArrayLike<number>, texts: string[], right: boolean): Visible {
  const found: Visible = { boxes: [], flows: [], nodes: [], open: new Set(), rests: new Map(), parent: (id) => found.rests.get(id)?.parent ?? model.parent(id) };
  const home = new Int32Array(model.count).fill(-1);
  const path = wanted < 0 ? [] : [...model.around(wanted), wanted];
  const hide = (node: number, box: number) => {
    home[node] = box;
    for (const kid of model.kids[node]) hide(kid, box);
  };
  const boxed = (node: number): Box => {
    found.nodes.push(node);
    home[node] = node;
    const open = model.kids[node].length > 0 && isOpen(node) && found.nodes.length < MOST_BOXES;
    if (!open) {
      for (const kid of model.kids[node]) hide(kid, node);
      return { id: node, size: sizeOf(model, node, false, right), inside: [] };
    }
    found.open.add(node);
    return { id: node, size: sizeOf(model, node, true, right), inside: siblings(model.kids[node], node) };
  };
  const siblings = (kids: number[], parent: number): Box[] => {
    if (kids.length <= MOST_KIDS) return kids.map(boxed);
    const at = kids.findIndex((kid) => path.includes(kid));
    const first = max(0, min(kids.length - MOST_KIDS, at - MOST_KIDS / 2));
    const rest = (left: number[], where: string): Box[] => {
      if (!left.length) return [];
      const id = model.count + found.rests.size;
      found.rests.set(id, { id, parent, text: `… ${left.length} ${where}` });
      for (const kid of left) hide(kid, id);
      return [{ id, size: [110, 22], inside: [] }];
    };
    return [...rest(kids.slice(0, first), "before"), ...kids.slice(first, first + MOST_KIDS).map(boxed), ...rest(kids.slice(first + MOST_KIDS), "more")];
  };
  found.boxes = siblings(model.tops, -1);
  found.flows = flowsOf(model, found, home);
  labelOnce(model, found, widths, texts, right);
  return found;
}

/** The edges of the model between the boxes in sight; those between the same two are one. */
function flowsOf(model: GraphModel, { open, rests }: Visible, home: Int32Array): Flow[] {
  const flows = new Map<string, Flow>();
  // A closed call has edges of its own; a repeat, and neighbours left out, those of the calls in it.
  const counts = (node: number, box: number): boolean => {
    let above = node === box ? -1 : model.parent(node);
    while (above >= 0 && above !== box && home[above] === box) {
      if (model.kind(above) !== "repeat") return false;
      above = model.parent(above);
    }
    return above !== box || model.kind(box) === "repeat";
  };
  for (let number = 0; number < model.edges; number++) {
    const { source, target, kind, values } = model.edge(number);
    const [from, to] = [home[source], home[target]];
    if (from === to || open.has(target) || !counts(target, to) || (rests.has(from) && rests.has(to))) continue;
    const key = `${from}:${to}:${kind}`;
    let flow = flows.get(key);
    if (!flow) flows.set(key, (flow = { source: from, target: to, kind, lane: kind === "order" ? kind : "", minor: false, values: new Set(), label: null, text: "" }));
    for (let i = 0; i < values.length; i++) flow.values.add(values[i]);
  }
  return [...flows.values()];
}

/** Give each line its label; lines that share their beginning have one, and none is repeated. */
function labelOnce(model: GraphModel, { flows, parent }: Visible, widths: ArrayLike<number>, texts: string[], right: boolean): void {
  const lines = new Map<string, { side: number; flows: Flow[] }>();
  for (const flow of flows) {
    const side = sideMet(flow, parent);
    const key = `${flow.source}:${side}:${flow.lane}`;
    const line = lines.get(key);
    if (line) line.flows.push(flow);
    else lines.set(key, { side, flows: [flow] });
  }
  const said = new Set<string>();
  for (const { side, flows: joined } of lines.values()) {
    const { text, width } = labelOf(model, joined, widths, texts);
    const key = `${joined[0].source}:${text}:${parent(side)}`;
    if (text && !said.has(key)) {
      joined[0].text = text;
      joined[0].label = [width + 10, right ? 14 : 12];
    }
    said.add(key);
  }
}

/** The target, or the outermost frame around it that does not contain the source. */
function sideMet(flow: Flow, parent: (id: number) => number): number {
  const around = new Set<number>([-1]);
  for (let at = flow.source; at >= 0; at = parent(at)) around.add(at);
  let side = flow.target;
  while (!around.has(parent(side))) side = parent(side);
  return side;
}

/** Dtype and shape of what some lines carry, shortened, and the width of the text. */
function labelOf(model: GraphModel, flows: Flow[], widths: ArrayLike<number>, texts: string[]): { text: string; width: number } {
  const labels = new Set<number>();
  for (const { values } of flows) for (const value of values) labels.add(model.label(value));
  const shown = [...labels].slice(0, MOST_LABELS);
  let text = shown.map((label) => texts[label]).join(", ");
  let width = 0;
  for (const label of shown) width += widths[label] + 7;
  const more = labels.size - shown.length;
  const count = max(...flows.map((flow) => flow.values.size));
  const suffix = (more ? `, +${more}` : "") + (text && labels.size === 1 && count > 1 ? ` ×${count}` : "")
    + (flows.every((flow) => flow.kind === "write") ? " in place" : "");
  text += suffix;
  return { text: text.trim(), width: width + suffix.length * 6.5 };
}

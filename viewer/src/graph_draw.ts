// Boxes and lines as SVG, in the classes of `clew/views/graph/stylesheet.py`, so that the page, a
// saved picture and `t.graph()` look the same.

import { r, s } from "./dom.ts";
import type { GraphModel } from "./graph_model.ts";
import { type Flow, pickerWidth, titleOf, type Visible } from "./graph_visible.ts";
import type { Picture, Point, Rect, Route } from "./layout_shapes.ts";

const STACK = 3;
const LINE = 14;
const ARROW = 6;

export interface Drawn {
  boxes: Map<number, SVGGElement>;
  lines: { flow: Flow; element: SVGElement }[];
}

export interface Look {
  /** What boxes are coloured by: `class`, or a number. */
  color: string;
  /** Whether the picture leads to the right, not down. */
  right: boolean;
  /** `NaN` or `Inf` where a run of a node has one, by node. */
  bad: (node: number) => string;
}

/** Draw everything into a group. */
export function draw(into: SVGGElement, model: GraphModel, seen: Visible, picture: Picture, look: Look): Drawn {
  const drawn: Drawn = { boxes: new Map(), lines: [] };
  const frames = seen.nodes.filter((node) => seen.open.has(node));
  const depth = (node: number) => model.around(node).filter((n) => model.kind(n) === "call").length;
  const parts: SVGElement[] = [];
  for (const node of frames) parts.push(put(drawn, node, frame(model, node, picture.boxes.get(node)!, depth(node), look)));
  const routes = seen.flows.map((flow, i) => [flow, picture.routes[i]] as const).filter((pair): pair is [Flow, Route] => pair[1] !== null && pair[1].points.length > 1);
  // Lines from one box share their beginning, which is drawn once.
  const begun = new Set<string>();
  for (const [flow, route] of routes) {
    const element = line(model, seen, flow, route, begun, look.right);
    drawn.lines.push({ flow, element });
    parts.push(element);
  }
  for (const node of seen.nodes) if (!seen.open.has(node)) parts.push(put(drawn, node, box(model, node, picture.boxes.get(node)!, look)));
  for (const { id, text } of seen.rests.values()) {
    const rect = picture.boxes.get(id)!;
    parts.push(s("g.rest", null, rectangle(rect, "stub", 10), s("text.label.mid", { "text-anchor": "middle", x: r(rect.x + rect.width / 2), y: r(rect.y + 14.5) }, text)));
  }
  for (const [flow, route] of routes) parts.push(...label(model, flow, route, look.right));
  into.replaceChildren(...parts);
  return drawn;
}

function put(drawn: Drawn, node: number, element: SVGGElement): SVGGElement {
  drawn.boxes.set(node, element);
  return element;
}

function rectangle(rect: Rect, css: string, radius: number): SVGElement {
  return s("rect", { class: css, x: r(rect.x), y: r(rect.y), width: r(rect.width), height: r(rect.height), rx: radius });
}

/** The group of a node, with all that is said of it for those who point at it or hear it. */
function group(model: GraphModel, node: number, css: string, open: boolean, children: (SVGElement | null)[]): SVGGElement {
  const openable = model.kids[node].length > 0;
  const name = [model.text(node, "name"), model.text(node, "class")].filter(Boolean).join(" ");
  const count = model.of(node, "count");
  const result = model.text(node, "result");
  const runs = count > 1 ? `${count} runs${model.of(node, "varies") ? ", sizes vary" : ""}` : "";
  const facts = [name, model.text(node, "facts"), result && `→ ${result}`, runs].filter(Boolean);
  return s("g", {
    class: `box is-${model.kind(node)}${css}${open ? " open" : ""}`, "data-box": node, "data-node": model.id(node), role: "button", tabindex: -1,
    "aria-expanded": openable ? String(open) : null, label: [name, result, runs].filter(Boolean).join(", "),
  }, s("title", null, facts.join("\n")), ...children);
}

function marks(model: GraphModel, node: number, look: Look): string {
  const bad = look.bad(node);
  return (model.of(node, "failed") ? " failed" : "") + (bad ? ` ${bad}` : "");
}

function twist(model: GraphModel, node: number, open: boolean): SVGElement | null {
  return model.kids[node].length ? s("tspan.twist", { "aria-hidden": true }, open ? "▾ " : "▸ ") : null;
}

function frame(model: GraphModel, node: number, rect: Rect, depth: number, look: Look): SVGGElement {
  const css = `frame d${Math.min(depth, 3) % 2}${marks(model, node, look)}`;
  const count = model.of(node, "count");
  const [x, y] = [rect.x + (look.right ? 12 : 14), rect.y + 17];
  const [wide, high] = titleOf(model, node, look.right);
  const cls = model.text(node, "class");
  const twoLines = high > 20;
  const title = s("text.title", { x: r(x), y: r(y) }, twist(model, node, true), s("tspan.name", null, model.text(node, "name")),
    count > 1 && s("tspan.times", { dx: 6 }, `×${count}`),
    cls && s("tspan.small", twoLines ? { x: r(x), dy: 13 } : { dx: 6 }, cls));
  // The control lies right of the title, where the layout left room for it.
  const beside = x + wide + 13 + 8;
  return group(model, node, marks(model, node, look), true, [
    count > 1 ? rectangle({ ...rect, x: rect.x + 4, y: rect.y + 4 }, css, 9) : null, rectangle(rect, css, 9), title,
    count > 1 ? picker(model, node, beside, rect.y + 4) : null,
  ]);
}

function box(model: GraphModel, node: number, rect: Rect, look: Look): SVGGElement {
  const kind = model.kind(node);
  const count = model.of(node, "count");
  const css = `${model.paint(node, look.color)}${marks(model, node, look)}`;
  if (kind !== "call" && kind !== "repeat") {
    const text = kind === "op" ? "op" : "io";
    return group(model, node, marks(model, node, look), false, [rectangle(rect, `${text} ${css}`, 10),
      s("text", { class: `title small ${text}-text`, "text-anchor": "middle", x: r(rect.x + rect.width / 2), y: r(rect.y + 13.8) },
        model.text(node, "name") + (count > 1 ? `×${count}` : ""))]);
  }
  const cards: Rect[] = [];
  if (count > 1) {
    rect = { ...rect, width: rect.width - 2 * STACK, height: rect.height - 2 * STACK };
    for (const off of [2 * STACK, STACK]) cards.push({ ...rect, x: rect.x + off, y: rect.y + off });
  }
  const middle = r(rect.x + rect.width / 2);
  const at = (number: number) => ({ "text-anchor": "middle", x: middle, y: r(rect.y + 17 + number * LINE) });
  const others = [model.text(node, "class"), model.text(node, "facts")].filter(Boolean);
  const title = s("text.title", at(0), twist(model, node, false), s("tspan.name", null, model.text(node, "name")), count > 1 && s("tspan.times", { dx: 6 }, `×${count}`));
  return group(model, node, marks(model, node, look), false, [
    ...cards.map((card) => rectangle(card, `call ${css}`, 6)), rectangle(rect, `call ${css}`, 6), title,
    ...others.map((text, i) => s("text", at(i + 1), s("tspan.small", null, text))),
    count > 1 ? picker(model, node, rect.x + rect.width / 2 - pickerWidth(count) / 2, rect.y + rect.height - 20) : null,
  ]);
}

/** The control that picks one run of a repeat. */
function picker(model: GraphModel, node: number, x: number, y: number): SVGGElement {
  const count = model.of(node, "count");
  const width = pickerWidth(count);
  const arrow = (sign: string, by: number, left: number) => s("g.pick", { "data-by": by, role: "button", label: `${by < 0 ? "previous" : "next"} of ${count}` },
    rectangle({ x: left, y, width: 18, height: 16 }, "hit", 8), s("text", { "text-anchor": "middle", x: r(left + 9), y: r(y + 12) }, sign));
  return s("g.picker", { "data-picker": node }, rectangle({ x, y, width, height: 16 }, "hold", 8), arrow("‹", -1, x), arrow("›", 1, x + width - 18),
    s("text.picked", { "text-anchor": "middle", x: r(x + width / 2), y: r(y + 11.5) }, `${model.picks[node] + 1} / ${count}`));
}

function line(model: GraphModel, seen: Visible, flow: Flow, route: Route, begun: Set<string>, right: boolean): SVGElement {
  const name = (id: number) => seen.rests.get(id)?.text ?? model.text(id, "name");
  const id = (node: number) => (seen.rests.has(node) ? "rest" : model.id(node));
  const how: Record<string, string> = { write: " (in place)", order: " (order)" };
  const [path, fresh, head] = curve(route.points, begun, right);
  return s("g", { class: `edge ${flow.kind}`, "data-edge": `${id(flow.source)} ${id(flow.target)}` },
    s("title", null, `${name(flow.source)} → ${name(flow.target)}${how[flow.kind] ?? ""}${flow.text && `\n${flow.text}`}`),
    s("path.line", { d: fresh }), s("path.reach", { d: path }), s("path.head", { d: head }));
}

function label(model: GraphModel, flow: Flow, { stub, label: at }: Route, right: boolean): SVGElement[] {
  const found: SVGElement[] = [];
  if (stub) {
    found.push(rectangle(stub, "stub", 8));
    found.push(s("text.label", { "text-anchor": "middle", x: r(stub.x + stub.width / 2), y: r(stub.y + 11.5) }, model.text(flow.source, "name")));
  }
  if (at && flow.text) found.push(s("text", { class: `label ${flow.kind}-label`, x: r(at.x + 5), y: r(at.y + (right ? 8.5 : 9.5)) }, flow.text));
  return found;
}

/** A smooth line through points, the pieces of it that no other line has drawn, its arrow head. */
function curve(points: Point[], begun: Set<string>, right: boolean): [line: string, fresh: string, head: string] {
  const tidy = points.filter((p, i) => i === points.length - 1 || p[0] !== points[i + 1][0] || p[1] !== points[i + 1][1]);
  const [x, y] = tidy[tidy.length - 1];
  const along = right ? 0 : 1;
  const back = tidy[tidy.length - 1][along] >= tidy[tidy.length - 2][along] ? ARROW : -ARROW;
  const corner = (side: number) => (right ? `${r(x - back)} ${r(y + side)}` : `${r(x + side)} ${r(y - back)}`);
  const head = `M${r(x)} ${r(y)}L${corner(-ARROW / 2)}L${corner(ARROW / 2)}Z`;
  tidy[tidy.length - 1] = right ? [x - back * 0.8, y] : [x, y - back * 0.8];
  let path = `M${r(tidy[0][0])} ${r(tidy[0][1])}`;
  let fresh = "";
  let joined = false;
  for (let i = 1; i < tidy.length; i++) {
    const [[x0, y0], [x1, y1]] = [tidy[i - 1], tidy[i]];
    const middle = r(right ? (x0 + x1) / 2 : (y0 + y1) / 2);
    const bends = right ? `${middle} ${r(y0)} ${middle} ${r(y1)}` : `${r(x0)} ${middle} ${r(x1)} ${middle}`;
    const piece = (right ? y0 === y1 : x0 === x1) ? `L${r(x1)} ${r(y1)}` : `C${bends} ${r(x1)} ${r(y1)}`;
    path += piece;
    const from = `M${r(x0)} ${r(y0)}`;
    const known = begun.has(from + piece);
    begun.add(from + piece);
    if (!known) fresh += joined ? piece : from + piece;
    joined = !known;
  }
  return [path, fresh, head];
}

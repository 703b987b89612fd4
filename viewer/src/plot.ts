// Curves on axes: a line per series, ticks, a readout under the pointer, and a way to the point.

import { h, on, r, s, stop } from "./dom.ts";
import { number } from "./format.ts";
import { abs, floor, log10, max, min, round } from "./maths.ts";

export interface Point {
  x: number;
  y: number;
  /** What a click on it leads to, -1 for nothing. */
  row: number;
}

export interface Line {
  name: string;
  look: string;
  points: Point[];
}

interface Options {
  label: string;
  /** What the horizontal axis counts. */
  x: string;
  /** Where the selection is on it, NaN for nowhere. */
  at?: number;
  /** A number of the vertical axis as text. */
  text?: (y: number) => string;
  pick?: (row: number) => void;
  /** How much room there is; in more or less the chart is scaled. */
  width?: number;
}

const HEIGHT = 104;
const LEFT = 46;
const RIGHT = 6;
const TOP = 8;
const BOTTOM = 24;
/** More points than this are drawn as the lowest and the highest of their neighbours. */
const MOST_POINTS = 600;

/** Colours of series, by their place in a list. */
export const LOOKS = ["a", "b", "c", "d", "e", "f"];

export function plot(lines: Line[], { label, x: xName, at = NaN, text = number, pick, width = 300 }: Options): HTMLElement | null {
  const drawn = lines.map((line) => ({ ...line, points: line.points.filter((point) => Number.isFinite(point.y)) })).filter((line) => line.points.length);
  if (!drawn.length) return null;
  const [left, right] = extent(drawn, (point) => point.x);
  const [least, most] = extent(drawn, (point) => point.y);
  const [low, high, step] = scale(least, most);
  const x = (v: number) => r(right > left ? LEFT + ((v - left) / (right - left)) * (width - LEFT - RIGHT) : (LEFT + width - RIGHT) / 2);
  const y = (v: number) => r(TOP + (1 - (v - low) / (high - low)) * (HEIGHT - TOP - BOTTOM));
  const hair = s("line.hair", { y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  const svg = s("svg.plot", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", label, tabindex: pick ? 0 : null },
    yAxis(low, high, step, y, text, width), xAxis(drawn, left, right, x, xName),
    Number.isFinite(at) && s("line.here", { x1: x(at), x2: x(at), y1: TOP, y2: HEIGHT - BOTTOM }),
    drawn.flatMap((line) => marks(line, x, y)), hair);
  const readout = h("output.readout", null, says(drawn, at, xName, text));
  follow(svg, drawn, { width, x, left, right, hair, at, show: (where) => (readout.textContent = says(drawn, where, xName, text)), pick });
  return h("figure.curves", null, h("figcaption", null, h("span", null, legend(lines, label)), readout), svg);
}

function extent(lines: Line[], of: (point: Point) => number): [number, number] {
  let low = Infinity;
  let high = -Infinity;
  for (const { points } of lines) for (const point of points) {
    low = min(low, of(point));
    high = max(high, of(point));
  }
  return [low, high];
}

/** The ends of an axis that holds all numbers, and the distance of its ticks, all of them round. */
export function scale(least: number, most: number): [low: number, high: number, step: number] {
  // An axis that begins near zero begins at zero.
  if (least > 0 && least < most / 2) least = 0;
  if (most < 0 && most > least / 2) most = 0;
  const span = most - least || abs(most) || 1;
  const power = 10 ** floor(log10(span / 3));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= span / 3)!;
  const low = floor(least / step) * step;
  let high = low + step;
  while (high < most) high += step;
  return [low, high, step];
}

function yAxis(low: number, high: number, step: number, y: (v: number) => number, text: (v: number) => string, width: number): SVGElement[] {
  const found = [];
  for (let i = 0; i <= round((high - low) / step); i++) {
    const v = low + i * step;
    // Sums of tenths are not quite round.
    const name = text(abs(v) < step / 1e6 ? 0 : Number(v.toPrecision(12)));
    found.push(s("line", { class: v === 0 ? "grid zero" : "grid", x1: LEFT, x2: width - RIGHT, y1: y(v), y2: y(v) }), s("text.end", { x: LEFT - 4, y: y(v) + 3 }, name));
  }
  return found;
}

function xAxis(lines: Line[], left: number, right: number, x: (v: number) => number, name: string): SVGElement[] {
  const found: SVGElement[] = [s("text.mid", { x: (x(left) + x(right)) / 2, y: HEIGHT - 2 }, name)];
  const known = new Set(lines.flatMap((line) => line.points.map((point) => point.x)));
  const all = [...known].sort((a, b) => a - b);
  const every = max(1, round(all.length / 5));
  all.forEach((v, i) => {
    const last = i === all.length - 1;
    if (!last && (i % every || (all.length - 1 - i) < every / 2)) return;
    found.push(s("line.tick", { x1: x(v), x2: x(v), y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 3 }),
      s("text", { class: v === right && right > left ? "end" : "mid", x: v === right && right > left ? x(v) + RIGHT - 1 : x(v), y: HEIGHT - BOTTOM + 12 }, String(v)));
  });
  return found;
}

function marks({ points, look }: Line, x: (v: number) => number, y: (v: number) => number): SVGElement[] {
  const shown = points.length > MOST_POINTS ? thinned(points) : points;
  const path = s("path", { class: `curve ${look}`, d: shown.map((point, i) => `${i ? "L" : "M"}${x(point.x)} ${y(point.y)}`).join("") });
  const dots = points.length <= 40 ? points.map((point) => s("circle", { class: `curve ${look}`, cx: x(point.x), cy: y(point.y), r: 1.8 })) : [];
  return [path, ...dots];
}

/** Of each stretch of neighbours the lowest and the highest, so that no spike is lost. */
function thinned(points: Point[]): Point[] {
  const found: Point[] = [];
  const size = points.length / (MOST_POINTS / 2);
  for (let at = 0; at < points.length; at += size) {
    const part = points.slice(floor(at), max(floor(at) + 1, floor(at + size)));
    let [low, high] = [part[0], part[0]];
    for (const point of part) {
      if (point.y < low.y) low = point;
      if (point.y > high.y) high = point;
    }
    found.push(...(low.x <= high.x ? [low, high] : [high, low]));
  }
  return found;
}

function legend(lines: Line[], label: string): (Node | string)[] {
  const named = lines.some((line) => label.includes(line.name));
  return [named ? "" : `${label} `, ...lines.flatMap((line) => [h("i", { class: line.look }), line.name])];
}

/** The numbers of all lines at one place of the horizontal axis. */
function says(lines: Line[], at: number, xName: string, text: (y: number) => string): string {
  if (!Number.isFinite(at)) return "";
  const there = lines.flatMap((line) => {
    const point = line.points.find((one) => one.x === at);
    return point ? [`${lines.length > 1 ? `${line.name} ` : ""}${text(point.y)}`] : [];
  });
  return there.length ? `${xName} ${at}: ${there.join(", ")}` : "";
}

interface Followed {
  width: number;
  x: (v: number) => number;
  left: number;
  right: number;
  hair: SVGElement;
  at: number;
  show: (x: number) => void;
  pick: ((row: number) => void) | undefined;
}

/** The readout follows the pointer; a click, or an arrow key, goes to a point. */
function follow(svg: SVGElement, lines: Line[], { width, x, left, right, hair, at, show, pick }: Followed): void {
  const points = lines.flatMap((line) => line.points);
  const under = (event: MouseEvent) => {
    const box = svg.getBoundingClientRect();
    const share = (((event.clientX - box.left) / box.width) * width - LEFT) / (width - LEFT - RIGHT);
    const wanted = left + share * (right - left);
    return points.reduce((best, point) => (abs(point.x - wanted) < abs(best.x - wanted) ? point : best));
  };
  on(svg, "pointermove", (event) => {
    const point = under(event);
    hair.setAttribute("x1", String(x(point.x)));
    hair.setAttribute("x2", String(x(point.x)));
    hair.setAttribute("visibility", "visible");
    show(point.x);
  });
  on(svg, "pointerleave", () => {
    hair.setAttribute("visibility", "hidden");
    show(at);
  });
  if (!pick) return;
  svg.classList.add("pick");
  // Of several lines the one nearest to the pointer is meant.
  on(svg, "click", (event) => pick(nearest(lines, under(event).x, event, svg)));
  on(svg, "keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    stop(event);
    const line = lines[0].points;
    const next = line[line.findIndex((point) => point.x === at) + by];
    if (next) pick(next.row);
  });
}

function nearest(lines: Line[], at: number, event: MouseEvent, svg: SVGElement): number {
  const box = svg.getBoundingClientRect();
  const [least, most] = extent(lines, (point) => point.y);
  const [low, high] = scale(least, most);
  const tall = ((event.clientY - box.top) / box.height) * HEIGHT;
  const wanted = low + (1 - (tall - TOP) / (HEIGHT - TOP - BOTTOM)) * (high - low);
  const there = lines.flatMap((line) => line.points.filter((point) => point.x === at));
  return there.reduce((best, point) => (abs(point.y - wanted) < abs(best.y - wanted) ? point : best)).row;
}

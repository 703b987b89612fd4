// Layered layout of one level of a graph, in linear time: boxes stay in the order in which they
// ran, edges lead down, long ones run in lanes of their own.
import { ceil, floor, max, min } from "./maths.ts";


export interface Box {
  width: number;
  height: number;
  x: number;
  y: number;
}

export interface Edge {
  /** Indices of boxes; IN and OUT are the borders of the level. */
  from: number;
  to: number;
  /** Corners of the way, set by the layout; empty for an edge that is shown as stubs. */
  points: [number, number][];
}

export const IN = -1;
export const OUT = -2;

const GAP = 22;
const LANE = 10;
const ROWS_GAP = 30;
const WIDEST = 6;
const LONGEST = 24;

interface Slot {
  box: number;
  width: number;
  x: number;
  up: Slot[];
  down: Slot[];
  order: number;
  /** The lane of the box's own edges on each level. */
  lanes: Slot[];
}

function slot(box: number, width: number, order: number): Slot {
  return { box, width, x: 0, up: [], down: [], order, lanes: [] };
}

/** Place boxes and edges; the size of the level. */
export function layout(boxes: Box[], edges: Edge[]): { width: number; height: number } {
  const rowOf = rows(boxes, edges);
  const depth = boxes.length ? max(...rowOf) + 1 : 1;
  const slots = boxes.map((box, i) => slot(i, box.width, i));
  const levels: Slot[][] = Array.from({ length: depth + 2 }, () => []);
  const input = slot(IN, 0, 0);
  const output = slot(OUT, 0, 0);
  levels[0].push(input);
  levels[depth + 1].push(output);
  slots.forEach((slot, i) => levels[rowOf[i] + 1].push(slot));
  const ways = edges.map((edge) => lanes(edge, slots, rowOf, levels, input, output));
  order(levels);
  place(levels);
  const extents = stack(levels, boxes);
  edges.forEach((edge, i) => {
    const way = ways[i];
    edge.points = way ? way.flatMap((slot, at) => corners(slot, at, boxes, extents, levelOf(slot, rowOf, depth, at, way, edge))) : [];
  });
  return { width: extents.width, height: extents.height };
}

function levelOf(slot: Slot, rowOf: number[], depth: number, at: number, way: Slot[], edge: Edge): number {
  if (slot.box >= 0) return rowOf[slot.box] + 1;
  if (slot.box === IN) return 0;
  if (slot.box === OUT) return depth + 1;
  return (edge.from === IN ? 0 : rowOf[way[0].box] + 1) + at;
}

/** The row of each box: below what it takes; what takes nothing stands right above its use. */
function rows(boxes: Box[], edges: Edge[]): number[] {
  const row = new Array<number>(boxes.length).fill(0);
  const takes = new Array<boolean>(boxes.length).fill(false);
  const into: number[][] = boxes.map(() => []);
  const outOf: number[][] = boxes.map(() => []);
  for (const { from, to } of edges) {
    if (to >= 0) takes[to] = true;
    if (from >= 0 && to >= 0 && from < to) {
      into[to].push(from);
      outOf[from].push(to);
    }
  }
  for (let i = 0; i < boxes.length; i++) for (const from of into[i]) row[i] = max(row[i], row[from] + 1);
  for (let i = boxes.length - 1; i >= 0; i--) {
    if (!takes[i] && outOf[i].length) row[i] = max(0, min(...outOf[i].map((to) => row[to])) - 1);
  }
  return narrowed(row);
}

/** Rows with too many boxes become several. */
function narrowed(row: number[]): number[] {
  const depth = row.length ? max(...row) + 1 : 0;
  const counts = new Array<number>(depth).fill(0);
  for (const r of row) counts[r]++;
  const starts: number[] = [];
  let next = 0;
  for (const n of counts) {
    starts.push(next);
    next += max(1, ceil(n / WIDEST));
  }
  const seen = new Array<number>(depth).fill(0);
  return row.map((r) => starts[r] + floor(seen[r]++ / WIDEST));
}

/** The slots an edge goes through, null if it is too long or leads back. */
function lanes(edge: Edge, slots: Slot[], rowOf: number[], levels: Slot[][], input: Slot, output: Slot): Slot[] | null {
  const from = edge.from === IN ? input : slots[edge.from];
  const to = edge.to === OUT ? output : slots[edge.to];
  const first = edge.from === IN ? 0 : rowOf[edge.from] + 1;
  const last = edge.to === OUT ? levels.length - 1 : rowOf[edge.to] + 1;
  if (last <= first || last - first > LONGEST) return null;
  const way = [from];
  const join = (next: Slot) => {
    const above = way[way.length - 1];
    way.push(next);
    if (above.down.includes(next)) return;
    above.down.push(next);
    next.up.push(above);
  };
  for (let level = first + 1; level < last; level++) {
    // All edges of one box share its lane, as far as they go.
    let lane = from.lanes[level];
    if (!lane) levels[level].push((lane = from.lanes[level] = slot(-3, LANE, from.order + 0.5)));
    join(lane);
  }
  join(to);
  return way;
}

/** Order each row by what lies above, boxes in the order in which they ran where that is a tie. */
function order(levels: Slot[][]): void {
  levels.forEach((level, depth) => {
    if (depth === 0) return;
    const above = new Map(levels[depth - 1].map((slot, i) => [slot, i]));
    const keys = new Map<Slot, number>();
    for (const slot of level) {
      const found = slot.up.map((up) => above.get(up)).filter((i): i is number => i !== undefined);
      keys.set(slot, found.length ? found.reduce((a, b) => a + b, 0) / found.length : 1e6 + slot.order);
    }
    level.sort((a, b) => keys.get(a)! - keys.get(b)! || Number(a.box === -3) - Number(b.box === -3) || a.order - b.order);
  });
}

/** Give each slot a place near those it is joined to, without overlap. */
function place(levels: Slot[][]): void {
  for (const level of levels) {
    let x = 0;
    for (const slot of level) {
      slot.x = x + slot.width / 2;
      x += slot.width + GAP;
    }
    for (const slot of level) slot.x -= (x - GAP) / 2;
  }
  for (let round = 0; round < 6; round++) {
    const down = round % 2 === 0;
    for (const level of down ? levels : [...levels].reverse()) {
      settle(level, (slot) => {
        const joined = down ? slot.up : slot.down;
        if (!joined.length) return slot.x;
        let sum = 0;
        for (const other of joined) sum += other.x;
        return sum / joined.length;
      });
    }
  }
}

/** The places nearest to the wanted ones that keep the order and the gaps. */
function settle(level: Slot[], wanted: (slot: Slot) => number): void {
  const blocks: { sum: number; weight: number; from: number; to: number }[] = [];
  const offsets: number[] = [];
  let offset = 0;
  level.forEach((slot, i) => {
    if (i) offset += level[i - 1].width / 2 + GAP + slot.width / 2;
    offsets.push(offset);
    const weight = slot.box === -3 ? 3 : 1;
    blocks.push({ sum: (wanted(slot) - offset) * weight, weight, from: i, to: i });
    while (blocks.length > 1) {
      const last = blocks[blocks.length - 1];
      const before = blocks[blocks.length - 2];
      if (before.sum / before.weight < last.sum / last.weight) break;
      before.sum += last.sum;
      before.weight += last.weight;
      before.to = last.to;
      blocks.pop();
    }
  });
  for (const { sum, weight, from, to } of blocks) {
    for (let i = from; i <= to; i++) level[i].x = sum / weight + offsets[i];
  }
}

interface Extents {
  width: number;
  height: number;
  tops: number[];
  heights: number[];
}

function stack(levels: Slot[][], boxes: Box[]): Extents {
  let left = Infinity;
  let right = -Infinity;
  for (const level of levels) {
    for (const slot of level) {
      left = min(left, slot.x - slot.width / 2);
      right = max(right, slot.x + slot.width / 2);
    }
  }
  const tops: number[] = [];
  const heights: number[] = [];
  let y = 0;
  levels.forEach((level, depth) => {
    const tall = level.reduce((most, slot) => (slot.box >= 0 ? max(most, boxes[slot.box].height) : most), 0);
    tops.push(y);
    heights.push(tall);
    for (const slot of level) {
      slot.x -= left;
      if (slot.box >= 0) {
        boxes[slot.box].x = slot.x - slot.width / 2;
        boxes[slot.box].y = y;
      }
    }
    const border = depth === 0 || depth === levels.length - 2;
    const used = depth === 0 ? level[0].down.length : depth === levels.length - 2 ? levels[depth + 1][0].up.length : 1;
    y += tall + (border ? (used ? ROWS_GAP * 0.7 : 4) : depth === levels.length - 1 ? 0 : ROWS_GAP);
  });
  return { width: max(0, right - left), height: y, tops, heights };
}

/** Where an edge passes a slot; in a lane, past the whole height of its row. */
function corners(slot: Slot, at: number, boxes: Box[], extents: Extents, level: number): [number, number][] {
  if (slot.box === IN) return [[slot.x, 0]];
  if (slot.box === OUT) return [[slot.x, extents.height]];
  const top = extents.tops[level];
  const bottom = top + extents.heights[level];
  if (slot.box < 0) return [[slot.x, top], [slot.x, bottom]];
  if (at > 0) return [[slot.x, top]];
  const own = boxes[slot.box].y + boxes[slot.box].height;
  return own < bottom ? [[slot.x, own], [slot.x, bottom]] : [[slot.x, own]];
}

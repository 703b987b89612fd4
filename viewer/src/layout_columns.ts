// Horizontal position of each box: edges as straight as possible, no overlaps. The steps are those of
// `box_columns.py` and `straight.py` in `clew/views/graph/layout`, after Brandes and Köpf (2001).

import { abs, max, min } from "./maths.ts";
import { pairs } from "./layout_shapes.ts";

/** A neighbour in the next row, the offset of the edge on this place and on that, rows it spans. */
export type Side = [other: number, own: number, its: number, span: number];

/** Rows of places, their half widths, their edges, and which are bends of a line. */
export interface Grid {
  rows: number[][];
  half: number[];
  above: Side[][];
  below: Side[][];
  bend: boolean[];
  room: (one: number, two: number) => number;
}

const MOST_TO_STRAIGHTEN = 3000;

/** The centre of each place. */
export function columns(grid: Grid): number[] {
  if (!grid.half.length) return [];
  const crossing = conflicts(grid);
  const outcomes: number[][] = [];
  for (const down of [true, false]) {
    for (const left of [true, false]) {
      const xs = oneCorner(grid, crossing, down, left);
      outcomes.push(left ? xs : xs.map((x) => -x));
    }
  }
  lineUp(grid, outcomes);
  const result = grid.half.map((_, place) => {
    const four = outcomes.map((xs) => xs[place]).sort((a, b) => a - b);
    return (four[1] + four[2]) / 2;
  });
  if (result.length <= MOST_TO_STRAIGHTEN) straighten(grid, result);
  return result;
}

/** Shift the outcomes to the narrowest: left-packed by its left side, others by its right. */
function lineUp({ half }: Grid, outcomes: number[][]): void {
  const spans = outcomes.map((xs) => {
    let low = Infinity;
    let high = -Infinity;
    for (let i = 0; i < xs.length; i++) {
      low = min(low, xs[i] - half[i]);
      high = max(high, xs[i] + half[i]);
    }
    return [low, high];
  });
  let best = spans[0];
  for (const span of spans) if (span[1] - span[0] < best[1] - best[0]) best = span;
  const [low, high] = best;
  spans.forEach(([left, right], number) => {
    const shift = number % 2 === 0 ? low - left : high - right;
    outcomes[number] = outcomes[number].map((x) => x + shift);
  });
}

function key(upper: number, lower: number): number {
  return upper * 2 ** 26 + lower;
}

/** Edges that cross the straight part of a line and so must not be aligned. */
function conflicts(grid: Grid): Set<number> {
  const found = new Set<number>();
  for (const [upper, lower] of pairs(grid.rows)) {
    const at = new Map(upper.map((place, i) => [place, i]));
    let start = 0;
    let low = 0;
    lower.forEach((place, i) => {
      const inner = innerOf(grid, place);
      if (inner < 0 && i < lower.length - 1) return;
      const high = inner >= 0 ? at.get(inner)! : upper.length - 1;
      for (const other of lower.slice(start, i + 1)) {
        for (const [neighbour] of grid.above[other]) {
          const where = at.get(neighbour)!;
          if (!(low <= where && where <= high) && !(grid.bend[other] && grid.bend[neighbour])) found.add(key(neighbour, other));
        }
      }
      start = i + 1;
      low = high;
    });
  }
  return found;
}

function innerOf(grid: Grid, place: number): number {
  if (!grid.bend[place] || !grid.above[place].length) return -1;
  const neighbour = grid.above[place][0][0];
  return grid.bend[neighbour] ? neighbour : -1;
}

/** Align towards one corner; if not `left`, the result is mirrored. */
function oneCorner(grid: Grid, crossing: Set<number>, down: boolean, left: boolean): number[] {
  let rows = down ? grid.rows : [...grid.rows].reverse();
  if (!left) rows = rows.map((row) => [...row].reverse());
  const [root, shift] = aligned(grid, rows, crossing, down, left ? 1 : -1);
  return packed(grid, rows, root, shift);
}

/** Blocks of places to be aligned: the root of each place, and its offset. */
function aligned(grid: Grid, rows: number[][], crossing: Set<number>, down: boolean, sign: number): [number[], number[]] {
  const root = grid.half.map((_, i) => i);
  const shift = grid.half.map(() => 0);
  const taken = grid.half.map(() => false);
  const [ties, back] = down ? [grid.above, grid.below] : [grid.below, grid.above];
  const promised = back.map(mainOf);
  for (const [before, row] of pairs(rows)) {
    const at = new Map(before.map((place, i) => [place, i]));
    let limit = -1;
    for (const place of row) {
      const sides = [...ties[place]].sort((a, b) => at.get(a[0])! - at.get(b[0])!);
      for (const [neighbour, own, its] of candidates(sides)) {
        const wanted = promised[neighbour] === -1 || promised[neighbour] === place;
        const where = at.get(neighbour)!;
        if (!wanted || limit >= where || taken[neighbour] || crossing.has(down ? key(neighbour, place) : key(place, neighbour))) continue;
        taken[neighbour] = true;
        root[place] = root[neighbour];
        shift[place] = shift[neighbour] + sign * (its - own);
        limit = where;
        break;
      }
    }
  }
  return [root, shift];
}

/** What a place may be aligned with: its shortest edge first, then the middle ones. */
function candidates(ties: Side[]): Side[] {
  const main = mainOf(ties);
  return [...ties.filter((tie) => tie[0] === main), ...(ties.length ? ties.slice((ties.length - 1) >> 1, (ties.length >> 1) + 1) : [])];
}

/** The neighbour at the other end of the one shortest edge, -1 if there are several. */
function mainOf(ties: Side[]): number {
  let shortest = Infinity;
  let main = -1;
  let count = 0;
  for (const tie of ties) {
    if (tie[3] < shortest) [shortest, main, count] = [tie[3], tie[0], 1];
    else if (tie[3] === shortest) count++;
  }
  return count === 1 ? main : -1;
}

/** Push blocks as far left as possible, then as far right as costs no width. */
function packed(grid: Grid, rows: number[][], root: number[], shift: number[]): number[] {
  const gaps = new Map<number, Map<number, number>>();
  for (const row of rows) {
    for (const [one, two] of pairs(row)) {
      const gap = grid.half[one] + grid.half[two] + grid.room(one, two) + shift[one] - shift[two];
      let known = gaps.get(root[one]);
      if (!known) gaps.set(root[one], (known = new Map()));
      known.set(root[two], max(known.get(root[two]) ?? gap, gap));
    }
  }
  const order = topological(root, gaps);
  const x: number[] = [];
  root.forEach((block, place) => (x[block] = max(x[block] ?? 0, grid.half[place] - shift[place])));
  for (const block of order) for (const [other, gap] of gaps.get(block) ?? []) x[other] = max(x[other], x[block] + gap);
  for (const block of order.reverse()) {
    let limit = Infinity;
    for (const [other, gap] of gaps.get(block) ?? []) limit = min(limit, x[other] - gap);
    if (limit < Infinity) x[block] = max(x[block], limit);
  }
  return root.map((block, place) => x[block] + shift[place]);
}

function topological(root: number[], gaps: Map<number, Map<number, number>>): number[] {
  const blocks = [...new Set(root)].sort((a, b) => a - b);
  const entering = new Map(blocks.map((block) => [block, 0]));
  for (const others of gaps.values()) for (const other of others.keys()) entering.set(other, entering.get(other)! + 1);
  const ready = blocks.filter((block) => !entering.get(block));
  const order: number[] = [];
  while (ready.length) {
    const block = ready.pop()!;
    order.push(block);
    for (const other of gaps.get(block)?.keys() ?? []) {
      entering.set(other, entering.get(other)! - 1);
      if (!entering.get(other)) ready.push(other);
    }
  }
  return order;
}

/** Move groups of aligned places where that aligns one more edge. */
function straighten(grid: Grid, xs: number[]): void {
  const group = xs.map((_, i) => i);
  const members = new Map(group.map((place) => [place, [place]]));
  const where: [row: number[], at: number][] = [];
  for (const row of grid.rows) row.forEach((place, at) => (where[place] = [row, at]));
  const join = (one: number, two: number) => {
    const [a, b] = [group[one], group[two]];
    if (a === b) return;
    const [small, large] = members.get(a)!.length <= members.get(b)!.length ? [a, b] : [b, a];
    for (const place of members.get(small)!) group[place] = large;
    members.get(large)!.push(...members.get(small)!);
    members.delete(small);
  };
  const hasRoom = (moved: number[], by: number): boolean => {
    const step = by > 0 ? 1 : -1;
    for (const place of moved) {
      const [row, at] = where[place];
      const other = row[at + step];
      if (other === undefined || group[other] === group[place]) continue;
      const gap = grid.half[place] + grid.half[other] + (step > 0 ? grid.room(place, other) : grid.room(other, place));
      if (abs(xs[other] - xs[place]) - abs(by) < gap - 1e-6) return false;
    }
    return true;
  };
  const edges = grid.below.flatMap((ties, place) => ties.map(([other, own, its, span]) => [span, place, other, own, its]));
  for (const [, place, other, own, its] of edges) if (abs(xs[place] + own - xs[other] - its) < 0.01) join(place, other);
  edges.sort((a, b) => a[0] - b[0] || a[1] - b[1] || a[2] - b[2] || a[3] - b[3] || a[4] - b[4]);
  for (const [, place, other, own, its] of edges) {
    const off = xs[place] + own - xs[other] - its;
    if (abs(off) < 0.01 || group[place] === group[other]) continue;
    const sides: [number, number][] = [[place, -off], [other, off]];
    const count = (side: number) => members.get(group[side])!.length;
    if (count(other) < count(place)) sides.reverse();
    for (const [side, by] of sides) {
      const moved = members.get(group[side])!;
      if (!hasRoom(moved, by)) continue;
      for (const each of moved) xs[each] += by;
      join(place, other);
      break;
    }
  }
}

// Rows of boxes, and their order in a row so that few edges cross: `layers.py` and `crossings.py` of
// `clew/views/graph/layout`, in the same steps.

import { max, min, round } from "./maths.ts";
import { pairs } from "./layout_shapes.ts";

const MOST_SWEEPS = 12;
const MUCH = 20_000;

/** The row of each box, 0, 2, 4 …: below all that lead to it; odd rows are free for labels. */
export function ranks(count: number, edges: [number, number][]): number[] {
  const rank = new Array<number>(count).fill(0);
  const following: number[][] = Array.from({ length: count }, () => []);
  const entering = new Array<number>(count).fill(0);
  for (const [source, target] of edges) {
    following[source].push(target);
    entering[target]++;
  }
  for (let box = 0; box < count; box++) for (const target of following[box]) rank[target] = max(rank[target], rank[box] + 2);
  // A box with more edges going out than coming in (an input, a constant) belongs near its targets.
  for (let box = count - 1; box >= 0; box--) {
    if (following[box].length > entering[box]) {
      let nearest = Infinity;
      for (const target of following[box]) nearest = min(nearest, rank[target]);
      rank[box] = max(rank[box], nearest - 2);
    }
  }
  const loners = rank.flatMap((_, b) => (!following[b].length && !entering[b] ? [b] : []));
  const inRow = loners.length === count ? max(4, round(count ** 0.5)) : 4;
  loners.forEach((box, at) => (rank[box] = 2 * Math.floor(at / inRow)));
  return rank;
}

/** The rows in an order with few crossings: sweeps down and up, the best of them. */
export function ordered(rows: number[][], above: number[][], below: number[][]): number[][] {
  let best = rows;
  let fewest = crossings(rows, below);
  let edges = 0;
  for (const found of below) edges += found.length;
  let current = rows;
  for (let sweep = 0; sweep < (edges < MUCH ? MOST_SWEEPS : 4) && fewest; sweep++) {
    const down = sweep % 2 === 0;
    current = swept(current, down ? above : below, down);
    const count = crossings(current, below);
    if (count < fewest) [best, fewest] = [current, count];
  }
  return best;
}

function swept(rows: number[][], neighbours: number[][], down: boolean): number[][] {
  const at: number[] = [];
  for (const row of rows) row.forEach((place, i) => (at[place] = i));
  const result = [...rows];
  for (let step = 0; step < rows.length; step++) {
    const number = down ? step : rows.length - 1 - step;
    const keys = new Map(result[number].map((place) => [place, middle(neighbours[place], at, at[place])]));
    result[number] = [...result[number]].sort((a, b) => keys.get(a)! - keys.get(b)!);
    result[number].forEach((place, i) => (at[place] = i));
  }
  return result;
}

function middle(neighbours: number[], at: number[], own: number): number {
  if (!neighbours.length) return own;
  let sum = 0;
  for (const place of neighbours) sum += at[place];
  return sum / neighbours.length;
}

/** Count the crossings of edges between neighbouring rows. */
export function crossings(rows: number[][], below: number[][]): number {
  let total = 0;
  const at: number[] = [];
  for (const [upper, lower] of pairs(rows)) {
    lower.forEach((place, i) => (at[place] = i));
    // A tree of sums: how many edges so far end at or before a place.
    const sums = new Int32Array(lower.length + 1);
    let seen = 0;
    for (const place of upper) {
      for (const other of below[place]) {
        let upTo = 0;
        for (let i = at[other] + 1; i > 0; i -= i & -i) upTo += sums[i];
        total += seen - upTo;
      }
      for (const other of below[place]) {
        seen++;
        for (let i = at[other] + 1; i <= lower.length; i += i & -i) sums[i]++;
      }
    }
  }
  return total;
}

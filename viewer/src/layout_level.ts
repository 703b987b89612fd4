// Layout of one frame: its boxes in rows, lines between them, ports where lines cross the frame's
// border. The steps are those of `clew/views/graph/layout/level.py`.

import { columns, type Side } from "./layout_columns.ts";
import { ordered, ranks } from "./layout_rows.ts";
import { pairs, type Point, type Rect, type Size, SPACE } from "./layout_shapes.ts";
import { abs, max, min } from "./maths.ts";

export const BOX = 0;
export const ENTRY = -1;
export const EXIT = 1;
const FAR = 1 << 20;

/** A line from one place to another; offsets fix it off a place's centre, null leaves it free. */
export interface Tie {
  source: number;
  target: number;
  leavesAt: number | null;
  arrivesAt: number | null;
  label: Size | null;
  minor: boolean;
}

export interface Laid {
  width: number;
  height: number;
  places: Rect[];
  ways: Point[][];
  labels: (Rect | null)[];
}

interface Place {
  width: number;
  height: number;
  row: number;
  bend: boolean;
  title: boolean;
}

interface Chain {
  places: number[];
  label: number;
  length: number;
}

/** The row of each place; ports are before the first row and after the last. */
export function rowsOfPlaces(sorts: number[], ties: Tie[]): number[] {
  const number = new Map<number, number>();
  sorts.forEach((sort, place) => { if (sort === BOX) number.set(place, number.size); });
  const inner: [number, number][] = [];
  for (const { source, target } of ties) {
    if (number.has(source) && number.has(target)) inner.push([number.get(source)!, number.get(target)!]);
  }
  const found = ranks(number.size, inner);
  let last = 0;
  for (const row of found) last = max(last, row);
  return sorts.map((sort, place) => (sort === BOX ? found[number.get(place)!] : sort === ENTRY ? -1 : last + 1));
}

/** How many rows all ties together pass. */
export function bendsOf(sorts: number[], ties: Tie[]): number {
  const rows = rowsOfPlaces(sorts, ties);
  let sum = 0;
  for (const { source, target } of ties) sum += max(0, rows[target] - rows[source] - 1);
  return sum;
}

/** Lay out numbered places, earlier runs before later ones; a line runs along a side of its label. */
export function layLevel(sizes: Size[], sorts: number[], ties: Tie[], titleSize: Size, side: number): Laid {
  const rowOf = rowsOfPlaces(sorts, ties);
  const places: Place[] = sizes.map(([width, height], i) => ({ width, height, row: rowOf[i], bend: false, title: false }));
  const chains = ties.map((tie) => chainOf(tie, places));
  let title = -1;
  if (titleSize[0]) {
    title = places.length;
    places.push({ width: titleSize[0], height: titleSize[1], row: -1, bend: false, title: true });
  }
  const above: number[][] = places.map(() => []);
  const below: number[][] = places.map(() => []);
  for (const { places: chain } of chains) {
    for (const [one, two] of pairs(chain)) {
      below[one].push(two);
      above[two].push(one);
    }
  }
  const body = ordered(filled(places).map((row) => row.filter((p) => p !== title)), above, below);
  if (title >= 0) body[0] = [title, ...body[0]];
  const [tiesAbove, tiesBelow] = fixed(ties, chains, body, places, sizes, sorts, side);
  const xs = columns({
    rows: body, half: places.map((place) => place.width / 2), above: tiesAbove, below: tiesBelow,
    bend: places.map((place) => place.bend), room: (one, two) => room(places[one], places[two]),
  });
  if (title >= 0) {
    let left = Infinity;
    xs.forEach((x, i) => { if (i !== title) left = min(left, x - places[i].width / 2); });
    xs[title] = min(xs[title], left + places[title].width / 2);
  }
  return finished(places, chains, body, xs, tiesBelow, sizes.length);
}

/** A tie with a bend in each row it passes, and the label in the first row after its box. */
function chainOf(tie: Tie, places: Place[]): Chain {
  const chain: Chain = { places: [tie.source], label: -1, length: 0 };
  const last = places[tie.target].row;
  for (let row = places[tie.source].row + 1; row < last; row++) {
    const labelled = tie.label !== null && chain.label < 0 && abs(row % 2) === 1;
    if (labelled) chain.label = places.length;
    chain.places.push(places.length);
    const [width, height] = labelled ? tie.label! : [0, 0];
    places.push({ width, height, row, bend: true, title: false });
  }
  chain.places.push(tie.target);
  chain.length = chain.places.length + (tie.minor ? FAR : 0);
  return chain;
}

function filled(places: Place[]): number[][] {
  const rows = new Map<number, number[]>();
  places.forEach((place, number) => {
    const row = rows.get(place.row);
    if (row) row.push(number);
    else rows.set(place.row, [number]);
  });
  return [...rows.keys()].sort((a, b) => a - b).map((row) => rows.get(row)!);
}

function room(one: Place, two: Place): number {
  if (one.title || two.title) return SPACE.boxes / 2;
  return one.bend || two.bend ? SPACE.lines : SPACE.boxes;
}

/** The ties between neighbouring places, with their offsets on each place. */
function fixed(ties: Tie[], chains: Chain[], rows: number[][], places: Place[], sizes: Size[], sorts: number[], side: number): [Side[][], Side[][]] {
  const at: number[] = [];
  for (const row of rows) row.forEach((place, i) => (at[place] = i));
  const leaves = endOffsets(ties, chains, at, true, sizes, sorts);
  const arrives = endOffsets(ties, chains, at, false, sizes, sorts);
  const above: Side[][] = places.map(() => []);
  const below: Side[][] = places.map(() => []);
  chains.forEach((chain, number) => {
    const offsets = chain.places.map((place) => side * places[place].width);
    offsets[0] = leaves[number];
    offsets[offsets.length - 1] = arrives[number];
    for (const [one, two, i] of pairs(chain.places)) {
      below[one].push([two, offsets[i - 1], offsets[i], chain.length]);
      above[two].push([one, offsets[i], offsets[i - 1], chain.length]);
    }
  });
  return [above, below];
}

/** The offset of each tie at its end: the shortest in the middle, the others beside it. */
function endOffsets(ties: Tie[], chains: Chain[], at: number[], leaving: boolean, sizes: Size[], sorts: number[]): number[] {
  const offsets = chains.map(() => 0);
  const ends = new Map<number, number[]>();
  ties.forEach((tie, number) => {
    const given = leaving ? tie.leavesAt : tie.arrivesAt;
    const place = leaving ? tie.source : tie.target;
    if (given !== null) offsets[number] = given;
    else if (ends.has(place)) ends.get(place)!.push(number);
    else ends.set(place, [number]);
  });
  for (const [place, numbers] of ends) {
    if (numbers.length === 1 || sorts[place] !== BOX) continue;
    const near = (n: number) => at[chains[n].places[leaving ? 1 : chains[n].places.length - 2]];
    numbers.sort((a, b) => near(a) - near(b));
    const middle = (numbers.length - 1) / 2;
    let main = 0;
    numbers.forEach((n, i) => {
      const [best, mine] = [chains[numbers[main]].length, chains[n].length];
      if (mine < best || (mine === best && abs(i - middle) < abs(main - middle))) main = i;
    });
    const most = max(main, numbers.length - 1 - main);
    const step = min(SPACE.lines, (sizes[place][0] / 2 - 8) / most);
    numbers.forEach((n, i) => (offsets[n] = (i - main) * step));
  }
  return offsets;
}

function finished(places: Place[], chains: Chain[], rows: number[][], columns: number[], below: Side[][], count: number): Laid {
  let left = Infinity;
  columns.forEach((x, i) => (left = min(left, x - places[i].width / 2)));
  const xs = columns.map((x) => x - left);
  const [tops, bottoms] = heights(places, rows, xs, below);
  const rects = places.map(({ width, height, row }, i): Rect => ({
    x: xs[i] - width / 2, y: (tops.get(row)! + bottoms.get(row)! - height) / 2, width, height,
  }));
  // Offsets of lines between two places; the first line decides for all between the same two.
  const known = below.map((ties) => {
    const found = new Map<number, [number, number]>();
    for (const [other, out, into] of ties) if (!found.has(other)) found.set(other, [out, into]);
    return found;
  });
  const ways = chains.map((chain) => wayOf(chain, places, xs, rects, tops, bottoms, known));
  let width = 0;
  for (const rect of rects) width = max(width, rect.x + rect.width);
  let height = 0;
  for (const bottom of bottoms.values()) height = max(height, bottom);
  return { width, height, places: rects.slice(0, count), ways, labels: chains.map((chain) => (chain.label < 0 ? null : rects[chain.label])) };
}

/** Top and bottom of each row; slanting lines between rows push them apart. */
function heights(places: Place[], rows: number[][], xs: number[], below: Side[][]): [Map<number, number>, Map<number, number>] {
  const tops = new Map<number, number>();
  const bottoms = new Map<number, number>();
  let y = 0;
  for (const row of rows) {
    const number = places[row[0]].row;
    tops.set(number, y);
    let tall = 0;
    let slant = 0;
    for (const place of row) {
      tall = max(tall, places[place].height);
      for (const [other, out, into] of below[place]) slant = max(slant, abs(xs[place] + out - xs[other] - into));
    }
    bottoms.set(number, y + tall);
    y += tall + SPACE.rows + min(slant * 0.1, 26);
  }
  return [tops, bottoms];
}

/** The points of a tie: straight down through each row, past the boxes. */
function wayOf(chain: Chain, places: Place[], xs: number[], rects: Rect[], tops: Map<number, number>, bottoms: Map<number, number>, known: Map<number, [number, number]>[]): Point[] {
  const points: Point[] = [];
  for (const [one, two] of pairs(chain.places)) {
    const [out, into] = known[one].get(two)!;
    const { row, bend } = places[one];
    const x = xs[one] + out;
    points.push([x, bend ? tops.get(row)! : rects[one].y + rects[one].height], [x, bottoms.get(row)!], [xs[two] + into, tops.get(places[two].row)!]);
  }
  points.push([points[points.length - 1][0], rects[chain.places[chain.places.length - 1]].y]);
  return points;
}

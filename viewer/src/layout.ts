// Layout of a whole graph: every frame separately, from the inside out, then put together. A link
// between boxes of different frames is cut where it crosses a frame; links of one origin share the
// ports there. The steps are those of `clew/views/graph/layout/nested.py`, so that the page and
// `t.graph()` draw the same picture.

import { bendsOf, BOX, ENTRY, EXIT, type Laid, layLevel, rowsOfPlaces, type Tie } from "./layout_level.ts";
import { type Box, type Link, type Picture, type Point, type Rect, type Route, type Size, SPACE } from "./layout_shapes.ts";
import { max } from "./maths.ts";

const TOP = -1;
// With more bends of lines in a frame than this, not all lines are drawn.
const MANY_BENDS = 20_000;
const MOST_BENDS = 100_000;

/** An end of a cut link in one frame: a box with the port used, or the frame's own port. */
interface End {
  sort: number;
  box: number;
  port: string;
}

/** One piece of one or more links inside one frame. */
interface Cut {
  source: End;
  target: End;
  origin: number;
  minor: boolean;
  label: Size | null;
  way: Point[];
  labelAt: Rect | null;
  stub: Rect | null;
}

interface Frame {
  box: Box;
  cuts: Map<string, Cut>;
  ports: Map<string, number>;
  size: Size;
  /** Where the frame's coordinates begin, from its corner. */
  inset: Point;
  places: Map<number, Rect>;
}

/** Pieces of one link, from its upper end to its lower, and whether it was reversed. */
interface Way {
  pieces: [frame: number, cut: Cut][];
  labelled: number;
  turned: boolean;
}

/** Place boxes and route links, downwards or to the right. */
export function layOut(boxes: Box[], links: Link[], stubSize: (box: number) => Size, right = false): Picture {
  return new Nested(boxes, links, stubSize, right).picture();
}

class Nested {
  private above = new Map<number, number>();
  private order = new Map<number, number>();
  private frames = new Map<number, Frame>();
  private ways: (Way | null)[];

  constructor(boxes: Box[], links: Link[], private readonly stubSize: (box: number) => Size, private readonly right: boolean) {
    this.index(TOP, { id: TOP, size: [0, 0], inside: boxes });
    this.ways = links.map((link) => this.cut(link));
  }

  private index(id: number, box: Box): void {
    this.frames.set(id, { box, cuts: new Map(), ports: new Map(), size: [0, 0], inset: [0, 0], places: new Map() });
    for (const inner of box.inside) {
      this.above.set(inner.id, id);
      this.order.set(inner.id, this.order.size);
      if (inner.inside.length) this.index(inner.id, inner);
    }
  }

  /** A box and the frames that contain it, innermost first. */
  private path(box: number): number[] {
    const path = [box];
    for (let at = this.above.get(box)!; at !== TOP; at = this.above.get(at)!) path.push(at);
    return path;
  }

  /** Cut a link at the frames it crosses; null if one end contains the other. */
  private cut(link: Link): Way | null {
    if (!this.order.has(link.source) || !this.order.has(link.target)) return null;
    let source = this.path(link.source);
    let target = this.path(link.target);
    while (source.length && target.length && source[source.length - 1] === target[target.length - 1]) {
      source.pop();
      target.pop();
    }
    if (!source.length || !target.length) return null;
    const turned = this.order.get(source[source.length - 1])! > this.order.get(target[target.length - 1])!;
    if (turned) [source, target] = [target, source];
    const lane = link.lane + (turned ? "<" : ">");
    const origin = source[0];
    const port = `${origin}${lane}`;
    const way: Way = { pieces: [], labelled: 0, turned };
    const end = (path: number[], depth: number): End => ({ sort: BOX, box: path[depth - 1], port: depth > 1 ? port : "" });
    const piece = (frame: number, from: End, to: End, label: Size | null = null) => {
      const { cuts } = this.frames.get(frame)!;
      const name = `${from.sort}:${from.box}:${from.port}|${to.sort}:${to.box}:${to.port}|${lane}`;
      let cut = cuts.get(name);
      if (!cut) cuts.set(name, (cut = { source: from, target: to, origin, minor: link.minor, label: null, way: [], labelAt: null, stub: null }));
      if (label) cut.label = cut.label ? [max(cut.label[0], label[0]), max(cut.label[1], label[1])] : label;
      way.pieces.push([frame, cut]);
    };
    for (let depth = 1; depth < source.length; depth++) piece(source[depth], end(source, depth), { sort: EXIT, box: source[depth], port });
    way.labelled = way.pieces.length;
    piece(this.above.get(source[source.length - 1])!, end(source, source.length), end(target, target.length), link.label);
    for (let depth = target.length - 1; depth > 0; depth--) piece(target[depth], { sort: ENTRY, box: target[depth], port }, end(target, depth));
    return way;
  }

  picture(): Picture {
    for (const frame of [...this.frames.values()].reverse()) this.layFrame(frame);
    const corners = new Map<number, Point>([[TOP, [0, 0]]]);
    const boxes = new Map<number, Rect>();
    for (const [id, frame] of this.frames) {
      const [left, top] = corners.get(id)!;
      for (const [inner, rect] of frame.places) {
        const moved = { ...rect, x: rect.x + left + frame.inset[0], y: rect.y + top + frame.inset[1] };
        boxes.set(inner, moved);
        corners.set(inner, [moved.x, moved.y]);
      }
    }
    const [width, height] = this.frames.get(TOP)!.size;
    const routes = this.ways.map((way) => (way ? this.route(way, corners) : null));
    if (!this.right) return { width, height, boxes, routes };
    return { width: height, height: width, boxes: new Map([...boxes].map(([id, rect]) => [id, turned(rect)])), routes };
  }

  /** Lay out the inside of one frame; the frames in it have their sizes already. */
  private layFrame(frame: Frame): void {
    const level = new FrameLevel(frame, this.frames, this.stubSize, this.right);
    const side = frame.box.id === TOP ? 0 : SPACE.frame;
    const title = frame.box.size;
    let laid: Laid;
    if (this.right || !side) {
      laid = level.lay([0, 0]);
      const ahead = title[1] ? title[1] + side / 2 : side;
      frame.size = [laid.width + ahead + side, max(laid.height, title[0]) + 2 * side];
      frame.inset = [ahead, side + max(0, title[0] - laid.height) / 2];
    } else {
      laid = level.lay(title);
      frame.size = [laid.width + 2 * side, laid.height + side * 1.25];
      frame.inset = [side, side / 4];
    }
    for (const [port, place] of level.ports) {
      const rect = laid.places[place];
      frame.ports.set(port, rect.x + rect.width / 2 + frame.inset[0] - frame.size[0] / 2);
    }
  }

  /** Join the pieces of a link, from its source to its target. */
  private route(way: Way, corners: Map<number, Point>): Route {
    const route: Route = { points: [], label: null, stub: null };
    way.pieces.forEach(([id, cut], number) => {
      const [left, top] = corners.get(id)!;
      const { inset } = this.frames.get(id)!;
      const [x, y] = [left + inset[0], top + inset[1]];
      const moved = (rect: Rect): Rect => {
        const there = { ...rect, x: rect.x + x, y: rect.y + y };
        return this.right ? turned(there) : there;
      };
      if (cut.stub) {
        route.points = [];
        route.stub = moved(cut.stub);
      }
      for (const [px, py] of cut.way) route.points.push([px + x, py + y]);
      if (cut.labelAt && number === way.labelled) route.label = moved(cut.labelAt);
    });
    if (way.turned) route.points.reverse();
    if (this.right) route.points = route.points.map(([px, py]) => [py, px]);
    return route;
  }
}

/** One frame as a level: its boxes, ports and stubs by number. */
class FrameLevel {
  readonly ports = new Map<string, number>();
  private boxes = new Map<number, number>();
  private stubs = new Map<Cut, number>();
  private sizes: Size[] = [];
  private sorts: number[] = [];
  private readonly cuts: Cut[];

  constructor(private readonly frame: Frame, private readonly frames: Map<number, Frame>, private readonly stubSize: (box: number) => Size, private readonly right: boolean) {
    this.cuts = [...frame.cuts.values()];
  }

  lay(title: Size): Laid {
    let ties = this.followable();
    // Far too many lines to follow, or to draw: the boxes say enough.
    if (bendsOf(this.sorts, ties) > MOST_BENDS) ties = [];
    const laid = layLevel(this.sizes, this.sorts, ties, title, this.right ? 0.5 : -0.5);
    this.cuts.forEach((cut, number) => {
      cut.way = laid.ways[number] ?? [];
      cut.labelAt = laid.labels[number] ?? null;
      cut.stub = this.stubs.has(cut) && cut.way.length ? laid.places[this.stubs.get(cut)!] : null;
    });
    for (const [box, place] of this.boxes) this.frame.places.set(box, laid.places[place]);
    return laid;
  }

  /** The ties, with stubs for lines that are too long to follow. */
  private followable(): Tie[] {
    const first = this.level(new Set());
    const rows = rowsOfPlaces(this.sorts, first);
    const tooLong = (...sources: number[]) => new Set(this.cuts.filter((cut, i) =>
      rows[first[i].target] - rows[first[i].source] > 2 * SPACE.longest && sources.includes(cut.source.sort) && cut.target.sort === BOX));
    const long = tooLong(BOX);
    const ties = long.size ? this.level(long) : first;
    const bends = bendsOf(this.sorts, ties);
    if (bends <= MANY_BENDS) return ties;
    const fewer = this.level(tooLong(BOX, ENTRY));
    return bendsOf(this.sorts, fewer) < bends ? fewer : this.level(long);
  }

  /** Number everything in the frame, earlier runs before later ones. */
  private level(long: Set<Cut>): Tie[] {
    this.sizes = [];
    this.sorts = [];
    this.stubs.clear();
    this.ports.clear();
    const place = (size: Size, sort = BOX) => {
      this.sizes.push(size);
      return this.sorts.push(sort) - 1;
    };
    const into = new Map<number, Cut[]>();
    for (const cut of long) into.set(cut.target.box, [...(into.get(cut.target.box) ?? []), cut]);
    for (const box of this.frame.box.inside) {
      const stubs = new Map<number, number>();
      for (const cut of into.get(box.id) ?? []) {
        const origin = cut.source.port ? cut.origin : cut.source.box;
        if (!stubs.has(origin)) stubs.set(origin, place(this.real(this.stubSize(origin))));
        this.stubs.set(cut, stubs.get(origin)!);
      }
      this.boxes.set(box.id, place(box.inside.length ? this.frames.get(box.id)!.size : this.real(box.size)));
    }
    for (const { source, target } of this.cuts) {
      for (const { sort, port } of [source, target]) {
        if (sort !== BOX && !this.ports.has(sort + port)) this.ports.set(sort + port, place([0, 0], sort));
      }
    }
    return this.cuts.map((cut) => this.tie(cut));
  }

  /** A size in the directions of the layout. */
  private real([width, height]: Size): Size {
    return this.right ? [height, width] : [width, height];
  }

  private tie(cut: Cut): Tie {
    const number = ({ sort, box, port }: End) => (sort === BOX ? this.boxes.get(box)! : this.ports.get(sort + port)!);
    const offset = ({ sort, box, port }: End, at: number) => (sort !== BOX ? 0 : port ? this.frames.get(box)!.ports.get(at + port)! : null);
    const target = number(cut.target);
    const arrivesAt = offset(cut.target, ENTRY);
    const stub = this.stubs.get(cut);
    if (stub !== undefined) return { source: stub, target, leavesAt: null, arrivesAt, label: null, minor: cut.minor };
    return { source: number(cut.source), target, leavesAt: offset(cut.source, EXIT), arrivesAt, label: cut.label && this.real(cut.label), minor: cut.minor };
  }
}

function turned({ x, y, width, height }: Rect): Rect {
  return { x: y, y: x, width: height, height: width };
}

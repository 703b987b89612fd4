// What goes into a layout and comes out: the words of `clew/views/graph/layout/shapes.py`.

export type Size = [width: number, height: number];
export type Point = [x: number, y: number];

export interface Rect {
  x: number;
  y: number;
  width: number;
  height: number;
}

/** A box of a size, or, with `inside`, a frame around others with a title of that size. */
export interface Box {
  id: number;
  size: Size;
  inside: Box[];
}

/** An edge to draw, `label` the size of its text. Links of different lanes share no line. */
export interface Link {
  source: number;
  target: number;
  label: Size | null;
  lane: string;
  minor: boolean;
}

/** Points of one link; one too long to draw begins at a stub beside its target. */
export interface Route {
  points: Point[];
  label: Rect | null;
  stub: Rect | null;
}

export interface Picture {
  width: number;
  height: number;
  boxes: Map<number, Rect>;
  /** In the order of the links, null for those not drawn. */
  routes: (Route | null)[];
}

/** Room between boxes of a row, beside lines, between rows, in frames; the rows a link may span. */
export const SPACE = { boxes: 22, lines: 12, rows: 12, frame: 14, longest: 30 };

/** Neighbours in a list, two by two. */
export function* pairs<T>(list: ArrayLike<T>): Generator<[T, T, number]> {
  for (let i = 1; i < list.length; i++) yield [list[i - 1], list[i], i];
}

// The numbers of a value as pictures: slices of its last two axes as heat maps, some at a time, three
// channels as one picture in colour, one slice of many calls as a film strip.

import { type Preview, numberOf } from "./charts.ts";
import { button, h, replace } from "./dom.ts";
import { abs, max, min, round } from "./maths.ts";

/** Slices in sight at once. */
export const PER_PAGE = 6;
type Colour = [red: number, green: number, blue: number];

/** Blue below zero, red above, white in between; what is not finite stands out. */
function colour(value: number, low: number, high: number): Colour {
  if (Number.isNaN(value)) return [255, 0, 220];
  if (!Number.isFinite(value)) return value > 0 ? [255, 150, 0] : [255, 230, 0];
  if (!(low < 0 && high > 0)) {
    // From deep blue over green to yellow; small numbers, which are the most, told apart as well.
    const lifted = (high > low ? (value - low) / (high - low) : 0.5) ** 0.5;
    return [mix(lifted, 68, 33, 253), mix(lifted, 1, 145, 231), mix(lifted, 84, 140, 37)];
  }
  const strong = min(1, abs(value) / max(abs(low), abs(high))) ** 0.5;
  return value < 0
    ? [round(247 - 214 * strong), round(247 - 145 * strong), round(247 - 75 * strong)]
    : [round(247 - 69 * strong), round(247 - 223 * strong), round(247 - 204 * strong)];
}

function mix(at: number, low: number, middle: number, high: number): number {
  return round(at < 0.5 ? low + (middle - low) * at * 2 : middle + (high - middle) * (at - 0.5) * 2);
}

function picture({ rows, columns }: Preview, label: string, of: (cell: number) => Colour): HTMLCanvasElement {
  const canvas = h("canvas", { width: columns, height: rows, role: "img", label });
  const image = new ImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++) image.data.set([...of(i), 255], i * 4);
  canvas.getContext("2d")!.putImageData(image, 0, 0);
  canvas.style.aspectRatio = `1 / ${min(10, max(0.12, rows / columns)).toFixed(3)}`;
  return canvas;
}

function heatMap(preview: Preview, slice: number, label: string, low = preview.low, high = preview.high): HTMLCanvasElement {
  const first = slice * preview.rows * preview.columns;
  return picture(preview, label, (cell) => colour(numberOf(preview, preview.cells[first + cell]), low, high));
}

/** Three slices as the red, green and blue of one picture, from the lowest number to the highest. */
function colourPicture(preview: Preview, slice: number, label: string): HTMLCanvasElement {
  const size = preview.rows * preview.columns;
  const { low, high } = preview;
  const light = (n: number) => (Number.isFinite(n) && high > low ? round((255 * (n - low)) / (high - low)) : 0);
  return picture(preview, label, (cell) => [0, 1, 2].map((channel) => light(numberOf(preview, preview.cells[(slice + channel) * size + cell]))) as Colour);
}

/** What the slices of a value stand for. */
export interface Slices {
  /** The sizes of all axes but the last two. */
  axes: number[];
  /** The second of two such axes counts heads of attention. */
  heads: boolean;
  /** Three slices at a time are the channels of a picture. */
  colours: boolean;
}

/** Read off the shape of a value, and the name of what made it, what its slices are. */
export function slicesOf(shape: string | null, maker: string): Slices {
  const sizes = (shape ?? "").split(",").map(Number);
  const axes = sizes.slice(0, -2);
  const heads = axes.length === 2 && /softmax|attention|attn/i.test(maker);
  return { axes, heads, colours: !heads && axes.length <= 2 && axes.at(-1) === 3 && min(...sizes.slice(-2)) >= 8 };
}

/** The name of a slice: its place on the axes before the last two. */
export function sliceName({ axes, heads }: Slices, slice: number): string {
  const at: number[] = [];
  for (let axis = axes.length - 1; axis >= 0; axis--) {
    at.unshift(slice % axes[axis]);
    slice = (slice - at[0]) / axes[axis];
  }
  if (heads) return `head ${at[1]}${axes[0] > 1 ? `, item ${at[0]}` : ""}`;
  return at.length ? `[${at.join(", ")}]` : "";
}

/** Where in the slices somebody is, kept while other calls of the same are looked at. */
export interface Place {
  page: number;
  channels: boolean;
}

/** A page of the slices, each with its name, and the ways to the others. */
export function tiles(preview: Preview, slices: Slices, place: Place, turned: () => void = () => undefined): HTMLElement {
  const holder = h("div.slices", null);
  const draw = () => {
    const inColour = slices.colours && !place.channels;
    const per = inColour ? 3 : 1;
    const total = Math.floor(preview.tiles / per);
    place.page = min(place.page, Math.ceil(total / PER_PAGE) - 1);
    const first = place.page * PER_PAGE;
    const shown = Array.from({ length: min(PER_PAGE, total - first) }, (_, i) => {
      const slice = (first + i) * per;
      const name = inColour ? (slices.axes.length > 1 ? `item ${first + i}` : "") : sliceName(slices, slice);
      const canvas = inColour ? colourPicture(preview, slice, `picture ${first + i} in colour`) : heatMap(preview, slice, `values of ${name || "the matrix"}`);
      return h("figure", null, canvas, total > 1 && h("figcaption", null, name));
    });
    const turn = (by: number) => {
      place.page += by;
      draw();
      turned();
    };
    const way = (sign: string, name: string, by: number, possible: boolean) => {
      const made = button(sign, name, () => turn(by));
      made.disabled = !possible;
      return made;
    };
    const all = slices.axes.reduce((product, size) => product * size, 1) / per;
    replace(holder,
      h("div", { class: `tiles t${min(3, shown.length)}` }, shown),
      (total > PER_PAGE || slices.colours) && h("p.pager", null,
        ...(total > PER_PAGE ? [way("‹", "Slices before", -1, first > 0), h("span", null, `${first + 1}–${first + shown.length} of ${total}`), way("›", "Slices after", 1, first + PER_PAGE < total)] : []),
        slices.colours && button(inColour ? "as channels" : "in colour", "Colour picture or a map for each channel", () => {
          place.channels = !place.channels;
          place.page = 0;
          draw();
        })),
      total < all && h("p.dim", null, `${total} of ${all} slices are in this page`));
  };
  draw();
  return holder;
}

export interface Frame {
  preview: Preview;
  name: string;
  row: number;
}

/** The same slice of several calls side by side, in the colours of one scale. */
export function filmStrip(frames: Frame[], slice: number, now: number, pick: (row: number) => void): HTMLElement {
  const low = min(...frames.map(({ preview }) => preview.low));
  const high = max(...frames.map(({ preview }) => preview.high));
  return h("div.film", { role: "group", label: "The same value in other calls" }, frames.map(({ preview, name, row }) =>
    h("button", { "aria-pressed": String(row === now), title: `Go to ${name}`, label: `Go to ${name}`, onclick: () => pick(row) },
      heatMap(preview, min(slice, preview.tiles - 1), name, low, high), h("span", null, name))));
}

// Texts in less room than they need. A number is shown whole or not at all: cut, it would read as
// another number. The whole text is then in the element's title.

import { max } from "./maths.ts";

/** A number, or the beginning of one, at the end of a text. */
const NUMBER = /[-+]?\.?\d[\d.]*(?:,\d{3}(?!\d))*(?:,\d{0,2})?(?:e[-+]?\d*)?$/i;

/** A text in at most so many characters; what is left out is an ellipsis, never part of a number. */
export function shorten(text: string, most: number): string {
  if (text.length <= most) return text;
  return text.slice(0, max(0, most - 1)).replace(NUMBER, "") + "…";
}

const fonts = new Map<string, string>();
let pen: CanvasRenderingContext2D | null = null;

function width(text: string, element: Element): number {
  const key = `${element.localName}.${element.className}`;
  let font = fonts.get(key);
  if (!font) fonts.set(key, (font = getComputedStyle(element).font));
  pen ??= document.createElement("canvas").getContext("2d")!;
  pen.font = font;
  return pen.measureText(text).width;
}

/** Shorten the texts of those elements that have too little room, where the ellipsis of the browser
 * would cut a number. All are measured before one is changed, as measuring after a change would lay
 * out the page again. */
export function fit(elements: Iterable<Element>): void {
  const tight: [HTMLElement, number][] = [];
  for (const element of elements as Iterable<HTMLElement>) {
    if (element.dataset.cut !== undefined) {
      element.removeAttribute("title");
      delete element.dataset.cut;
    }
    if (element.scrollWidth > element.clientWidth && element.textContent) tight.push([element, element.clientWidth]);
  }
  for (const [element, room] of tight) cut(element, room);
}

function cut(element: HTMLElement, room: number): void {
  const style = getComputedStyle(element);
  if (!element.title) {
    element.title = element.textContent!;
    element.dataset.cut = "";
  }
  const texts: Text[] = [];
  for (const walk = document.createTreeWalker(element, NodeFilter.SHOW_TEXT); walk.nextNode();) texts.push(walk.currentNode as Text);
  const whole = element.textContent!;
  const seen = fitting(texts, room - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight) - width("…", element));
  // The browser may find room for one character more or less.
  if (![-1, 0, 1].some((by) => NUMBER.test(whole.slice(0, max(0, seen + by))))) return;
  let left = shorten(whole, seen + 1).length - 1;
  for (const text of texts) {
    const { length } = text.data;
    if (left < length) text.data = left < 0 ? "" : `${text.data.slice(0, left)}…`;
    left = left < length ? -1 : left - length;
  }
}

/** How many characters of texts one after the other there is room for. */
function fitting(texts: Text[], room: number): number {
  let seen = 0;
  for (const { data, parentElement } of texts) {
    const all = width(data, parentElement!);
    if (all > room) {
      let most = data.length - 1;
      while (most > 0 && width(data.slice(0, most), parentElement!) > room) most--;
      return seen + most;
    }
    seen += data.length;
    room -= all;
  }
  return seen;
}

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

/** Shorten the texts of those elements that have too little room. All are measured before one is
 * changed, as measuring after a change would lay out the page again. */
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
  const texts: Text[] = [];
  for (let walk = document.createTreeWalker(element, NodeFilter.SHOW_TEXT); walk.nextNode();) texts.push(walk.currentNode as Text);
  const widths = texts.map((text) => width(text.data, text.parentElement!));
  let over = widths.reduce((sum, each) => sum + each, 0) - room + parseFloat(style.paddingLeft) + parseFloat(style.paddingRight);
  if (!element.title) {
    element.title = element.textContent!;
    element.dataset.cut = "";
  }
  for (let at = texts.length - 1; at >= 0 && over > 0; at--) {
    const text = texts[at];
    const least = widths[at] - over;
    let short = text.data;
    for (let most = short.length - 1; most > 0 && width(short, text.parentElement!) > least; most = short.length - 1) short = shorten(short, most);
    const fits = width(short, text.parentElement!) <= least;
    text.data = fits ? short : "";
    over = fits ? 0 : over - widths[at] + (at > 0 ? width("…", texts[at - 1].parentElement!) : 0);
  }
}

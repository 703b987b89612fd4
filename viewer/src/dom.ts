// Small helpers for elements. Texts are always set as text, never as HTML.

import { round } from "./maths.ts";

type Child = Node | string | number | null | undefined | false;
type Facts = Record<string, unknown>;

/** An element, `span.dim` with its classes: facts that begin with `on` are listeners,
 * the rest attributes, `label` short for `aria-label`. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K | `${K}.${string}`,
  facts: Facts | null = null,
  ...children: (Child | Child[])[]
): HTMLElementTagNameMap[K] {
  const [name, ...classes] = tag.split(".");
  return made(document.createElement(name as K), classes, facts, children);
}

const SVG = "http://www.w3.org/2000/svg";

export function s<K extends keyof SVGElementTagNameMap>(
  tag: K | `${K}.${string}`,
  facts: Facts | null = null,
  ...children: (Child | Child[])[]
): SVGElementTagNameMap[K] {
  const [name, ...classes] = tag.split(".");
  return made(document.createElementNS(SVG, name as K), classes, facts, children);
}

function made<T extends Element>(element: T, classes: string[], facts: Facts | null, children: (Child | Child[])[]): T {
  if (classes.length) element.setAttribute("class", classes.join(" "));
  if (facts) given(element, facts);
  append(element, children);
  return element;
}

function given(element: Element, facts: Facts): void {
  for (const [name, fact] of Object.entries(facts)) {
    if (fact === null || fact === undefined || fact === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), fact as EventListener);
    else element.setAttribute(name === "label" ? "aria-label" : name, fact === true ? "" : String(fact));
  }
}

function append(element: Element, children: (Child | Child[])[]): void {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

export function replace(element: Element, ...children: (Child | Child[])[]): void {
  element.textContent = "";
  append(element, children);
}

/** Listen to an element, the document or the window. */
export function on<K extends keyof GlobalEventHandlersEventMap>(
  target: EventTarget,
  name: K | "hashchange",
  act: (event: GlobalEventHandlersEventMap[K]) => void,
  options?: AddEventListenerOptions,
): void {
  target.addEventListener(name, act as EventListener, options);
}

/** Nobody else shall act on an event. */
export function stop(event: Event): void {
  event.preventDefault();
  event.stopPropagation();
}

/** A button with a visible sign and a name for those who do not see it. */
export function button(sign: string, name: string, act: (event: Event) => void, cls = ""): HTMLButtonElement {
  return h("button", { class: cls, title: name, label: name, onclick: act }, sign);
}

/** A coordinate in few digits. */
export function r(n: number): number {
  return round(n * 10) / 10;
}

/** Run once per frame, whatever how often it is asked for. */
export function perFrame(run: () => void): () => void {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      run();
    });
  };
}

// Small helpers for elements. Texts are always set as text, never as HTML.

type Child = Node | string | number | null | undefined | false;
type Facts = Record<string, unknown>;

/** An element: `on…` are listeners, `class` and `aria-…` attributes, the rest attributes too. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  facts: Facts | null = null,
  ...children: (Child | Child[])[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  if (facts) given(element, facts);
  append(element, children);
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function s<K extends keyof SVGElementTagNameMap>(
  tag: K,
  facts: Facts | null = null,
  ...children: (Child | Child[])[]
): SVGElementTagNameMap[K] {
  const element = document.createElementNS(SVG, tag);
  if (facts) given(element, facts);
  append(element, children);
  return element;
}

function given(element: Element, facts: Facts): void {
  for (const [name, fact] of Object.entries(facts)) {
    if (fact === null || fact === undefined || fact === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), fact as EventListener);
    else element.setAttribute(name, fact === true ? "" : String(fact));
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

/** A button with a visible sign and a name for those who do not see it. */
export function button(sign: string, name: string, act: (event: Event) => void, cls = ""): HTMLButtonElement {
  return h("button", { type: "button", class: cls, title: name, "aria-label": name, onclick: act }, sign);
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

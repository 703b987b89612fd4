// What is printed: not the panes but a sheet with the findings, the calls of the model with their
// shapes, and everything about the selection. It is made when somebody prints.

import { h, on, replace } from "./dom.ts";
import { count, time } from "./format.ts";
import type { View } from "./state.ts";

const MOST_LINES = 160;
const DEEPEST = 7;

export function printSheet(view: View, summary: string, details: HTMLElement): HTMLElement {
  const sheet = h("article.printed", null);
  const make = () => replace(sheet,
    h("h1", null, view.trace.name), h("p", null, summary),
    h("h2", null, "Findings"), findings(view),
    h("h2", null, "Calls"), calls(view),
    h("h2", null, "Selected"), copied(details));
  on(window, "beforeprint" as keyof GlobalEventHandlersEventMap, make);
  on(matchMedia("print"), "change", (event) => { if ((event as unknown as MediaQueryListEvent).matches) make(); });
  return sheet;
}

function findings({ trace }: View): HTMLElement {
  const { findings, left_out: leftOut, all_clear: allClear } = trace.head;
  return h("ul", null,
    findings.map(({ severity, text, row }) => h("li", { class: severity }, h("b", null, `${severity}: `), text,
      row >= 0 && ` (${[trace.address(row), trace.siteText(row)].filter(Boolean).join(", ")})`)),
    leftOut.map((text) => h("li", null, h("b", null, "left out: "), text)),
    allClear.length ? h("li", null, allClear.join(" · ")) : null);
}

/** The step of the selection: its calls, each with its class, result and time. Of calls of one class
 * side by side, which are mostly layers, the first shows what is inside. */
function calls({ trace, outline, selected }: View): HTMLElement {
  const lines: HTMLElement[] = [];
  let hidden = 0;
  const add = (node: number, depth: number, inside: boolean) => {
    if (lines.length >= MOST_LINES) {
      hidden++;
      return;
    }
    const isGroup = outline.isGroup(node);
    const cls = isGroup ? outline.summary(node) : trace.eventName(node);
    const name = outline.label(node);
    const title = h("td", null, h("b", null, name), cls !== name && ` ${cls}`);
    title.style.paddingLeft = `${depth * 14}px`;
    lines.push(h("tr", null, title, h("td.shape", null, isGroup ? "" : trace.output(node)), h("td.spent", null, time(outline.duration(node)))));
    if (!inside || depth >= DEEPEST) return;
    // Repeats are like each other: the first stands for all.
    walk(outline.kids(isGroup ? outline.kids(node)[0] : node), depth + 1);
  };
  const walk = (nodes: ArrayLike<number>, depth: number) => {
    const seen = new Set<string>();
    for (let i = 0; i < nodes.length; i++) {
      const node = nodes[i];
      if (outline.isGroup(node)) add(node, depth, !["pass", "part"].includes(outline.group(node).kind));
      else if (trace.isModule(node)) {
        const cls = trace.eventName(node);
        add(node, depth, !seen.has(cls));
        seen.add(cls);
      }
    }
  };
  // Of ranks and steps the one that the selection lies in stands for all.
  const path = selected < 0 ? [] : outline.path(selected);
  const first = path.findIndex((node) => !outline.isGroup(node));
  const groups = first < 0 ? path : path.slice(0, first);
  const last = (kind: string) => groups.filter((node) => outline.group(node).kind === kind).at(-1);
  const within = [last("rank"), last("step")].filter((node) => node !== undefined);
  const nodes = within.length ? outline.kids(within[within.length - 1]) : outline.roots();
  walk(nodes, 0);
  return h("div", null, within.length > 0 && h("p", null, `${within.map((node) => outline.label(node)).join(", ")} of ${count(trace.steps.length, "step")}`),
    h("table.calls", null, h("tbody", null, lines)), hidden > 0 && h("p", null, `… ${count(hidden, "more call")}`));
}

/** A copy with its pictures, which do not come along by themselves. */
function copied(details: HTMLElement): HTMLElement {
  const copy = details.cloneNode(true) as HTMLElement;
  copy.removeAttribute("tabindex");
  const pictures = details.querySelectorAll("canvas");
  copy.querySelectorAll("canvas").forEach((canvas, i) => canvas.getContext("2d")!.drawImage(pictures[i], 0, 0));
  for (const stack of copy.querySelectorAll("details")) stack.open = true;
  return copy;
}

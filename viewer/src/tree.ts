// The tree of ranks, steps, passes, module calls and ops. Only open nodes are in `rows`.

import { button, h, on, replace, stop } from "./dom.ts";
import { family, hue, measured, time, whole } from "./format.ts";
import { max, min } from "./maths.ts";
import type { View } from "./state.ts";
import { VirtualList } from "./virtual.ts";

const ROW = 24;
const SCREEN = 48;
const MOST_OPENED = 200_000;

export class Tree {
  readonly element: HTMLElement;
  private rows: number[] = [];
  private depths: number[] = [];
  private at = new Map<number, number>();
  private open = new Set<number>();
  private marked = new Set<number>();
  private readonly list: VirtualList;

  constructor(private readonly view: View) {
    this.list = new VirtualList(ROW, makeRow, (element, index) => this.fill(element, index), {
      role: "tree", label: "Module calls and operations", id: "tree",
    });
    on(this.list.element, "click", (event) => this.click(event));
    on(this.list.element, "dblclick", (event) => {
      const index = this.list.indexOf(event.target);
      if (index >= 0) this.toggle(this.rows[index]);
    });
    on(this.list.element, "keydown", (event) => this.key(event));
    this.element = h("section.pane.tree", { label: "Tree" },
      h("header.bar", null, h("h2", null, "Calls"), h("span.grow", null),
        button("⊞", "Open one level more (*)", () => this.openMore()),
        button("⊟", "Close everything", () => this.closeAll())),
      this.list.element);
    this.openFirst();
    this.rebuild();
    view.onSelect((from) => this.follow(from));
  }

  focus(): void {
    this.list.element.focus({ preventScroll: true });
  }

  /** Rows to mark, as the search found them. */
  mark(rows: Set<number>): void {
    this.marked = rows;
    this.list.draw();
  }

  /** Open what leads to where the page begins, that, and of what is in it as many levels as a screen has room for. */
  private openFirst(): void {
    const { outline, trace } = this.view;
    const { start } = trace.head;
    if (start < 0) return;
    const isOpened = (node: number) => outline.isGroup(node) || trace.isModule(node);
    for (const node of outline.path(start)) if (isOpened(node)) this.open.add(node);
    let level = trace.isModule(start) ? outline.kids(start) : [];
    let shown = level.length;
    while (level.length) {
      // Of modules that run others; what repeats stays one line.
      const inner = level.filter((node) => !outline.isGroup(node) && trace.isModule(node) && outline.kids(node).some(isOpened));
      shown += inner.reduce((sum, node) => sum + outline.kids(node).length, 0);
      if (shown > SCREEN) return;
      for (const node of inner) this.open.add(node);
      level = inner.flatMap((node) => outline.kids(node));
    }
  }

  private rebuild(): void {
    const { outline } = this.view;
    this.rows = [];
    this.depths = [];
    this.at.clear();
    const walk = (nodes: ArrayLike<number>, depth: number) => {
      for (let i = 0; i < nodes.length; i++) {
        const node = nodes[i];
        this.at.set(node, this.rows.length);
        this.rows.push(node);
        this.depths.push(depth);
        if (this.open.has(node)) walk(outline.kids(node), depth + 1);
      }
    };
    walk(outline.roots(), 0);
    this.list.setLength(this.rows.length);
  }

  private fill(element: HTMLElement, index: number): void {
    const { outline, trace } = this.view;
    const node = this.rows[index];
    const depth = this.depths[index];
    const [twist, dot, name, cls, shape, stat, spent] = element.children as unknown as HTMLElement[];
    const selected = node === this.view.selected;
    const isGroup = outline.isGroup(node);
    const hasKids = outline.hasKids(node);
    element.className = "row" + (selected ? " selected" : "") + (this.marked.has(node) ? " marked" : "");
    element.id = `node-${node}`;
    element.ariaLevel = String(depth + 1);
    element.ariaSelected = String(selected);
    element.ariaExpanded = hasKids ? String(this.open.has(node)) : null;
    if (selected) this.list.element.setAttribute("aria-activedescendant", element.id);
    element.style.paddingLeft = `${6 + depth * 14}px`;
    twist.textContent = hasKids ? (this.open.has(node) ? "▾" : "▸") : "";
    const times = outline.times(node);
    replace(name, outline.label(node), times > 1 && h("b.times", null, ` ×${whole(times)}`));
    stat.textContent = "";
    stat.className = "stat";
    if (isGroup) {
      const group = outline.group(node);
      const first = group.kind === "repeat" ? outline.firstRow(node) : -1;
      const isStack = first >= 0 && group.rows.length === group.count && trace.isModule(first);
      dot.className = isStack ? `dot module h${hue(trace.eventName(first))}` : `dot group ${group.phase}`;
      element.classList.add(isStack ? "module" : "group");
      cls.textContent = outline.summary(node);
      shape.textContent = isStack ? trace.output(first) : "";
    } else {
      const isModule = trace.isModule(node);
      dot.className = isModule ? `dot module h${hue(trace.eventName(node))}` : `dot ${trace.isOp(node) ? family(trace.eventName(node)) : "other"}`;
      const own = isModule && outline.label(node) !== trace.eventName(node) ? trace.eventName(node) : "";
      cls.textContent = isModule ? own : trace.isOp(node) ? "" : trace.kind(node);
      shape.textContent = trace.output(node);
      element.classList.toggle("module", isModule);
      if (trace.failed(node)) {
        element.classList.add("failed");
        dot.className = "dot bad";
      }
    }
    this.fillStat(stat, node);
    const duration = outline.duration(node);
    spent.textContent = !duration ? "" : times > 1 ? `${whole(times)}×${time(duration / times)}` : time(duration);
    const above = index && depth ? outline.duration(this.above(index)) : NaN;
    const share = above > 0 ? min(1, duration / above) : 0;
    spent.style.setProperty("--share", `${(100 * (share || 0)).toFixed(1)}%`);
  }

  private fillStat(stat: HTMLElement, row: number): void {
    const { outline, trace } = this.view;
    const bad = outline.nonfinite(row);
    if (bad) {
      stat.textContent = `${bad}!`;
      stat.className = `stat ${bad}`;
      return;
    }
    if (!trace.hasStats || outline.isGroup(row)) return;
    const value = trace.valuesOf(row, "out")[0];
    const stats = value === undefined ? null : trace.stats(value);
    if (stats && !Number.isNaN(stats.mean)) stat.textContent = measured(stats.mean) + (stats.count > 1 ? ` ± ${measured(stats.std)}` : "");
  }

  private above(index: number): number {
    const depth = this.depths[index];
    while (index >= 0 && this.depths[index] >= depth) index--;
    return this.rows[index];
  }

  private click(event: MouseEvent): void {
    const index = this.list.indexOf(event.target);
    if (index < 0) return;
    const node = this.rows[index];
    if ((event.target as HTMLElement).classList.contains("twist")) this.toggle(node);
    else this.view.choose(node, "tree");
  }

  private toggle(node: number, wanted?: boolean): void {
    if (!this.view.outline.hasKids(node)) return;
    const open = wanted ?? !this.open.has(node);
    if (open) this.open.add(node);
    else this.open.delete(node);
    this.rebuild();
  }

  private openMore(): void {
    const { outline } = this.view;
    for (const node of [...this.rows]) {
      if (!this.open.has(node) && outline.hasKids(node) && this.rows.length < MOST_OPENED) this.open.add(node);
    }
    this.rebuild();
  }

  private closeAll(): void {
    this.open.clear();
    this.rebuild();
  }

  private key(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { outline } = this.view;
    const index = this.at.get(this.view.selected) ?? -1;
    const node = index < 0 ? -1 : this.rows[index];
    const go = (to: number) => {
      const target = this.rows[max(0, min(this.rows.length - 1, to))];
      if (target !== undefined) this.view.choose(target, "keys");
    };
    switch (event.key) {
      case "ArrowDown": go(index + 1); break;
      case "ArrowUp": go(index < 0 ? 0 : index - 1); break;
      case "PageDown": go(index + this.list.visible); break;
      case "PageUp": go(index - this.list.visible); break;
      case "Home": go(0); break;
      case "End": go(this.rows.length - 1); break;
      case "ArrowRight":
        if (node < 0 || !outline.hasKids(node)) break;
        if (this.open.has(node)) go(index + 1);
        else this.toggle(node, true);
        break;
      case "ArrowLeft":
        if (node < 0) break;
        if (this.open.has(node)) this.toggle(node, false);
        else if (this.depths[index]) this.view.choose(this.above(index), "keys");
        break;
      case "Enter": case " ":
        if (node >= 0) this.toggle(node);
        break;
      case "*": this.openMore(); break;
      default: return;
    }
    stop(event);
  }

  private follow(from: string): void {
    const node = this.view.selected;
    if (node < 0) return this.list.draw();
    const above = this.view.outline.path(node).slice(0, -1);
    const closed = above.filter((n) => !this.open.has(n));
    for (const n of closed) this.open.add(n);
    if (closed.length) this.rebuild();
    this.list.reveal(this.at.get(node) ?? 0, from !== "tree" && from !== "keys");
    this.list.draw();
  }
}

function makeRow(): HTMLElement {
  const part = (cls: string) => h("span", { class: cls });
  return h("div.row", { role: "treeitem" },
    h("span.twist", { "aria-hidden": "true" }), part("dot"), part("name"), part("cls"),
    part("shape"), part("stat"), part("spent"));
}

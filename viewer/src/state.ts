// What is selected, and who wants to know. One `View` per trace: panes of a second trace beside the
// first would have a view of their own.

import { Outline } from "./outline.ts";
import type { Trace } from "./trace.ts";

export type Listener = (from: string) => void;

export class View {
  readonly outline: Outline;
  /** The selected node, -1 for none. */
  selected = -1;
  /** The value of the selected event that is looked at, -1 for its first result. */
  value = -1;
  private listeners: Listener[] = [];

  constructor(readonly trace: Trace) {
    this.outline = new Outline(trace);
  }

  onSelect(listener: Listener): void {
    this.listeners.push(listener);
  }

  /** Select a node, and tell every pane; `from` names the pane that asks. */
  choose(node: number, from: string, value = -1): void {
    if (node === this.selected && value === this.value) return;
    this.selected = node;
    this.value = value;
    this.tell(from);
  }

  /** Select the same call in another step, rank or round, and look at the same value of it. */
  scrub(row: number): void {
    const looked = this.value < 0 ? undefined : this.trace.leaves(this.selected).find((leaf) => leaf.value === this.value);
    const same = looked && this.trace.leaves(row).find((leaf) => leaf.role === looked.role && leaf.path === looked.path);
    this.choose(row, "scrub", same ? same.value : -1);
  }

  /** Tell every pane that what it shows has changed; `loaded` says that more numbers are there. */
  tell(from: string): void {
    for (const listener of this.listeners) listener(from);
  }

  /** The event that is selected, or the first of a selected group; -1 for none. */
  get row(): number {
    if (this.selected < 0) return -1;
    return this.outline.firstRow(this.selected);
  }
}

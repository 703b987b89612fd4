// The page's address: it holds what is selected, searched, chosen and how the panes are cut, leads back
// to it, and says so where it cannot.

import { h } from "./dom.ts";

/** Selections made while moving about with keys, or by the page itself, are no places to go back to. */
const PASSING = new Set(["keys", "start", "scrub", "loaded"]);
/** The parts of an address that a selection sets; the others stay as they are. */
const SELECTION = ["at", "up", "rank"];
/** How a page looks is no place either: going back does not change it. */
const LOOKS = ["theme", "pane", "tab", "left", "right", "code", "time"];

export class PageLink {
  /** What is wrong with the link that the page was opened with. */
  readonly problem = h("p.badlink", { role: "alert", hidden: true });
  private following = false;
  private parts = new URLSearchParams(location.hash.slice(1));

  /** `follow` selects what an address asks for, and returns the name of what it did not find, or null. */
  constructor(private readonly follow: (wanted: URLSearchParams) => string | null) {
    window.addEventListener("hashchange", () => this.read());
  }

  /** Go where the address says; whether it names something that is there. */
  read(): boolean {
    const wanted = new URLSearchParams(location.hash.slice(1));
    for (const name of LOOKS) put(wanted, name, this.parts.get(name));
    this.parts = wanted;
    this.following = true;
    const lacking = this.follow(wanted);
    this.following = false;
    this.problem.hidden = lacking === null;
    this.problem.textContent = lacking === null ? "" : `The link names ${lacking}, which is not in this page: it may have been left out, or the link is of another page.`;
    return wanted.has("at") && lacking === null;
  }

  /** What the address says of one thing, null if nothing. */
  get(name: string): string | null {
    return this.parts.get(name);
  }

  /** Write one thing into the address; nothing is gone away from by it. */
  keep(name: string, text: string | null): void {
    if (this.following || this.parts.get(name) === text) return;
    put(this.parts, name, text);
    this.show(true);
  }

  /** Write the selection into the address; `from` says who made it. */
  write(selection: Record<string, string>, from: string): void {
    if (this.following) return;
    if (from !== "start") this.problem.hidden = true;
    else if (!this.problem.hidden) return;
    const before = this.parts.toString();
    for (const name of SELECTION) put(this.parts, name, selection[name] ?? null);
    if (this.parts.toString() !== before) this.show(PASSING.has(from));
  }

  private show(instead: boolean): void {
    // A page inside a sandboxed frame may not have an address to write to.
    try {
      if (instead) history.replaceState(null, "", `#${this.parts}`);
      else history.pushState(null, "", `#${this.parts}`);
    } catch {
      // Nothing is lost but the link.
    }
  }
}

function put(parts: URLSearchParams, name: string, text: string | null): void {
  if (text === null || text === "") parts.delete(name);
  else parts.set(name, text);
}

// The page's address: it follows the selection, leads back to it, and says so where it cannot.

import { h } from "./dom.ts";

/** Selections made while moving about with keys, or by the page itself, are no places to go back to. */
const PASSING = new Set(["keys", "start"]);

export class PageLink {
  /** What is wrong with the link that the page was opened with. */
  readonly problem = h("p.badlink", { role: "alert", hidden: true });
  private following = false;

  /** `follow` selects what an address asks for, and returns the name of what it did not find, or null. */
  constructor(private readonly follow: (wanted: URLSearchParams) => string | null) {
    window.addEventListener("hashchange", () => this.read());
  }

  /** Go where the address says; whether it names something that is there. */
  read(): boolean {
    const wanted = new URLSearchParams(location.hash.slice(1));
    this.following = true;
    const lacking = this.follow(wanted);
    this.following = false;
    this.problem.hidden = lacking === null;
    this.problem.textContent = lacking === null ? "" : `The link names ${lacking}, which is not in this page: it may have been left out, or the link is of another page.`;
    return wanted.has("at") && lacking === null;
  }

  /** Write the selection into the address; `from` says who made it. */
  write(parts: URLSearchParams, from: string): void {
    if (this.following) return;
    if (from !== "start") this.problem.hidden = true;
    else if (!this.problem.hidden) return;
    // A page inside a sandboxed frame may not have an address to write to.
    try {
      if (PASSING.has(from)) history.replaceState(null, "", `#${parts}`);
      else history.pushState(null, "", `#${parts}`);
    } catch {
      // Nothing is lost but the link.
    }
  }
}

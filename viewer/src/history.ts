// The same call in other steps, ranks and rounds: curves of its numbers and times, and a film strip of
// what was kept of it.

import type { PreviewReader } from "./charts.ts";
import { button, h } from "./dom.ts";
import { count, time } from "./format.ts";
import { max, min } from "./maths.ts";
import { type Line, LOOKS, plot, type Point } from "./plot.ts";
import type { View } from "./state.ts";
import { filmStrip, sliceName, type Slices } from "./tiles.ts";
import type { Leaf, Stats, Trace } from "./trace.ts";

const MOST_FRAMES = 12;
const MOST_RANKS = LOOKS.length;

export class History {
  readonly rows: number[];
  private readonly trace: Trace;
  private readonly xName: string;
  /** Calls of each rank in order. */
  private readonly ranks = new Map<number, number[]>();

  /** `leaf` is the value that is looked at, in the calls' arguments or results. */
  constructor(private readonly view: View, private readonly row: number, private readonly leaf: Leaf | undefined) {
    const trace = (this.trace = view.trace);
    this.rows = trace.history(row);
    for (const each of this.rows) {
      const mine = this.ranks.get(trace.rank[each]);
      if (mine) mine.push(each);
      else this.ranks.set(trace.rank[each], [each]);
    }
    const oncePerStep = [...this.ranks.values()].every((rows) => rows.every((each, i) => !i || trace.step[each] > trace.step[rows[i - 1]]));
    this.xName = oncePerStep && trace.steps.length > 1 ? "step" : "call";
  }

  /** The charts, in so much room. */
  element(width: number): HTMLElement | null {
    const { rows, row, trace } = this;
    if (rows.length < 2) return null;
    const at = rows.indexOf(row);
    const to = (by: number) => rows[at + by] !== undefined && this.pick(rows[at + by]);
    const several = this.ranks.size > 1;
    const of = (name: string, stat: (stats: Stats) => number) => this.lines(name, (each) => {
      const stats = this.stats(each);
      return stats ? stat(stats) : NaN;
    });
    const mean = of("mean", (stats) => stats.mean);
    const std = of("std", (stats) => stats.std);
    const spent = this.lines("time", (each) => trace.duration[each]);
    const charts: [string, Line[]][] = several
      ? [["mean", mean], ["std", std]]
      : [["mean and std", [...mean, ...std.map((line) => ({ ...line, look: "b" }))]]];
    const here = this.place(row);
    return h("div.history", null,
      h("h4", null, "History ", h("span.dim", null, `${at + 1} of ${count(rows.length, "call")}`), " ",
        button("‹", "Previous call of the same ([)", () => to(-1)), button("›", "Next call of the same (])", () => to(1))),
      charts.map(([label, lines]) => plot(lines, { label, x: this.xName, at: here, pick: this.pick, width })),
      plot(several ? spent : spent.map((line) => ({ ...line, look: "c" })), { label: "time", x: this.xName, at: here, text: time, pick: this.pick, width }),
      this.ranks.size > MOST_RANKS && h("p.dim", null, `the first ${MOST_RANKS} of ${this.ranks.size} ranks`));
  }

  /** The kept data of the calls around this one as small pictures; null where there is one at most. */
  film(reader: PreviewReader, slice: number, slices: Slices): HTMLElement | null {
    const kept = this.rows.map((row) => ({ row, at: this.preview(row) })).filter(({ at }) => at >= 0);
    if (kept.length < 2) return null;
    const here = max(0, kept.findIndex(({ row }) => row === this.row));
    const first = max(0, min(here - MOST_FRAMES / 2, kept.length - MOST_FRAMES));
    const frames = kept.slice(first, first + MOST_FRAMES).map(({ row, at }) => ({ row, preview: reader.read(at), name: this.name(row) }));
    return h("div", null, h("p.dim", null, [sliceName(slices, slice), `in other ${this.xName}s`].filter(Boolean).join(" ")), filmStrip(frames, slice, this.row, this.pick),
      kept.length > MOST_FRAMES && h("p.dim", null, `${first + 1}–${first + frames.length} of ${count(kept.length, "kept value")}`));
  }

  private readonly pick = (row: number): void => this.view.scrub(row);

  private name(row: number): string {
    return `${this.ranks.size > 1 ? `rank ${this.trace.rank[row]}, ` : ""}${this.xName} ${this.place(row)}`;
  }

  /** Where a call is on the horizontal axis. */
  private place(row: number): number {
    return this.xName === "step" ? this.trace.step[row] : this.ranks.get(this.trace.rank[row])!.indexOf(row);
  }

  /** A line per rank. */
  private lines(name: string, y: (row: number) => number): Line[] {
    return [...this.ranks].slice(0, MOST_RANKS).map(([rank, rows], at) => ({
      name: this.ranks.size > 1 ? `rank ${rank}` : name,
      look: LOOKS[at],
      points: rows.map((row, i): Point => ({ x: this.xName === "step" ? this.trace.step[row] : i, y: y(row), row })),
    }));
  }

  private value(row: number): number {
    const { leaf } = this;
    return leaf ? (this.trace.leaves(row).find((other) => other.role === leaf.role && other.path === leaf.path)?.value ?? -1) : -1;
  }

  private stats(row: number): Stats | null {
    const value = this.value(row);
    return value < 0 ? null : this.trace.stats(value);
  }

  private preview(row: number): number {
    const value = this.value(row);
    return value < 0 ? -1 : this.trace.preview(value);
  }
}

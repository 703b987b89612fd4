// The plain data of a page, as `clew/views/html/report.py` and `diff_page.py` write it.

import type { GraphHead } from "./graph_model.ts";
import type { GradientsHead, LayersHead, MemoryHead } from "./chart_heads.ts";

export interface Head {
  format: number;
  traces: TraceHead[];
  /** Statistics are in an element of their own, as there are many. */
  later?: boolean;
  /** What a comparison found; only in its page. */
  diff?: DiffHead;
  columns: Record<string, [kind: string, offset: number, length: number, differences: number]>;
}

export interface TraceHead {
  rows: number;
  name: string;
  /** How much there is of everything, as printed above the tree. */
  summary: string[];
  strings: string[];
  files: string[];
  paths: string[];
  templates: [role: number, path: string, constant: string | null][][];
  metas: [text: string, short: string, shape: string | null, stride: string | null, device: string, dtype: string][];
  threads: string[];
  modules: [path: string, cls: string, params: number][];
  /** Families of classes, by their numbers in the spec. */
  classes: Record<string, number>;
  /** Names of each module that has several. */
  tied: string[][];
  ops: Record<string, [short: string, family: string]>;
  extra: Record<string, [path: string, value: number][]>;
  kinds: string[];
  phases: string[];
  environment: Record<string, any>;
  redacted: boolean;
  findings: Finding[];
  /** The row to open at. */
  start: number;
  /** What was looked for and not found, in a few words each. */
  all_clear: string[];
  /** Where NaN and Inf come from. */
  origins: { kind: string; severity: string; what: string; hint: string; row: number }[];
  gaps: { total: number; first: [what: string, where: string, why: string, remedy: string][] };
  left_out: string[];
  /** What `t.graph()` draws. */
  graph: GraphHead;
  /** What the charts of the lower pane are of; not in the page of a comparison. */
  layers?: LayersHead;
  memory?: MemoryHead;
  gradients?: GradientsHead;
}

/** What to know first, as `t.findings` lists it; the row is -1 where there is none to go to. */
export interface Finding {
  severity: "error" | "warning" | "info";
  kind: string;
  text: string;
  count: number;
  row: number;
}

/** A comparison of two runs, as `clew.diff` gives it, and what belongs to its rows. */
export interface DiffHead {
  title: string;
  equal: boolean;
  headline: string;
  evidence: string[];
  suspects: string[];
  notes: string[];
  matched: { a: number; b: number };
  noise: Record<string, number>;
  states: string[];
  /** Ops by their state, and how many of them do harm. */
  counts: Record<string, [all: number, harm: number]>;
  /** Where the runs part: a row, and the events of both runs, -1 where there is none. */
  first: { kind: string; row: number; a: number; b: number };
  /** Names of rows that have no event, in both runs. */
  texts: Record<string, [a: string, b: string]>;
  /** Rows of calls that both runs have, in the order they ended in. */
  calls: number[];
  calls_left_out: number;
  /** Settings of modules that differ, by row. */
  settings: Record<string, [name: string, a: string, b: string][]>;
  left_out: string[];
}

// The plain data of a report, as `clew/views/html/report.py` writes it. These names are in the
// files, so the build keeps them as they are.

export interface Head {
  format: number;
  traces: TraceHead[];
  columns: Record<string, [kind: string, offset: number, length: number, differences: number]>;
}

export interface TraceHead {
  rows: number;
  name: string;
  strings: string[];
  files: string[];
  paths: string[];
  templates: [role: number, path: string, constant: string | null][][];
  metas: [text: string, short: string, shape: string | null, stride: string | null, device: string, dtype: string][];
  threads: string[];
  modules: [path: string, cls: string, params: number][];
  extra: Record<string, [path: string, value: number][]>;
  kinds: string[];
  phases: string[];
  environment: Record<string, any>;
  redacted: boolean;
  findings: Finding[];
  /** What was looked for and not found, in a few words each. */
  all_clear: string[];
  /** Where NaN and Inf come from. */
  origins: { kind: string; severity: string; what: string; hint: string; row: number }[];
  gaps: { total: number; first: [what: string, where: string, why: string, remedy: string][] };
  left_out: string[];
}

/** What to know first, as `t.findings` lists it; the row is -1 where there is none to go to. */
export interface Finding {
  severity: "error" | "warning" | "info";
  kind: string;
  text: string;
  count: number;
  row: number;
}

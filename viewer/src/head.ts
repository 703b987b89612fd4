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
  crashes: Crash[];
  nonfinite: { known: boolean; total: number; first: { row: number; kind: string }[] };
  gaps: { total: number; first: [what: string, where: string, why: string, remedy: string][] };
  left_out: string[];
}

export interface Crash {
  text: string;
  row: number;
  rank: number;
}

// The address language, as far as a report can answer it: module paths, ops, lines, calls, roles, ranks.
// `clew/address/` defines it; what it would refuse finds nothing here, with a word why.

import { KIND, PHASE, ROLES } from "./spec.ts";
import type { Trace } from "./trace.ts";

export interface Found {
  rows: number[];
  role: "in" | "out" | null;
  path: string;
  problem: string;
}

type Test = (name: string) => boolean;

const KEY = /^\[(?:'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)")\]/s;
const INDEX = /^\[(0|[1-9]\d*)\]/;

interface Segment {
  text: string;
  /** Taken letter by letter. */
  literal: boolean;
}

/** Take a dotted pattern apart; null if it cannot be read. */
export function split(pattern: string): Segment[] | null {
  const found: Segment[] = [];
  let rest = pattern;
  let open = true;
  while (rest) {
    const key = KEY.exec(rest);
    if (key && (open || found.length)) {
      found.push({ text: (key[1] ?? key[2]).replace(/\\(.)/gs, "$1"), literal: true });
      rest = rest.slice(key[0].length);
      open = false;
      continue;
    }
    const index = open ? null : INDEX.exec(rest);
    if (index) {
      found.push({ text: index[1], literal: true });
      rest = rest.slice(index[0].length);
      continue;
    }
    if (rest[0] === ".") {
      if (open) return null;
      open = true;
      rest = rest.slice(1);
      if (!rest) return null;
      continue;
    }
    if (!open) return null;
    let end = 0;
    while (end < rest.length && rest[end] !== ".") {
      if (rest[end] === "[") {
        if (end && (INDEX.test(rest.slice(end)) || KEY.test(rest.slice(end)))) break;
        const from = rest[end + 1] === "!" ? end + 3 : end + 2;
        const close = rest.indexOf("]", from);
        if (close < 0) return null;
        end = close;
      }
      end++;
    }
    found.push({ text: rest.slice(0, end), literal: false });
    rest = rest.slice(end);
    open = false;
  }
  return found;
}

const escaped = (text: string) => text.replace(/[\\^$.*+?()[\]{}|/-]/g, "\\$&");

function segmentPattern({ text, literal }: Segment): string {
  if (literal || !/[*?[]/.test(text)) return escaped(text.replaceAll(".", "\0")) + "\\.";
  let pattern = "";
  for (const token of text.matchAll(/\*+|\?|\[(!?)([^\]]\]?[^\]]*)\]|[^*?[]+/gs)) {
    if (token[0][0] === "*") pattern += "[^.]*";
    else if (token[0] === "?") pattern += "[^.]";
    else if (token[2] !== undefined) pattern += `(?!\\.)[${token[1] ? "^" : ""}${classMembers(token[2])}]`;
    else pattern += escaped(token[0].replaceAll(".", "\0"));
  }
  return pattern + "\\.";
}

function classMembers(text: string): string {
  return text.replace(/[\\\]^]/g, "\\$&");
}

/** A test of dotted names; null if the pattern cannot be read. */
export function compile(pattern: string): Test | null {
  const segments = pattern ? split(pattern) : [];
  if (!segments) return null;
  const test = expression(segments);
  return test && ((name) => test.test(subject(name)));
}

function expression(segments: Segment[]): RegExp | null {
  const any = (segment: Segment) => segment.text === "**" && !segment.literal;
  try {
    return new RegExp(`^${segments.map((segment) => (any(segment) ? "(?:[^.]*\\.)*?" : segmentPattern(segment))).join("")}$`, "s");
  } catch {
    return null;
  }
}

/** A name as patterns see it: every segment ends with a dot, a dot inside a key is \0. */
function subject(name: string): string {
  if (!name.includes("[")) return name ? name + "." : "";
  const segments = split(name);
  return (segments ?? [{ text: name, literal: true }])
    .map(({ text }) => text.replaceAll(".", "\0") + ".")
    .join("");
}

export function opTest(pattern: string): Test | null {
  const test = compile(pattern);
  return test && ((name) => {
    const parts = name.split(".");
    return test(name) || (parts.length > 1 && (test(parts.slice(0, 2).join(".")) || test(parts[1])));
  });
}

export function fileTest(pattern: string): Test {
  const segments = pattern.replace(/^\.\//, "").split("/").map((text): Segment => ({ text, literal: false }));
  if (!pattern.startsWith("/")) segments.unshift({ text: "**", literal: false });
  const test = expression(segments);
  return (file) => test?.test(file.replaceAll(".", "\0").replaceAll("/", ".") + ".") ?? false;
}

const RANK = "(?:@(?<rank>0|[1-9]\\d{0,8}|\\*))?";
const TAIL = new RegExp(`^(?<path>.*?)(?:#(?<call>\\d+))?(?::(?<role>${ROLES.join("|")})(?<field>[.[].*?)?)?${RANK}$`, "s");
const LINE = new RegExp(`^line:(.+):(\\d+)${RANK}$`);

/** Rows that an address, or failing that any text, stands for. */
export function search(trace: Trace, text: string): Found {
  const wanted = text.trim();
  const nothing: Found = { rows: [], role: null, path: "", problem: "" };
  if (!wanted) return nothing;
  const line = LINE.exec(wanted);
  if (line) return { ...nothing, rows: ofRank(trace, onLine(trace, line[1], Number(line[2])), line[3]) };
  const parts = TAIL.exec(wanted)!.groups!;
  const call = parts.call === undefined ? -1 : Number(parts.call);
  const role = parts.role === "in" || parts.role === "out" ? parts.role : null;
  const path = (parts.field ?? "").replace(/^\./, "").replace(/\[(\d+)\]/g, ".$1").replace(/^\./, "");
  if (wanted.startsWith("op:")) {
    const test = opTest(parts.path.slice(3));
    if (!test) return { ...nothing, problem: "this pattern cannot be read" };
    return { ...nothing, role, path, rows: ofRank(trace, ops(trace, test, call), parts.rank) };
  }
  const test = compile(parts.path);
  const all = test ? named(trace, test, parts.path, call, role ? "" : (parts.role ?? "")) : [];
  const rows = ofRank(trace, all, parts.rank);
  if (rows.length) return { ...nothing, role, path, rows };
  return { ...nothing, rows: mentioning(trace, wanted, parts.rank), problem: test ? "" : "this pattern cannot be read" };
}

/** The rows of one rank; of all if none is said, or `*`. */
function ofRank(trace: Trace, rows: number[], rank: string | undefined): number[] {
  if (rank === undefined || rank === "*") return rows;
  return rows.filter((row) => trace.rank[row] === Number(rank));
}

/** Rows whose names contain a text; what looks like a rank at its end is one, unless a name has it. */
function mentioning(trace: Trace, text: string, rank: string | undefined): number[] {
  const rows = containing(trace, text);
  const bare = rank === undefined ? "" : text.slice(0, -rank.length - 1);
  return rows.length || !bare ? rows : ofRank(trace, containing(trace, bare), rank);
}

function memo(test: Test): Test {
  const known = new Map<string, boolean>();
  return (name) => {
    let answer = known.get(name);
    if (answer === undefined) known.set(name, (answer = test(name)));
    return answer;
  };
}

function ops(trace: Trace, test: Test, call: number): number[] {
  const cached = memo(test);
  const found: number[] = [];
  for (let row = 0; row < trace.rows; row++) {
    if (trace.isOp(row) && (call < 0 || trace.call(row) === call) && cached(trace.eventName(row))) found.push(row);
  }
  return found;
}

/** Module calls by their path, and whatever else has an address of its own. */
function named(trace: Trace, test: Test, path: string, call: number, role: string): number[] {
  const tied = new Map(trace.head.tied.flatMap((names) => names.map((name) => [name, names])));
  const cached = memo((name) => (tied.get(name) ?? [name]).some(test));
  const found: number[] = [];
  const roots: number[] = [];
  for (let row = 0; row < trace.rows; row++) {
    if (trace.isOp(row) || trace.kindOf[row] === KIND.step) continue;
    // A checkpoint runs calls again, which addresses do not count.
    if (trace.isModule(row) && trace.phaseOf[row] === PHASE.recompute) continue;
    const mine = TAIL.exec(trace.address(row))!.groups!;
    if (cached(mine.path) && (call < 0 || Number(mine.call) === call) && (mine.role ?? "") === role) found.push(row);
    else if (mine.path === `${path}#${call}`) roots.push(row);
  }
  // `Net#2` is the third call of Net; where there is none, the second root of that class.
  return found.length ? found : roots;
}

function onLine(trace: Trace, file: string, line: number): number[] {
  const cached = memo(fileTest(file));
  const found: number[] = [];
  for (let row = 0; row < trace.rows; row++) {
    const site = trace.siteId(row) && trace.site(row);
    if (site && site.line <= line && line <= site.endLine && cached(trace.filePath(site.file))) found.push(row);
  }
  return found;
}

function containing(trace: Trace, text: string): number[] {
  const wanted = text.toLowerCase();
  const test = memo((name) => name.toLowerCase().includes(wanted));
  const found: number[] = [];
  for (let row = 0; row < trace.rows; row++) {
    if (test(trace.eventName(row)) || (trace.isModule(row) && test(trace.module(row) ?? ""))) found.push(row);
  }
  return found;
}

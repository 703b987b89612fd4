// Numbers, times and names in few characters, in the formats of `clew/spec`; Python writes the same.

import { abs, floor, round } from "./maths.ts";
import { DIGITS, MINUTES_FROM, UNITS } from "./spec.ts";

export function whole(n: number): string {
  return n.toLocaleString("en-US");
}

export function count(n: number, noun: string, nouns = noun + "s"): string {
  return `${whole(n)} ${n === 1 ? noun : nouns}`;
}

/** A duration in nanoseconds; empty if there is none. */
export function time(ns: number): string {
  return ns >= 0 ? timeText(ns / 1e9) : "";
}

/** A duration with three digits, from a minute on as minutes and seconds. */
export function timeText(seconds: number): string {
  if (abs(seconds) < MINUTES_FROM) return scaled(seconds * 1e9, UNITS.time);
  const all = even(abs(seconds));
  const sign = seconds < 0 ? "-" : "";
  const two = (n: number) => String(n % 60).padStart(2, "0");
  const minutes = floor(all / 60);
  return minutes < 60 ? `${sign}${minutes}:${two(all)} min` : `${sign}${floor(minutes / 60)}:${two(minutes)}:${two(all)} h`;
}

/** A count with three digits. */
export function short(n: number): string {
  return scaled(n, UNITS.count);
}

export function bytes(n: number): string {
  return scaled(n, UNITS.bytes);
}

/** A statistic with four digits; a dash where it is not known. */
export function number(n: number): string {
  return Number.isNaN(n) ? "–" : measured(n, 4);
}

/** A measured number with so many significant digits. */
export function measured(n: number, digits: number = DIGITS): string {
  if (Number.isNaN(n)) return "NaN";
  if (!Number.isFinite(n)) return n > 0 ? "Inf" : "-Inf";
  if (n === 0) return Object.is(n, -0) ? "-0" : "0";
  const [mantissa, exponent] = precise(n, digits).split("e").map((part) => part.replace(/^\+/, ""));
  const power = Number(exponent);
  if (power >= -4 && power < digits) return trimmed(Number(`${mantissa}e${power}`).toFixed(digits - 1 - power));
  return `${trimmed(mantissa)}e${power < 0 ? "-" : "+"}${String(abs(power)).padStart(2, "0")}`;
}

function trimmed(text: string): string {
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

function scaled(n: number, { base, names }: { base: number; names: readonly string[] }): string {
  let unit = 0;
  // A number that rounds up to the next unit is written in that unit: 999.6 is 1.00k.
  while (abs(n) >= base - 0.5 && unit < names.length - 1) {
    n /= base;
    unit++;
  }
  return fixed(n, unit === 0 || abs(n) >= 99.95 ? 0 : abs(n) >= 9.995 ? 1 : 2) + names[unit];
}

/** The nearest whole number, of two the even one. */
function even(n: number): number {
  const low = floor(n);
  return n - low === 0.5 ? low + (low % 2) : round(n);
}

/** As `toFixed`, but what lies in the middle goes to the even digit, as in Python. */
function fixed(n: number, places: number): string {
  const scale = 10 ** places;
  // Only a multiple of this power of two can lie in the middle; its product with the scale is exact.
  const text = Number.isInteger(n * 2 ** (places + 1)) ? (even(abs(n * scale)) / scale).toFixed(places) : abs(n).toFixed(places);
  return n < 0 ? `-${text}` : text;
}

/** As `toExponential` with so many digits, but what lies in the middle goes to the even digit. */
function precise(n: number, digits: number): string {
  const text = n.toExponential(digits - 1);
  const [mantissa, power] = text.split("e");
  const last = Number(mantissa.at(-1));
  if (last % 2 === 0 || !n.toExponential(digits).includes("5e")) return text;
  const [exact, same] = n.toExponential(100).split("e");
  const isMiddle = same === power && /^50*$/.test(exact.replace(/[-.]/g, "").slice(digits));
  return isMiddle ? `${mantissa.slice(0, -1)}${last - 1}e${power}` : text;
}

/** What a payload says of a name: how views write it, and the family by which they colour it. */
const shorts = new Map<string, string>();
const families = new Map<string, string>();
const hues = new Map<string, number>();

export function learnOp(name: string, short: string, family: string): void {
  shorts.set(name, short);
  families.set(name, family);
}

export function learnClass(cls: string, family: number): void {
  hues.set(cls, family);
}

/** An op's name without the namespace and overload everyone knows. */
export function shortOp(name: string): string {
  return shorts.get(name) ?? name;
}

/** The family of an op, by which it is coloured. */
export function family(name: string): string {
  return families.get(name) ?? "math";
}

/** Whether an op only looks at memory in another way, or makes some. */
export function isView(name: string): boolean {
  return family(name) === "view";
}

/** The number of the family of a class of modules, by which it is coloured. */
export function hue(cls: string): number {
  return hues.get(cls) ?? 0;
}

export { shorten as clip } from "./fit.ts";

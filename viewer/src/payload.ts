// Reads what `clew/views/html/payload.py` writes: base64 of deflated bytes, a JSON head, columns
// whose bytes lie plane by plane.

import type { Head } from "./head.ts";

export type Column =
  | Uint8Array | Int8Array | Uint16Array | Int16Array | Uint32Array | Int32Array
  | Float32Array | Float64Array;

type Place = [kind: string, offset: number, length: number, differences: number];

const TYPES: Record<string, new (buffer: ArrayBuffer) => Column> = {
  "u1": Uint8Array, "i1": Int8Array, "u2": Uint16Array, "i2": Int16Array, "u4": Uint32Array,
  "i4": Int32Array, "f4": Float32Array, "f8": Float64Array,
};

/** A head and the columns it speaks of, each unpacked when it is asked for. */
export class Payload {
  private made = new Map<string, Column>();
  private later: Payload | null = null;
  /** Some columns are still being unpacked; until then they are empty. */
  pending = false;

  constructor(
    readonly head: Head,
    private readonly data: Uint8Array,
  ) {}

  has(name: string): boolean {
    return name in this.head.columns || !!this.later?.has(name);
  }

  /** Take the columns that were still missing. */
  join(later: Payload): void {
    this.later = later;
    this.pending = false;
  }

  column(name: string): Column {
    let column = this.made.get(name);
    if (!column) {
      const place = this.head.columns[name] as Place | undefined;
      if (!place && this.later) return this.later.column(name);
      if (!place && this.pending) return new Uint8Array(0);
      if (!place) throw new Error(`the report has no column ${name}; it was made by another version`);
      column = unpacked(this.data, place);
      this.made.set(name, column);
    }
    return column;
  }

  /** A column of bytes as text. */
  text(name: string): string {
    const [, offset, length] = this.head.columns[name] as Place;
    return new TextDecoder().decode(this.data.subarray(offset, offset + length));
  }
}

function unpacked(data: Uint8Array, [kind, offset, length, differences]: Place): Column {
  const column = joined(data, kind, offset, length);
  if (!differences) return column;
  const sums = new Float64Array(length);
  let sum = 0;
  for (let i = 0; i < length; i++) sums[i] = sum += column[i];
  return sums;
}

/** Join the planes of a column: whole words are written, which is several times as fast as bytes. */
function joined(data: Uint8Array, kind: string, offset: number, length: number): Column {
  const size = Number(kind[1]);
  const buffer = new ArrayBuffer(length * size);
  const planes = Array.from({ length: size }, (_, n) => data.subarray(offset + n * length, offset + (n + 1) * length));
  if (size === 1) new Uint8Array(buffer).set(planes[0]);
  else if (size === 2) joinPairs(new Uint16Array(buffer), planes[0], planes[1]);
  else for (let at = 0; at < size; at += 4) joinFours(new Uint32Array(buffer), at / 4, size / 4, planes.slice(at));
  return new TYPES[kind](buffer);
}

function joinPairs(words: Uint16Array, low: Uint8Array, high: Uint8Array): void {
  for (let i = 0; i < words.length; i++) words[i] = low[i] | (high[i] << 8);
}

function joinFours(words: Uint32Array, first: number, step: number, [a, b, c, d]: Uint8Array[]): void {
  for (let i = 0, to = first; to < words.length; i++, to += step) words[to] = a[i] | (b[i] << 8) | (c[i] << 16) | (d[i] << 24);
}

/** Unpack the text of a data element of the page. */
export async function readPayload(id: string): Promise<Payload> {
  let element = document.getElementById(id);
  if (!element && document.readyState === "loading") {
    await new Promise((read) => document.addEventListener("DOMContentLoaded", read, { once: true }));
    element = document.getElementById(id);
  }
  if (!element) throw new Error(`the report has no ${id}; the file is not complete`);
  const data = await inflated(fromBase64(element.textContent ?? ""));
  element.textContent = "";
  const size = new DataView(data.buffer, data.byteOffset).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(data.subarray(4, 4 + size)));
  return new Payload(head, data.subarray(4 + size));
}

function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  const native = (Uint8Array as any).fromBase64;
  if (native) return native.call(Uint8Array, text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

async function inflated(bytes: Uint8Array<ArrayBuffer>): Promise<Uint8Array> {
  if (typeof DecompressionStream === "undefined") {
    throw new Error("this browser is too old to unpack it; one from 2024 or later opens it");
  }
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

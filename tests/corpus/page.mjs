// Asks the viewer's own code what pages hold: the data of pages comes in as a JSON list, for each of
// them the facts of all rows and of the whole trace go out.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { inflateRawSync } from "node:zlib";

const viewer = new URL("../../viewer/", import.meta.url);
const { buildSync } = createRequire(new URL("package.json", viewer))("esbuild");
const contents = ["payload", "trace"].map((name) => `export * from "./${name}.ts";`).join("");
const stdin = { contents, resolveDir: new URL("src", viewer).pathname };
const built = buildSync({ stdin, bundle: true, format: "esm", write: false });
const { Payload, Trace } = await import("data:text/javascript;base64," + Buffer.from(built.outputFiles[0].contents).toString("base64"));

function opened(text) {
  const data = new Uint8Array(inflateRawSync(Buffer.from(text, "base64")));
  const size = new DataView(data.buffer, data.byteOffset).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(data.subarray(4, 4 + size)));
  return new Trace(head.traces[0], new Payload(head, data.subarray(4 + size)), "0.");
}

// JSON has no NaN.
const number = (found) => (Number.isFinite(found) ? found : String(found));

function value(trace, { role, path, value }) {
  const { dtype, shape } = trace.meta(value);
  const stats = trace.stats(value);
  return { role, path, dtype, shape, stats: stats && [number(stats.min), number(stats.max), stats.nan, stats.inf] };
}

function event(trace, row) {
  const site = trace.site(row);
  return {
    kind: trace.kind(row),
    module: trace.module(row),
    line: site && [trace.filePath(site.file), site.line],
    address: trace.address(row),
    step: trace.step[row],
    call: trace.call(row),
    phase: trace.phase(row),
    rank: trace.rank[row],
    values: trace.leaves(row).filter((leaf) => leaf.value >= 0).map((leaf) => value(trace, leaf)),
  };
}

console.log(JSON.stringify(JSON.parse(readFileSync(0, "utf8")).map((text) => {
  const trace = opened(text);
  const events = Array.from({ length: trace.rows }, (_, row) => event(trace, row));
  return { events, gaps: trace.head.gaps.first, findings: trace.head.findings };
})));

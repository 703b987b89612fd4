// Asks the viewer's own search: a report's data and addresses come in as JSON, the rank and address
// of each row found go out.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { inflateRawSync } from "node:zlib";

const viewer = new URL("../../viewer/", import.meta.url);
const { buildSync } = createRequire(new URL("package.json", viewer))("esbuild");
const contents = ["address", "payload", "trace"].map((name) => `export * from "./${name}.ts";`).join("");
const stdin = { contents, resolveDir: new URL("src", viewer).pathname };
const built = buildSync({ stdin, bundle: true, format: "esm", write: false });
const { Payload, Trace, search } = await import("data:text/javascript;base64," + Buffer.from(built.outputFiles[0].contents).toString("base64"));

const asked = JSON.parse(readFileSync(0, "utf8"));
const data = new Uint8Array(inflateRawSync(Buffer.from(asked.data, "base64")));
const size = new DataView(data.buffer, data.byteOffset).getUint32(0, true);
const head = JSON.parse(new TextDecoder().decode(data.subarray(4, 4 + size)));
const trace = new Trace(head.traces[0], new Payload(head, data.subarray(4 + size)), "0.");
console.log(JSON.stringify(asked.addresses.map((address) =>
  search(trace, address).rows.map((row) => [trace.rank[row], trace.address(row)]))));

// Asks the viewer's own formats: [format, number, more] come in as JSON, texts go out. A number that
// JSON cannot hold comes as a text.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

const viewer = new URL("../../viewer/", import.meta.url);
const { buildSync } = createRequire(new URL("package.json", viewer))("esbuild");
const built = buildSync({ entryPoints: [new URL("src/format.ts", viewer).pathname], bundle: true, format: "esm", write: false });
const { short, bytes, timeText, measured, whole, count } = await import("data:text/javascript;base64," + Buffer.from(built.outputFiles[0].contents).toString("base64"));
const formats = { count: short, bytes, time: timeText, measured, whole, counted: count };

const odd = { NaN, Inf: Infinity, "-Inf": -Infinity, "-0": -0 };
const asked = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(asked.map(([format, number, ...more]) => formats[format](odd[number] ?? number, ...more))));

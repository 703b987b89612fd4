// Asks the viewer how it writes numbers on axes: lists of [function, ...arguments] come in as JSON, the
// texts go out.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

const viewer = new URL("../../viewer/", import.meta.url);
const { buildSync } = createRequire(new URL("package.json", viewer))("esbuild");
const built = buildSync({ entryPoints: [new URL("src/chart_text.ts", viewer).pathname], bundle: true, format: "esm", write: false });
const texts = await import("data:text/javascript;base64," + Buffer.from(built.outputFiles[0].contents).toString("base64"));
console.log(JSON.stringify(JSON.parse(readFileSync(0, "utf8")).map(([name, ...given]) => texts[name](...given))));

// Asks the viewer's own matcher: [kind, pattern, name] come in as JSON, answers go out.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

const viewer = new URL("../../viewer/", import.meta.url);
const { buildSync } = createRequire(new URL("package.json", viewer))("esbuild");
const built = buildSync({ entryPoints: [new URL("src/address.ts", viewer).pathname], bundle: true, format: "esm", write: false });
const address = await import("data:text/javascript;base64," + Buffer.from(built.outputFiles[0].contents).toString("base64"));
const tests = { path: address.compile, op: address.opTest, file: address.fileTest };

const asked = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(asked.map(([kind, pattern, name]) => {
  const test = tests[kind](pattern);
  return test ? test(name) : null;
})));

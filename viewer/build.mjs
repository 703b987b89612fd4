// Builds the viewers into the Python package; with --check only compares what is there with what the
// sources give. The same sources give the same bytes.
import { build } from "esbuild";
import { existsSync, mkdtempSync, readFileSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";

const here = new URL(".", import.meta.url).pathname;
const assets = new URL("../src/clew/views/html/assets/", import.meta.url).pathname;
const checking = process.argv.includes("--check");
const out = checking ? mkdtempSync(tmpdir() + "/clew-viewer-") + "/" : assets;
// Each page carries its viewer, so each has a limit: a trace of a hundred events should still be a
// small file.
const viewers = [
  { name: "viewer", script: "src/main.ts", style: "src/viewer.css", most: 200_000 },
  { name: "diff", script: "src/diff.ts", style: "src/diff.css", most: 100_000 },
];

const common = { bundle: true, minify: true, charset: "utf8", legalComments: "none", logLevel: "warning", absWorkingDir: here };
const problems = [];
for (const { name, script, style, most } of viewers) {
  await build({ ...common, entryPoints: [script], outfile: `${out}${name}.js`, format: "iife", target: "es2022" });
  await build({ ...common, entryPoints: [style], outfile: `${out}${name}.css`, target: "chrome123" });
  const files = [`${name}.js`, `${name}.css`];
  const total = files.reduce((sum, file) => sum + statSync(out + file).size, 0);
  console.log(`${name} is ${total} bytes of at most ${most}`);
  if (total > most) problems.push(`${name} is ${total - most} bytes too large`);
  const stale = checking ? files.filter((file) => !same(out + file, assets + file)) : [];
  if (stale.length) problems.push(`${stale.join(" and ")} in src/clew/views/html/assets is not what viewer/ gives; run \`make viewer\` and commit it`);
}
if (checking) rmSync(out, { recursive: true });
for (const problem of problems) console.error(problem);
process.exit(problems.length ? 1 : 0);

function same(file, other) {
  return existsSync(other) && readFileSync(file).equals(readFileSync(other));
}

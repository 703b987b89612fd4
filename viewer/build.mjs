// Builds the viewer into the Python package; with --check only compares what is there with what the
// sources give. The same sources give the same bytes.
import { build } from "esbuild";
import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";

const here = new URL(".", import.meta.url).pathname;
const assets = new URL("../src/clew/views/html/assets/", import.meta.url).pathname;
const checking = process.argv.includes("--check");
const out = checking ? mkdtempSync(tmpdir() + "/clew-viewer-") + "/" : assets;
const most = 80_000;

// Names that browsers know too, but that the viewer uses for its own members alone.
const ONLY_OURS = [
  "address", "bands", "bins", "box", "canvas", "cells", "choose", "consumers", "context", "depth", "drag",
  "draw", "duration", "edges", "element", "enclosing", "facts", "failed", "file", "follow", "forward",
  "group", "high", "hint", "lanes", "leaves", "list", "literal", "low", "module", "node", "numbers",
  "order", "outline", "output", "parent", "pending", "phase", "place", "points", "result", "reveal", "scope",
  "selected", "show", "site", "start", "stats", "step", "summary", "tiles", "trace", "view", "weight", "zoom",
];

const words = (text, pattern) => [...text.matchAll(pattern)].map((found) => found[1]);

/** Names that the browser or the language gives a meaning, as TypeScript's own declarations list them. */
function knownNames() {
  const found = [];
  const packages = here + "node_modules/@typescript/";
  for (const name of readdirSync(packages)) {
    const library = `${packages}${name}/lib/`;
    for (const file of readdirSync(library).filter((file) => /^lib\..*\.d\.ts$/.test(file))) {
      const text = readFileSync(library + file, "utf8");
      found.push(...words(text, /^\s+(?:readonly |get |set )*"?(\w+)"?\??\s*[:(<]/gm));
    }
  }
  if (!found.includes("scrollTop")) throw new Error("TypeScript's declarations of the browser were not found");
  return found;
}

/** Members of our own types that may have short names: none that anyone else knows. */
function ownMembers() {
  const taken = new Set(knownNames());
  for (const word of ONLY_OURS) taken.delete(word);
  for (const word of words(readFileSync(here + "src/head.ts", "utf8"), /(\w+)/g)) taken.add(word);
  const found = new Set();
  for (const name of readdirSync(here + "src").filter((name) => name.endsWith(".ts"))) {
    const text = readFileSync(`${here}src/${name}`, "utf8");
    const member = /^ {2}(?:private |readonly |async |get )*(\w+)\??(?=[(:;]| = )/gm;
    const parameter = /(?:private|readonly) (?:readonly )?(\w+):/g;
    for (const word of [...words(text, member), ...words(text, parameter)]) found.add(word);
    for (const word of words(text, /dataset\.(\w+)/g)) taken.add(word);
  }
  return [...found].filter((word) => !taken.has(word)).sort();
}

/** Give the variables of the style sheet that no script names short names. */
function shortenVariables(file) {
  const scripts = readdirSync(here + "src").filter((name) => name.endsWith(".ts"));
  const taken = new Set(scripts.flatMap((name) => words(readFileSync(`${here}src/${name}`, "utf8"), /([\w-]+)/g)));
  const text = readFileSync(file, "utf8");
  const names = [...new Set(words(text, /--([\w-]+)/g))].filter((name) => name.length > 2 && !taken.has(name));
  const short = new Map(names.map((name, i) => [name, "_" + i.toString(36)]));
  writeFileSync(file, text.replace(/--([\w-]+)/g, (_, name) => "--" + (short.get(name) ?? name)));
}

const common = { bundle: true, minify: true, charset: "utf8", legalComments: "none", logLevel: "warning", absWorkingDir: here };
await build({
  ...common,
  entryPoints: ["src/main.ts"],
  outfile: out + "viewer.js",
  format: "iife",
  target: "es2022",
  mangleProps: new RegExp(`^(${ownMembers().join("|")})$`),
});
await build({ ...common, entryPoints: ["src/style.css"], outfile: out + "viewer.css", target: "chrome123" });
shortenVariables(out + "viewer.css");

const names = ["viewer.js", "viewer.css"];
const total = names.reduce((sum, name) => sum + statSync(out + name).size, 0);
const stale = checking ? names.filter((name) => !readFileSync(out + name).equals(readFileSync(assets + name))) : [];
if (checking) rmSync(out, { recursive: true });
console.log(`the viewer is ${total} bytes of at most ${most}`);
if (total > most) {
  console.error(`the viewer is ${total - most} bytes too large`);
  process.exit(1);
}
if (stale.length) {
  console.error(`${stale.join(" and ")} in src/clew/views/html/assets is not what viewer/ gives; run \`make viewer\` and commit it`);
  process.exit(1);
}

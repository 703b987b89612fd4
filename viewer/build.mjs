// Builds the viewer into the Python package. The same sources give the same bytes.
import { build } from "esbuild";
import { readdirSync, readFileSync, statSync } from "node:fs";

const here = new URL(".", import.meta.url).pathname;
const out = new URL("../src/clew/views/html/assets/", import.meta.url).pathname;
const most = 90_000;

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
  for (const word of words(readFileSync(here + "src/head.ts", "utf8"), /(\w+)/g)) taken.add(word);
  const found = new Set();
  for (const name of readdirSync(here + "src").filter((name) => name.endsWith(".ts"))) {
    const text = readFileSync(`${here}src/${name}`, "utf8");
    const member = /^ {2}(?:private |readonly |async |get )*(\w+)\??(?=[(:;]| = )/gm;
    const parameter = /(?:private|readonly) (?:readonly )?(\w+):/g;
    for (const word of [...words(text, member), ...words(text, parameter)]) found.add(word);
    // What is also looked up by its name in quotes, or in an element's data, must keep it.
    for (const word of words(text, /(?:"|dataset\.)(\w+)\b/g)) taken.add(word);
  }
  return [...found].filter((word) => !taken.has(word)).sort();
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

const sizes = ["viewer.js", "viewer.css"].map((name) => statSync(out + name).size);
const total = sizes[0] + sizes[1];
console.log(`viewer.js ${sizes[0]} bytes, viewer.css ${sizes[1]} bytes, ${total} of at most ${most}`);
if (total > most) {
  console.error(`the viewer is ${total - most} bytes too large`);
  process.exit(1);
}

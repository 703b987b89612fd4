// Makes src/spec.ts and src/spec.css of the constants, formats and colours that the page shares with
// Python; with --check only compares them with what src/clew/spec/spec.json gives.
import { existsSync, readFileSync, writeFileSync } from "node:fs";

const spec = JSON.parse(readFileSync(new URL("../src/clew/spec/spec.json", import.meta.url), "utf8"));
const from = "Made of src/clew/spec/spec.json by `make viewer`: change that.";

const line = (name, value) => `export const ${name} = ${JSON.stringify(value)} as const;\n`;
const numbered = (names) => Object.fromEntries(names.map((name, number) => [name, number]));
const script = [
  `// ${from}\n\n`,
  line("KIND", numbered(spec.kinds)),
  line("PHASE", numbered(spec.phases)),
  line("ROLES", spec.roles),
  line("SEVERITIES", spec.severities),
  line("CLASS_FAMILIES", spec.class_families.map(([name]) => name)),
  line("OP_FAMILIES", spec.op_families.map(([name]) => name)),
  line("STEPS", spec.scale.length),
  line("UNITS", spec.units),
  line("MINUTES_FROM", spec.minutes_from_seconds),
  line("DIGITS", spec.digits),
].join("");

const both = (light, dark) => (light === dark ? light : `light-dark(${light}, ${dark})`);
const tints = [
  ...spec.op_families.map(([name, , [light, dark]]) => [name, both(light, dark)]),
  ...spec.class_families.map((family, number) => [`h${number}`, family[6]]),
];
const box = ([fill, edge, darkFill, darkEdge]) => `--fill: ${both(fill, darkFill)}; --edge: ${both(edge, darkEdge)};`;
const style = [
  `/* ${from}\n   A thing is tinted with the colour of its family; boxes have a fill and an edge too. */\n`,
  `:root {\n${tints.map(([name, tint]) => `  --${name}: ${tint};\n`).join("")}}\n`,
  ...spec.op_families.map(([name]) => `.${name} { --tint: var(--${name}); }\n`),
  ...spec.class_families.map(([name, , ...colours], number) => `.h${number} { --tint: var(--h${number}); ${box(colours)} } /* ${name} */\n`),
  ...spec.scale.map((colours, number) => `.q${number} { ${box(colours)} }\n`),
].join("");

const stale = [];
for (const [name, text] of [["spec.ts", script], ["spec.css", style]]) {
  const file = new URL(`src/${name}`, import.meta.url);
  if (existsSync(file) && readFileSync(file, "utf8") === text) continue;
  if (process.argv.includes("--check")) stale.push(`viewer/src/${name}`);
  else writeFileSync(file, text);
}
if (stale.length) console.error(`not what src/clew/spec/spec.json gives: ${stale.join(", ")}; run \`make viewer\` and commit it`);
process.exit(stale.length ? 1 : 0);

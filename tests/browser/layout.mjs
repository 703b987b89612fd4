// Lays out graphs with the viewer's own layout: boxes and links come in as JSON, pictures go out.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";

const viewer = new URL("../../viewer/", import.meta.url);
const { buildSync } = createRequire(new URL("package.json", viewer))("esbuild");
const built = buildSync({ entryPoints: [new URL("src/layout.ts", viewer).pathname], bundle: true, format: "esm", write: false });
const { layOut } = await import("data:text/javascript;base64," + Buffer.from(built.outputFiles[0].contents).toString("base64"));

const pictures = JSON.parse(readFileSync(0, "utf8")).map(({ boxes, links, stub, right }) => {
  const begun = performance.now();
  const { width, height, boxes: rects, routes } = layOut(boxes, links, () => stub, right);
  return { width, height, boxes: [...rects], routes, took: performance.now() - begun };
});
console.log(JSON.stringify(pictures));

// Saves the picture that is drawn as a file of its own: SVG with its style inside, or PNG.

import { r, s } from "./dom.ts";
import { ceil, min } from "./maths.ts";

const MARGIN = 12;
const LEGEND = 34;
const MOST_PIXELS = 16_000;

export interface Sheet {
  group: SVGGElement;
  width: number;
  height: number;
  style: string;
  font: string;
  title: string;
  /** The scale of a picture that is coloured by a number. */
  legend: string;
}

/** The picture as the text of an SVG file, which needs nothing else. */
export function svgText(sheet: Sheet): string {
  const width = ceil(Math.max(sheet.width + 4, sheet.legend ? 270 : 0) + 2 * MARGIN);
  const height = ceil(sheet.height + 4 + 2 * MARGIN + (sheet.legend ? LEGEND : 0));
  const group = sheet.group.cloneNode(true) as SVGGElement;
  group.removeAttribute("transform");
  for (const extra of group.querySelectorAll(".picker, .twist, .reach")) extra.remove();
  for (const element of group.querySelectorAll("[data-box], [data-edge]")) {
    if (element.matches("[data-box]")) element.setAttribute("class", "box");
    else element.classList.remove("into", "out");
    for (const name of ["role", "tabindex", "aria-expanded", "aria-label", "data-box"]) element.removeAttribute(name);
  }
  const box = { x: -MARGIN, y: -MARGIN, width, height };
  const svg = s("svg", { class: "clew", width, height, viewBox: `${-MARGIN} ${-MARGIN} ${width} ${height}`, role: "img", label: sheet.title, "font-family": sheet.font },
    s("style", null, sheet.style), s("rect.paper", box), group, sheet.legend && scale(sheet.legend, sheet.height + 14));
  return new XMLSerializer().serializeToString(svg);
}

function scale(text: string, y: number): SVGElement {
  const cells = Array.from({ length: 7 }, (_, i) => s("rect", { class: `call q${i}`, x: i * 16, y: r(y), width: 16, height: 10 }));
  return s("g.legend", null, cells, s("text.small", { x: 118, y: r(y + 9) }, text));
}

/** Offer the picture for download. */
export async function save(sheet: Sheet, kind: "svg" | "png"): Promise<void> {
  const text = svgText(sheet);
  const svg = new Blob([text], { type: "image/svg+xml" });
  const blob = kind === "svg" ? svg : await png(text);
  const url = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = url;
  link.download = `${sheet.title.replace(/[^\w.-]+/g, "_").slice(0, 60) || "graph"}.${kind}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** The picture in pixels, two for each unit, fewer if it would be too large for a browser. */
async function png(text: string): Promise<Blob> {
  const image = new Image();
  // The page may show images from data alone.
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(text);
  await image.decode();
  const zoom = min(2, MOST_PIXELS / image.width, MOST_PIXELS / image.height);
  const canvas = document.createElement("canvas");
  canvas.width = ceil(image.width * zoom);
  canvas.height = ceil(image.height * zoom);
  const pen = canvas.getContext("2d")!;
  pen.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done, fail) => canvas.toBlob((blob) => (blob ? done(blob) : fail(new Error("the picture is too large for PNG"))), "image/png"));
}

// What the comparison found, in words: the first thing to read.

import { type Comparison, errorText } from "./comparison.ts";
import { h } from "./dom.ts";
import { whole } from "./format.ts";

export function verdict(runs: Comparison): HTMLElement {
  const { head } = runs;
  const share = (part: number) => `${(100 * part).toFixed(part > 0.995 && part < 1 ? 1 : 0)} %`;
  const noise = Object.entries(head.noise).map(([dtype, level]) => `${dtype} ${level.toExponential(0)}`).join(", ");
  const says = head.headline.replace(/^(the|no) /, (word) => word[0].toUpperCase() + word.slice(1));
  return h("section", { class: `verdict ${head.equal ? "fine" : "parts"}`, label: "Verdict" },
    h("div.says", null,
      h("h2", { role: "status" }, h("span.mark", { "aria-hidden": "true" }, head.equal ? "✓" : "◆"), says,
        head.first.row >= 0 && h("button", { class: "goto", onclick: () => runs.choose(head.first.row, "verdict"), title: "Select where the runs part (f)" }, "Show")),
      head.evidence.length > 0 && h("ul", null, head.evidence.map((line) => h("li", null, line))),
      head.equal && farthest(runs),
      head.suspects.length > 0 && h("div.suspects", null, h("b", null, "Suspects"), h("ul", null, head.suspects.map((line) => h("li", null, line)))),
      head.notes.map((note) => h("p.note", null, note)),
      head.left_out.map((what) => h("p.note", { role: "status" }, h("b", null, "Left out: "), what))),
    h("div.sums", null,
      h("div", null, h("h3", null, "Ops"), counts(head.counts)),
      h("div", null, h("h3", null, "Matched values"), meter("a", head.matched.a, share(head.matched.a)), meter("b", head.matched.b, share(head.matched.b)),
        noise && h("p", { title: "The relative error of an element that counts as rounding" }, h("span.dim", null, "noise "), noise))));
}

/** The call of two equal runs whose results differ most. */
function farthest(runs: Comparison): HTMLElement | null {
  let worst = -1;
  for (const row of runs.head.calls) if (Number.isFinite(runs.error[row]) && (worst < 0 || runs.error[row] > runs.error[worst])) worst = row;
  if (worst < 0) return null;
  if (runs.error[worst] === 0) return h("p.note", null, "The results of all calls that both runs have are equal bit for bit.");
  return h("p.note", null, "Of the calls that both runs have, the results farthest apart are those of ",
    h("button", { class: "link", onclick: () => runs.choose(worst, "verdict") }, runs.title(worst)), `: ${errorText(runs.error[worst])} (relative).`);
}

function meter(name: string, part: number, text: string): HTMLElement {
  const bar = h("span", { class: `meter ${name}`, role: "img", label: `${text} of ${name} was found in the other run` }, h("i", null));
  (bar.firstChild as HTMLElement).style.width = `${100 * part}%`;
  return h("span.part", null, h("b", null, name), bar, text);
}

function counts(found: Record<string, [number, number]>): HTMLElement[] {
  const words: [string, string, string][] = [["matched", "=", "match"], ["changed", "≠", "differ"], ["only_a", "◀", "only in a"], ["only_b", "▶", "only in b"], ["unknown", "?", "not compared"]];
  return words.filter(([name]) => found[name][0]).map(([name, sign, word]) => {
    const [all, harm] = found[name];
    const alone = name.startsWith("only");
    return h("span", { class: `state ${name}` }, h("i", null, sign), `${whole(all)} ${word}`, alone && harm < all && h("span.dim", null, harm ? `, ${whole(all - harm)} harmless` : ", harmless"));
  });
}

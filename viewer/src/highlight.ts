// Python source in colours: enough of its grammar to tell strings, comments, words and numbers.

const WORDS = new Set(
  ("False None True and as assert async await break class continue def del elif else except finally for from " +
    "global if import in is lambda nonlocal not or pass raise return try while with yield match case").split(" "),
);
const TOKEN = /(?<s>[rbfuRBFU]{0,2}(?:"""|'''))|(?<q>[rbfuRBFU]{0,2}(?:"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?))|(?<c>#.*)|(?<d>@[\w.]+)|(?<w>[A-Za-z_]\w*)|(?<n>\d[\w.]*)/g;

export interface Piece {
  text: string;
  look: string;
}

/** Each line of a file as coloured pieces. */
export function highlight(source: string): Piece[][] {
  let inside: string | null = null;
  return source.split(/\r?\n/).map((line) => {
    const pieces: Piece[] = [];
    const put = (text: string, look: string) => text && pieces.push({ text, look });
    let at = 0;
    if (inside) {
      const end = line.indexOf(inside);
      if (end < 0) return [{ text: line, look: "str" }];
      put(line.slice(0, end + 3), "str");
      at = end + 3;
      inside = null;
    }
    TOKEN.lastIndex = at;
    let previous = "";
    for (let match = TOKEN.exec(line); match; match = TOKEN.exec(line)) {
      put(line.slice(at, match.index), "");
      const { s, q, c, d, w } = match.groups!;
      const text = match[0];
      at = match.index + text.length;
      if (s) {
        const quote = text.slice(-3);
        const end = line.indexOf(quote, at);
        if (end < 0) {
          put(line.slice(match.index), "str");
          inside = quote;
          at = line.length;
          break;
        }
        put(line.slice(match.index, end + 3), "str");
        at = end + 3;
        TOKEN.lastIndex = at;
      } else if (w) {
        const look = WORDS.has(w) ? "key" : w === "self" ? "self" : previous === "def" || previous === "class" ? "fn" : line[at] === "(" ? "call" : "";
        put(text, look);
        previous = w;
      } else put(text, q ? "str" : c ? "com" : d ? "dec" : "num");
    }
    put(line.slice(at), "");
    return pieces;
  });
}

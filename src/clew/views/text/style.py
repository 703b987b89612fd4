"""How text looks: colour, width, tree lines, and short forms of numbers, times and tensors.

Input: facts and the stream that the text is for. Output: strings. Knows nothing of traces.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import TextIO

from clew.events.columns import Meta
from clew.events.number_text import counted as counted
from clew.events.number_text import number_text as number_text
from clew.events.number_text import short_number as short_number
from clew.events.number_text import time_text as time_text
from clew.events.tensor_text import takes, tensor_text
from clew.plain_text import plain_lines

WIDE = 120
NARROWEST = 40

_CODES = {
    "bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34",
    "magenta": "35", "cyan": "36",
}  # fmt: skip

_CODE = re.compile(r"\x1b\[[0-9;]*m")
_COLOR_OR_TAB = re.compile(r"(\x1b\[[0-9;]*m|\t)")
_PIECE = re.compile(r"\x1b\[[0-9;]*m|[^\x1b ]+ *| +|\x1b")
_RESET = "\x1b[0m"
# The codes that `Style.paint` writes, and no others.
_LOOK = "|".join(_CODES.values())
_OWN = re.compile(rf"(\x1b\[(?:0|(?:{_LOOK})(?:;(?:{_LOOK}))*)m)")
_HANGING = "    "
_NARROWEST_TEXT = 24

# Everything beyond ASCII that the views print, for streams that cannot take it.
_PLAIN = str.maketrans(
    {
        "│": "|", "├": "|", "└": "`", "─": "-", "▸": ">", "◂": "<", "→": "->", "×": "x",
        "…": "...", "–": "-", "·": "*", "✗": "[x]", "↩": "<-", "µ": "u", "▶": ">", "▷": ">",
        "◀": "<", "←": "<-", "⇄": "<>", "≡": "==", "✎": "!", "μ": "mean ", "σ": "std ",
        "±": "+-", "≤": "<=",
    }
)  # fmt: skip
SYMBOLS = "".join(map(chr, _PLAIN))


@dataclass(frozen=True, slots=True)
class Style:
    """What the terminal or file that will show the text can display.

    If `bounded`, nothing may be wider than `width`: a terminal, or a width that was asked for. If
    `shell`, a command prints the text, so hints on how to see more name options of the command.
    """

    color: bool = False
    unicode: bool = True
    width: int = WIDE
    bounded: bool = False
    shell: bool = False

    def way(self, python: str, shell: str) -> str:
        """Choose the hint on how to see more: for a Python prompt or for a command."""
        return shell if self.shell else python

    def paint(self, text: str, *looks: str) -> str:
        """Return the text in some colours or weights, if colours are on."""
        if not self.color or not text:
            return text
        codes = ";".join(_CODES[look] for look in looks)
        return f"\x1b[{codes}m{text}\x1b[0m"

    def wrapped(self, lead: str, text: str) -> list[str]:
        """Return a line under tree lines, wrapped at the edge with the same tree lines and
        indented.
        """
        dim = self.paint(lead, "dim")
        if not self.bounded or len(lead) + len(_CODE.sub("", text)) <= self.width:
            return [dim + text]
        room = max(self.width - len(lead), _NARROWEST_TEXT)
        first, *more = _cut(text, room, room - len(_HANGING))
        return [dim + first, *(dim + _HANGING + line for line in more)]

    def finish(self, text: str) -> str:
        """Return the finished text, in ASCII if the stream takes nothing else.

        Text of the program was escaped when its width was measured; anything a view forgot is
        escaped here.
        """
        text = guarded(text, self.color)
        return text if self.unicode else text.translate(_PLAIN)

    def finish_line(self, text: str) -> str:
        """Finish a single line in the same way."""
        return self.finish(text.replace("\n", "\\n"))


def guarded(text: str, color: bool) -> str:
    """Escape control characters except line breaks and, with `color`, codes of `Style`."""
    if not color or "\x1b" not in text:
        return plain_lines(text)
    if _OWN.sub("", text).replace("\n", "").isprintable():
        return text
    # What the pattern captures is every second piece.
    pieces = enumerate(_OWN.split(text))
    return "".join(piece if n % 2 else plain_lines(piece) for n, piece in pieces)


def uncoloured(text: str) -> str:
    """Return the text without codes for colours and weights."""
    return _CODE.sub("", text)


def suited(text: str, stream: TextIO) -> str:
    """Return finished text as a stream shows it: without colour, or in ASCII, if it needs that.

    Text of other tools may contain colours and tabs; other control codes are escaped.
    """
    style = style_for(stream)
    text = text if style.color else uncoloured(text)
    if not text.replace("\n", "").isprintable():
        pieces = enumerate(_COLOR_OR_TAB.split(text))
        text = "".join(piece if n % 2 else plain_lines(piece) for n, piece in pieces)
    if style.unicode:
        return text
    encoding = getattr(stream, "encoding", None) or "ascii"
    return text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)


def style_for(
    stream: TextIO | None = None, color: bool | None = None, shell: bool = False
) -> Style:
    """Return the style for a stream, by default standard output; `color` overrides it."""
    stream = sys.stdout if stream is None else stream
    terminal = _is_terminal(stream)
    given = _given_width()
    width = shutil.get_terminal_size((WIDE, 50)).columns if terminal else given or WIDE
    return Style(
        color=_wants_color(terminal) if color is None else color,
        unicode=takes(SYMBOLS, stream),
        width=max(width, NARROWEST),
        bounded=terminal or given > 0,
        shell=shell,
    )


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except Exception:
        return False


def _given_width() -> int:
    """Return `COLUMNS` if it is set, for a pipe too; otherwise 0."""
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdigit() else 0


def _wants_color(terminal: bool) -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return terminal and os.environ.get("TERM") != "dumb"


def _cut(text: str, first: int, room: int) -> Iterator[str]:
    """Split coloured text into lines of at most `room` characters, the first of `first`.

    It is cut after spaces if there are any; colours end with a line and begin again in the next.
    """
    line, length, color = "", 0, ""
    for piece in _PIECE.findall(text):
        if piece[0] == "\x1b":
            line += piece
            color = "" if piece == _RESET else piece
            continue
        while length + len(piece.rstrip()) > first:
            # A space after the last word may lie past the edge.
            fits = max(first, length) if len(piece) > room else length
            head, piece = piece[: fits - length], piece[fits - length :]
            yield (line + head).rstrip() + (_RESET if color else "")
            line, length, first = color, 0, room
        line += piece
        length += len(piece)
    yield line.rstrip()


def clipped(text: str, width: int) -> str:
    """Cut the text to at most `width` characters.

    >>> clipped("transformer", 8)
    'transfo…'
    """
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


def merged(texts: list[str], gap: str = " ") -> list[str]:
    """Join equal neighbours into one text.

    >>> merged(["f32[2]", "f32[2]", "i64[]"])
    ['f32[2] ×2', 'i64[]']
    """
    runs = [(text, len(list(run))) for text, run in groupby(texts)]
    return [text if count == 1 else f"{text}{gap}×{count}" for text, count in runs]


@lru_cache(maxsize=4096)
def meta_text(meta: Meta) -> str:
    """Write a tensor as `f32[2,3]`, followed by what differs from a plain one."""
    return tensor_text(meta)


def not_finite_text(nan: int, inf: int) -> str:
    """Write counts of NaN and Inf.

    >>> not_finite_text(3, 0), not_finite_text(1200, 1), not_finite_text(0, 0)
    ('NaN ×3', 'NaN ×1,200 Inf ×1', '')
    """
    return " ".join(f"{name} ×{n:,}" for name, n in (("NaN", nan), ("Inf", inf)) if n)


def short_op(name: str) -> str:
    """Return an op without its common namespace and overload.

    >>> short_op("aten.addmm.default"), short_op("aten.add.Tensor"), short_op("my.op.default")
    ('addmm', 'add.Tensor', 'my.op')
    """
    return name.removeprefix("aten.").removesuffix(".default")


def base_op(name: str) -> str:
    """Return an op's bare name.

    >>> base_op("aten.sum.dim_IntList"), base_op("compiled")
    ('sum', 'compiled')
    """
    short = short_op(name)
    return short.split(".")[0] if name.startswith("aten.") else short

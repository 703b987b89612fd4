"""Colours of boxes: by the family of a class, or by a number on a scale.

Input: nodes and what to colour by. Output: CSS class names, each with colours for light and dark
pages.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from clew.analysis.graph.graph_model import CALL, INPUT, OP, OUTPUT, REPEAT, Node
from clew.errors import ClewError
from clew.events.byte_text import bytes_text
from clew.views.graph.options import COLORS
from clew.views.text.style import short_number, time_text

STEPS = 7


@dataclass(frozen=True, slots=True)
class Paint:
    """Fill and line colour of a box on light and dark pages."""

    fill: str
    line: str
    dark_fill: str
    dark_line: str


# Kinds of layers that people want to tell apart, by patterns of their class names.
_FAMILIES = (
    ("attention", re.compile(r"att(e)?n", re.I)),
    ("norm", re.compile(r"norm", re.I)),
    ("conv", re.compile(r"conv(?!1d$)|patch", re.I)),
    ("linear", re.compile(r"linear|conv1d$|dense|proj|head", re.I)),
    ("embedding", re.compile(r"embed", re.I)),
    ("pool", re.compile(r"pool|flatten|unfold|sample", re.I)),
    ("recurrent", re.compile(r"lstm|gru|rnn|cell|mamba|mixer", re.I)),
    ("activation", re.compile(r"gelu|relu|silu|tanh|sigmoid|softmax|act|swish", re.I)),
    ("regular", re.compile(r"drop|identity", re.I)),
    ("mlp", re.compile(r"mlp|feed|ffn|expert|intermediate", re.I)),
)
FAMILIES = {
    "attention": Paint("#ede9fe", "#7c3aed", "#34295c", "#a78bfa"),
    "norm": Paint("#fef3c7", "#b7791f", "#463812", "#e0b04a"),
    "conv": Paint("#ccfbf1", "#0d9488", "#123f3b", "#2dd4bf"),
    "linear": Paint("#dbeafe", "#2563eb", "#1c335e", "#7caaf7"),
    "embedding": Paint("#dcfce7", "#16a34a", "#17402a", "#5bd68a"),
    "pool": Paint("#cffafe", "#0891b2", "#123d49", "#35c8e6"),
    "recurrent": Paint("#ffedd5", "#ea580c", "#4b2c14", "#fb9a55"),
    "activation": Paint("#fce7f3", "#db2777", "#4a2036", "#f47fb6"),
    "regular": Paint("#f1f5f9", "#94a3b8", "#2a323d", "#7b8a9d"),
    "mlp": Paint("#e0e7ff", "#4f46e5", "#292d63", "#9aa3fb"),
    # Classes of no family get one of these colours, chosen by their name.
    "other0": Paint("#e8eef5", "#51657d", "#2b3745", "#a3b5c9"),
    "other1": Paint("#f3e8e2", "#8a5a44", "#40302a", "#d0a48f"),
    "other2": Paint("#eaf0df", "#64803a", "#313a22", "#b2cb8a"),
}
_OTHERS = 3
SCALE = tuple(
    Paint(fill, line, dark, dark_line)
    for fill, line, dark, dark_line in (
        ("#f8fafc", "#94a3b8", "#27303b", "#7b8a9d"),
        ("#fff6e3", "#c79a4b", "#352d20", "#a98d5b"),
        ("#ffebc8", "#cf8d2c", "#45361b", "#c39a4d"),
        ("#ffdca6", "#d17a17", "#593e16", "#dba340"),
        ("#ffca86", "#cc5f0c", "#6f4312", "#efa23a"),
        ("#ffb56c", "#b94309", "#874413", "#ffa351"),
        ("#ff9e5c", "#98290b", "#9e4216", "#ffb08a"),
    )
)


class Painter:
    """Gives each node the CSS class of its colour."""

    def __init__(self, nodes: tuple[Node, ...], by: str, frames: bool = False) -> None:
        """Take the nodes that make the scale: those without children, or also `frames`."""
        if by not in COLORS:
            known = ", ".join(map(repr, COLORS))
            raise ClewError(f"color={by!r} is not one of {known}")
        self.by = by
        self._low = self._high = 0.0
        if by != "class":
            found = [self._number(node) for node in nodes if frames or not node.children]
            numbers = [n for n in found if n is not None]
            if by.startswith("stats.") and not any(node.stats for node in nodes):
                raise ClewError(
                    f"color={by!r} needs statistics, which this trace does not hold; record them "
                    "with clew.trace(values='stats')"
                )
            self._low, self._high = min(numbers, default=0.0), max(numbers, default=0.0)

    def css_class(self, node: Node) -> str:
        """Return the CSS class for the node's colour."""
        if node.kind in (INPUT, OUTPUT):
            return "io"
        if self.by == "class":
            return "op" if node.kind == OP else "frame" if node.kind == REPEAT else family(node)
        number = self._number(node)
        if number is None:
            return "op" if node.kind == OP else "q0"
        return f"q{self._step(number)}"

    def _number(self, node: Node) -> float | None:
        if node.kind in (INPUT, OUTPUT):
            return None
        if self.by.startswith("stats."):
            number = (node.stats or {}).get(self.by.removeprefix("stats."))
            # The mean of numbers with a NaN among them is no place on a scale.
            return number if number is not None and math.isfinite(number) else None
        return {
            "time": node.seconds,
            "params": float(node.parameters) if node.kind == CALL else None,
            "ops": float(node.ops),
            "bytes": float(node.bytes),
        }[self.by]

    def _step(self, number: float) -> int:
        """Return the step of a number on the scale: logarithmic if all are positive."""
        low, high = self._low, self._high
        if self.by in ("stats.nan", "stats.inf", "stats.nan_share"):
            return 0 if not number else max(1, round((STEPS - 1) * number / high))
        if low >= 0 and high > 0:
            if number <= 0:
                return 0
            low = max(low, high * 1e-4)
            number, low, high = math.log(max(number, low)), math.log(low), math.log(high)
        if high == low:
            return STEPS // 2
        return min(STEPS - 1, max(0, round((STEPS - 1) * (number - low) / (high - low))))

    def legend(self) -> tuple[str, str, str] | None:
        """Return what colours stand for, with the least and most of it; None for classes."""
        if self.by == "class":
            return None
        text: Callable[[float], str] = {
            "time": time_text,
            "bytes": bytes_text,
            "params": short_number,
            "ops": short_number,
        }.get(self.by, lambda number: f"{number:.4g}")
        return self.by, text(self._low), text(self._high)


def family(node: Node) -> str:
    """Return the family of a module's class, judged by the class name."""
    called = node.cls or node.name
    for name, pattern in _FAMILIES:
        if pattern.search(called):
            return name
    number = zlib.crc32(called.encode(errors="surrogatepass"))
    return f"other{number % _OTHERS}"

"""Colours of boxes: by the family of a class, or by a number on a scale.

Input: nodes and what to colour by. Output: CSS class names, each with colours for light and dark
pages.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from clew.analysis.graph.graph_model import CALL, INPUT, OP, OUTPUT, REPEAT, Node
from clew.errors import ClewError
from clew.events.number_text import bytes_text, measured, short_number, time_text
from clew.spec import CLASS_PAINTS, SCALE
from clew.views.families import class_family
from clew.views.graph.graph_options import COLORS

# Colours of the families of classes.
FAMILIES = CLASS_PAINTS
STEPS = len(SCALE)


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
        }.get(self.by, measured)
        return self.by, text(self._low), text(self._high)


def family(node: Node) -> str:
    """Return the family of a module's class, judged by the class name."""
    return class_family(node.cls or node.name)

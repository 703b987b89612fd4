"""The words that say how a graph is drawn. Apart from the drawing, so that naming them is cheap."""

from __future__ import annotations

DIRECTIONS = ("down", "right")
THEMES = ("auto", "light", "dark")
FACTS = ("params", "time", "ops", "bytes")
SUFFIXES = (".svg", ".png", ".dot", ".gv", ".mmd", ".json")
_STATS = ("nan", "inf", "zeros", "count", "min", "max", "mean", "std", "norm")
COLORS = ("class", "time", "params", "ops", "bytes", *(f"stats.{name}" for name in _STATS))

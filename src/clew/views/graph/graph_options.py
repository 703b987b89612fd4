"""Option words of a graph. In a separate file so that importing them is cheap."""

from __future__ import annotations

DIRECTIONS = ("down", "right")
THEMES = ("auto", "light", "dark")
FACTS = ("params", "time", "ops", "bytes")
SUFFIXES = (".svg", ".png", ".dot", ".gv", ".mmd", ".json")
_STATS = ("nan", "nan_share", "inf", "zeros", "count", "min", "max", "mean", "std", "norm")
COLORS = ("class", "time", "params", "ops", "bytes", *(f"stats.{name}" for name in _STATS))

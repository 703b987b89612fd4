"""Style sheet of a picture: colours for light and dark pages, weights, dashes."""

from __future__ import annotations

from clew.errors import ClewError
from clew.spec import CLASS_PAINTS, SCALE, Paint
from clew.views.graph.graph_options import THEMES

FONT = "Helvetica Neue, Helvetica, Arial, Liberation Sans, DejaVu Sans, sans-serif"

# (selector, what it colours, light, dark)
_COLORS = (
    (".paper", "fill", "#ffffff", "#0f141a"),
    ("text,tspan", "fill", "#1e293b", "#e2e8f0"),
    (".small,.op-text,.io-text", "fill", "#475569", "#b4c0cf"),
    (".times", "fill", "#c2410c", "#fb923c"),
    (".label", "fill", "#64748b", "#93a1b5"),
    (".write-label", "fill", "#be3b0c", "#fb923c"),
    (".backward-label", "fill", "#a16207", "#d8a836"),
    (".frame", "fill", "#f8fafc", "#161d26"),
    (".frame.d1", "fill", "#eef2f7", "#1d2631"),
    (".frame", "stroke", "#cbd5e1", "#3a4757"),
    (".op", "fill", "#ffffff", "#202a35"),
    (".op", "stroke", "#94a3b8", "#64748b"),
    (".io", "fill", "#1e293b", "#dbe3ec"),
    (".io", "stroke", "#1e293b", "#dbe3ec"),
    (".io-text", "fill", "#f8fafc", "#111820"),
    (".stub", "fill", "none", "none"),
    (".stub", "stroke", "#94a3b8", "#64748b"),
    (".line", "stroke", "#7a8aa0", "#7d8da1"),
    (".head", "fill", "#7a8aa0", "#7d8da1"),
    (".write .line", "stroke", "#d9480f", "#fb923c"),
    (".write .head", "fill", "#d9480f", "#fb923c"),
    (".backward .line", "stroke", "#ca8a04", "#c99a2e"),
    (".backward .head", "fill", "#ca8a04", "#c99a2e"),
    (".failed", "stroke", "#dc2626", "#f87171"),
)
_SHAPES = (
    "text{font-size:12.5px}"
    ".name,.times{font-weight:bold}"
    ".small{font-size:10.5px}"
    ".label{font-size:10px}"
    ".line{fill:none;stroke-width:1.2}"
    ".call,.op,.stub,.frame{stroke-width:1}"
    ".failed{stroke-width:2.5}"
    ".backward .line{stroke-dasharray:5 3}"
    ".order .line{stroke-dasharray:1.5 3}"
    ".stub{stroke-dasharray:3 2}"
)


def style_sheet(theme: str) -> str:
    """Return the style sheet for one theme, or for both, following the page."""
    if theme not in THEMES:
        raise ClewError(f"theme={theme!r} is not one of {', '.join(map(repr, THEMES))}")
    if theme == "dark":
        return _SHAPES + _rules(dark=True)
    light = _SHAPES + _rules(dark=False)
    if theme == "light":
        return light
    return f"{light}@media (prefers-color-scheme:dark){{{_rules(dark=True)}}}"


def _rules(dark: bool) -> str:
    rules = [f"{_scoped(s)}{{{what}:{d if dark else w}}}" for s, what, w, d in _COLORS[:-1]]
    paints = CLASS_PAINTS | {f"q{number}": paint for number, paint in enumerate(SCALE)}
    rules += [_paint(name, paint, dark) for name, paint in paints.items()]
    selector, what, light, night = _COLORS[-1]
    rules.append(f"{_scoped(selector)}{{{what}:{night if dark else light}}}")
    return "".join(rules)


def _paint(name: str, paint: Paint, dark: bool) -> str:
    fill, line = (paint.dark_fill, paint.dark_line) if dark else (paint.fill, paint.line)
    return f".clew rect.{name}{{fill:{fill};stroke:{line}}}"


def _scoped(selectors: str) -> str:
    """Restrict selectors to the picture, so that they change nothing else on a page."""
    return ",".join(f".clew {selector}" for selector in selectors.split(","))

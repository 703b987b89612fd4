"""The findings of a run as lines of text, for the tree and `clew info`.

Input: findings and a style. Output: a few lines, the worst first, and where to read the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from clew.analysis.findings import ERROR, WARNING, Finding
from clew.run.run import Run
from clew.views.text.style import Style, clipped, counted

_MOST_LINES = 8
_MOST_GAPS = 2
_LONGEST_GAP = 110
_SIGNS = {ERROR: "✗ ", WARNING: "! "}
_LOOKS = {ERROR: ("red", "bold"), WARNING: ("yellow",)}


def finding_lines(found: Sequence[Finding], run: Run, style: Style) -> list[str]:
    """Write findings in at most eight lines; the last one says how to see those left out."""
    lines: list[str] = []
    for at, finding in enumerate(found):
        mine = _lines(finding, run, style)
        is_last = at == len(found) - 1
        if len(lines) + len(mine) > _MOST_LINES - (not is_last):
            way = style.way("t.findings lists them", "`clew info` lists them")
            left = counted(len(found) - at, "more finding")
            return [*lines, _painted(f"… {left}, {way}", ("dim",), style)]
        lines += mine
    return lines


def signed(severity: str, text: str) -> str:
    """Put the sign of a severity before a text.

    >>> signed("warning", "1 thing was not seen"), signed("info", "not checked")
    ('! 1 thing was not seen', 'not checked')
    """
    return _SIGNS.get(severity, "") + text


def _lines(finding: Finding, run: Run, style: Style) -> list[str]:
    looks = _LOOKS.get(finding.severity, ("dim",))
    if finding.kind == "coverage":
        way = style.way("t.coverage lists them", "`clew info` lists them")
        head = signed(WARNING, f"not seen: {counted(finding.count, 'thing')}, {way}")
        room = min(_LONGEST_GAP, style.width - 2) if style.bounded else _LONGEST_GAP
        gaps = [f"  {clipped(str(gap), room)}" for gap in run.coverage[:_MOST_GAPS]]
        return [_painted(head, looks, style), *gaps]
    text = signed(finding.severity, finding.text)
    if finding.kind == "crash":
        text += style.way("; see t.crash", "; see `clew crash`")
    return [_painted(text, looks, style)]


def _painted(text: str, looks: tuple[str, ...], style: Style) -> str:
    return style.paint(clipped(text, style.width) if style.bounded else text, *looks)

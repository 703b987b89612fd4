"""A comparison of two runs as lines of text: what people read when they print it.

Input: a `Diff`. Output: a headline, both source lines, the evidence, and the table of modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew.plain_text import plain, plain_code
from clew.run.event import Event

if TYPE_CHECKING:
    from clew.analysis.diff.divergence import Diff, Divergence, ModuleError

_HEADS = {
    "wrong": "the runs part at",
    "missing": "b lacks",
    "extra": "b has one op more:",
    "inputs": "the runs get different inputs at",
}
# A compiled region gives out all that it keeps for its backward pass.
_MOST_RESULTS = 6


def diff_lines(diff: Diff, rows: int, more: str) -> list[str]:
    """Write a comparison, with at most so many rows of the table."""
    same = "no difference beyond noise" if diff.noise else "no difference"
    lines = [same] if diff.first is None else _divergence(diff.first)
    lines += _table(diff.table, rows, more) if diff.first is not None else []
    lines.append(_matched(diff))
    lines += diff.notes
    return [plain(line) for line in lines]


def _divergence(first: Divergence) -> list[str]:
    shown = first.a if first.kind == "missing" else first.b or first.a
    lines = [f"{_HEADS[first.kind]} {_name(shown)}"]
    lines += [f"  {side}: {_place(event)}" for side, event in (("a", first.a), ("b", first.b))]
    lines += [f"  {said}" for said in first.evidence]
    if first.suspects:
        lines.append("  suspects:")
        lines += [f"    {said}" for said in first.suspects]
    return lines


def _name(event: Event | None) -> str:
    if event is None:
        return "nothing"
    module = "" if event.module is None else f" in {event.module or 'the root module'}"
    return f"{'a compiled region' if event.name == 'compiled' else event.name}{module}"


def _place(event: Event | None) -> str:
    """Write the line of an event, and its caller's where another line of user code called it."""
    if event is None:
        return "no such op"
    source = event.source
    if source is None:
        return f"{event.address}, whose line was not recorded"
    file = source.file.replace("\\", "/").rpartition("/")[2]
    looks = [value.look for value in event.outputs.values()]
    more = f", +{len(looks) - _MOST_RESULTS}" if len(looks) > _MOST_RESULTS else ""
    results = ", ".join(looks[:_MOST_RESULTS]) + more
    return f"{file}:{source.line}  {plain_code(source.text)}  -> {results}"


def _table(table: tuple[ModuleError, ...], rows: int, more: str) -> list[str]:
    """Write the modules around the first that differs."""
    first = next((n for n, row in enumerate(table) if not row.agrees), None)
    if first is None:
        return []
    begin = max(0, min(first - 2, len(table) - rows))
    shown = table[begin : begin + rows]
    width = max(len(row.address) for row in shown)
    lines = ["module by module, how far b is from a:"]
    lines += [f"  {row.address.ljust(width)}  {_error(row)}" for row in shown]
    left_out = len(table) - len(shown)
    if left_out:
        lines.append(f"  ... {left_out:,} more calls left out; {more}")
    return lines


def _error(row: ModuleError) -> str:
    if row.error is None:
        return "not compared"
    if row.error == 0:
        return "equal"
    mark = "" if row.agrees else "  differs"
    return f"{row.error:.1e}{mark}" if row.error != float("inf") else f"other{mark}"


def _matched(diff: Diff) -> str:
    noise = ", ".join(f"{dtype} {level:.0e}" for dtype, level in diff.noise.items())
    matched = f"matched: {diff.matched.a:.0%} of a, {diff.matched.b:.0%} of b"
    return f"{matched}; noise: {noise}" if noise else matched

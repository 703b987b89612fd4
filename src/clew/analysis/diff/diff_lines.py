"""A comparison of two runs as lines of text: what people read when they print it.

Input: a `Diff`. Output: a headline, both source lines, the evidence, and the table of modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew.plain_text import plain, plain_code
from clew.run.event import Event

if TYPE_CHECKING:
    from clew.analysis.diff.divergence import Diff, Divergence, ModuleError, StepError

_HEADS = {
    "wrong": "the runs part at",
    "missing": "b lacks",
    "extra": "b has one op more:",
    "inputs": "the runs get different inputs at",
}
# Of runs that have no ops: those of a watch.
_HEADS_OF_VALUES = {**_HEADS, "extra": "b has one value more:"}
# A compiled region gives out all that it keeps for its backward pass.
_MOST_RESULTS = 6

# Steps far from the first that differs which are shown too, if there are so many.
_FURTHER = (10, 30, 100, 300, 1_000, 3_000, 10_000)
# What differs in training runs, by cause; the step is put in.
_CAUSES = {
    "data": "the batch of step {} differs",
    "random": "step {} draws other random numbers",
    "parameters": "the parameters differ before step {}",
    "forward": "the forward pass of step {} differs",
    "loss": "the loss of step {} is computed otherwise",
    "gradient": "the gradients of step {} differ",
    "optimizer": "the update of step {} differs",
    "mode": "step {} runs in another mode",
}


def diff_lines(diff: Diff, rows: int, more: str) -> list[str]:
    """Write a comparison, with at most so many rows of the table."""
    same = "no difference beyond noise" if diff.noise else "no difference"
    if diff.compared is not None and not diff.compared.has_values:
        same = "nothing differs as far as was recorded; values were not compared"
    lines = [same] if diff.first is None else _divergence(diff.first)
    if diff.first is not None:
        lines += _steps(diff.steps) if len(diff.steps) > 1 else []
        lines += _table(diff.table, rows, more)
    lines.append(_matched(diff))
    lines += diff.notes
    return [plain(line) for line in lines]


def _divergence(first: Divergence) -> list[str]:
    shown = first.a if first.kind == "missing" else first.b or first.a
    lines = [f"{_head(first)} {_name(shown)}"]
    lines += [f"  {side}: {_place(event)}" for side, event in (("a", first.a), ("b", first.b))]
    lines += [f"  {said}" for said in first.evidence]
    if first.suspects:
        lines.append("  suspects:")
        lines += [f"    {said}" for said in first.suspects]
    return lines


def _head(first: Divergence) -> str:
    """Write what is different, up to the op."""
    if not first.cause:
        event = first.b or first.a
        is_op = event is None or event.kind in ("op", "composite", "module")
        return (_HEADS if is_op else _HEADS_OF_VALUES)[first.kind]
    if first.cause == "steps":
        side = "b" if first.kind == "extra" else "a"
        return f"only {side} has step {first.step}, which begins with"
    what = _CAUSES[first.cause].format(first.step)
    how = {"missing": "b lacks", "extra": "b has one op more:"}.get(first.kind, "first at")
    return f"{what}: {how}"


def _name(event: Event | None) -> str:
    if event is None:
        return "nothing"
    module = "" if event.module is None else f" in {event.module or 'the root module'}"
    return f"{'a compiled region' if event.name == 'compiled' else event.name}{module}"


def _place(event: Event | None) -> str:
    """Write the line of an event, and its caller's where another line of user code called it."""
    if event is None:
        return "nothing there"
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


def _steps(steps: tuple[StepError, ...]) -> list[str]:
    """Write how losses and parameters part: the steps around the first that differs, and more."""
    first = next((n for n, row in enumerate(steps) if not row.agrees), None)
    if first is None:
        return []
    near = range(max(0, first - 1), min(len(steps), first + 3))
    further = [n for n in _FURTHER if near.stop <= n < len(steps) - 1]
    shown = sorted({*near, *further[-2:], len(steps) - 1})
    table: list[tuple[str, ...]] = [("step", "loss of a", "of b", "parameters", "most")]
    table += [_step(steps[n]) for n in shown]
    widths = [max(len(row[n]) for row in table) for n in range(len(table[0]))]
    lines = ["step by step, how far b is from a:"]
    for row in table:
        cells = [cell.rjust(width) for cell, width in zip(row[:4], widths, strict=False)]
        lines.append(f"  {'  '.join(cells)}  {row[4]}".rstrip())
    return lines


def _step(row: StepError) -> tuple[str, ...]:
    losses = ["" if loss is None else f"{loss:.6g}" for loss in row.losses]
    every = "" if row.parameters is None else _relative(row.parameters)
    worst = f"{row.worst} {_relative(row.worst_error)}" if row.worst_error else ""
    return (str(row.step), *losses, every, worst)


def _relative(error: float) -> str:
    if error == 0:
        return "equal"
    return f"{error:.1e}" if error != float("inf") else "other"


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

"""A graph that was gone backward through before: which part, by which line, and used again where.

Input: a `Scene`. Output: a `Cause`. Ops of the failing pass and what led to them are compared with
the ops whose backward has run before.
"""

from __future__ import annotations

import re

from clew.analysis.crashes.autograd_faults import at_line, last_like
from clew.analysis.crashes.cause import Cause
from clew.analysis.crashes.failed_expression import failed_expression, is_primary
from clew.analysis.crashes.scene import Scene
from clew.analysis.file_names import bare_name
from clew.events.model import Source
from clew.events.vocabulary import BACKWARD, OP, OPTIMIZER
from clew.plain_text import plain_code
from clew.run.event import Event
from clew.run.run import Run

_MOST_STEPS = 10_000
_RETAIN = "retain_graph=True in the first backward"


def second_backward_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell which line ran backward first, and what of that graph was used again."""
    run, event = scene.run, scene.event
    if event is None:
        return None
    earlier, failing = _passes(run, event)
    if not earlier:
        return None
    ran = {int(run.forward_row[row]): row for row in reversed(earlier)}  # the first pass of each
    ran.pop(-1, None)
    used = _led_to(run, _begin(scene, event, [int(run.forward_row[row]) for row in failing]))
    if not used & set(ran):
        return _first_line(run, earlier[0], None)
    first = ran[max(used & set(ran))]
    freed = _led_to(run, list(ran))
    # Ops that ran after the first pass and were given what was made before it.
    again = sorted(row for row in used - freed if row > first and _makers_before(run, row, first))
    if not again:
        # Both losses were there before the first pass; a step since then changed parameters.
        return _first_line(run, first, None if _has_step(run, first, event.row) else _RETAIN)
    maker = max(_makers_before(run, again[0], first))
    return _explained(run, event, run.event(maker), run.event(again[0]), first, freed)


def _passes(run: Run, event: Event) -> tuple[list[int], list[int]]:
    """Return the rows of backward ops before the pass that failed, and those of that pass.

    Between two passes there are other ops, or they are run by different lines.
    """
    rows = run.rows(OP)
    rows = rows[rows < event.row]
    is_backward = run.phase[rows] == BACKWARD
    others = rows[~is_backward]
    last = int(others[-1]) if len(others) else -1
    backward = rows[is_backward].tolist()
    at = len(backward)
    while (
        at and backward[at - 1] > last and _line_of(run, backward[at - 1]) == _place(event.source)
    ):
        at -= 1
    if not at:
        return backward, []  # one line ran both, with nothing between them
    return backward[:at], backward[at:]


def _line_of(run: Run, row: int) -> tuple[str, int] | None:
    return _place(run.running_line(row))


def _place(source: Source | None) -> tuple[str, int] | None:
    return None if source is None else (source.file, source.line)


def _begin(scene: Scene, event: Event, forward: list[int]) -> list[int]:
    """Return the rows of the ops that the failing pass began with."""
    found = [row for row in forward if row >= 0]
    loss = None if found or not scene.arguments else last_like(scene, event)
    return found if loss is None else [scene.run.producer_row(loss.number)]


def _led_to(run: Run, rows: list[int]) -> set[int]:
    """Return the rows of the ops in the graph of some ops, with these."""
    pending, found = [row for row in rows if row >= 0], set[int]()
    while pending and len(found) < _MOST_STEPS:
        row = pending.pop()
        if row not in found:
            found.add(row)
            pending += _makers(run, row)
    return found


def _makers(run: Run, row: int) -> set[int]:
    """Return the rows of the ops that made what an op was given, as far as it has a graph."""
    given = (value for value in run.event(row).inputs.values() if value.requires_grad)
    return {run.producer_row(value.number) for value in given} - {-1}


def _first_line(run: Run, row: int, guess: str | None, *more: str) -> Cause | None:
    first = run.running_line(row)
    if first is None:
        return None
    return Cause((f"the first backward ran at {first}: {plain_code(first.text)}", *more), guess)


def _makers_before(run: Run, row: int, end: int) -> set[int]:
    return {maker for maker in _makers(run, row) if maker < end}


def _explained(
    run: Run, event: Event, maker: Event, use: Event, first: int, freed: set[int]
) -> Cause | None:
    said = f"{_who(use)} {at_line(use)} uses what {_who(maker)} made {at_line(maker)}"
    if _line_of(run, first) == _place(event.source):
        return _first_line(run, first, ".detach() on what is carried over", said)
    before = (run.event(row) for row in sorted(freed) if maker.row in _makers(run, row))
    # The same layers are given the same tensor twice, as a GAN's discriminator is.
    same = [one for one in before if one.module is not None and one.module == use.module]
    if same:
        return _first_line(run, first, _detached(run, same[0], maker), said)
    has_step = _has_step(run, first, event.row)
    return _first_line(run, first, None if has_step else _RETAIN, said)


def _who(event: Event) -> str:
    return event.module or event.name


def _has_step(run: Run, first: int, last: int) -> bool:
    return bool((run.phase[first:last] == OPTIMIZER).any())


def _detached(run: Run, use: Event, maker: Event) -> str | None:
    """Write the `detach` where the first loss was computed, by the name of the tensor there."""
    numbers = {value.number for value in maker.outputs.values()}
    row = int(run.owner_row[use.row])
    found = None
    while row >= 0:
        call = run.event(row)
        at = [path for path, value in call.inputs.items() if value.number in numbers]
        text = _written(run, call, at[0]) if len(at) == 1 else None
        if text is not None and call.source is not None:
            place = f"{bare_name(call.source.file)}:{call.source.line}"
            found = f"{text}.detach() at {place}, for the first loss"
        row = int(run.parent_row[row])
    return found


def _written(run: Run, call: Event, path: str) -> str | None:
    """Return the text of an argument in the line that makes a call."""
    source = call.source
    text = None if source is None else run.columns.sources.get(source.file)
    failed = None if source is None or text is None else failed_expression(text, source)
    if failed is None or not path.isdecimal() or int(path) >= len(failed.positional):
        return None
    written = failed.positional[int(path)].text
    return written if is_primary(written) else None

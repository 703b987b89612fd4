"""What the error of `clew.guard` says: the op that made NaN or Inf, its inputs, what ran before.

Input: a `NonFiniteOrigin`. Output: text, the most important first.
"""

from __future__ import annotations

import numpy as np

from clew.analysis.file_names import file_names
from clew.analysis.nonfinite import NonFiniteOrigin
from clew.analysis.remedies import remedy
from clew.events.tensor_text import numbers_text
from clew.events.vocabulary import OP
from clew.plain_text import plain
from clew.run.event import Event
from clew.run.run import Run
from clew.run.value import Value

BEFORE = 20


def nonfinite_report(run: Run, found: NonFiniteOrigin, reaches: str) -> str:
    """Write what was found; `reaches` is what it was found in."""
    event, names = found.event, file_names(run)
    lines = [
        f"{_op(event)} made {found.what}{_where(event)}" + (f": {found.hint}" if found.hint else "")
    ]
    lines += _lines_of(event, names)
    for path, value in event.inputs.items():
        lines.append(f"  took {path}: {_numbers(value)}")
    lines.append(f"  made {_numbers(found.value)}")
    lines.append(
        f"  found in {reaches}"
        + ("" if found.arrives in ("", "unknown") else f", as {found.arrives}")
    )
    helps = remedy(event, found.value, found.hint)
    lines += [f"  usually helps: {helps}"] if helps else []
    lines += _ops_before(run, event, names)
    lines.append(f"  to let it pass: clew.guard(allow=[{_address(event, names)!r}])")
    return "\n".join(map(plain, lines))


def _op(event: Event) -> str:
    forward = event.forward
    return event.name if forward is None else f"the gradient of {forward.name} ({event.name})"


def _where(event: Event) -> str:
    module = "" if event.module is None else f" in {event.module or 'the root module'}"
    return f"{module}, {event.phase}, step {event.step}"


def _lines_of(event: Event, names: dict[str, str]) -> list[str]:
    """Write the line of an op, and of its forward op if it is another."""
    forward = event.forward
    sources = [event.source, None if forward is None else forward.source]
    found = []
    for source in sources:
        if source is not None:
            text = (
                f"  at {names.get(source.file, source.file)}:{source.line}: {source.text.strip()}"
            )
            found += [text] if text not in found else []
    return found


def _ops_before(run: Run, event: Event, names: dict[str, str]) -> list[str]:
    rows = run.rows(OP)
    rows = rows[(rows < event.row) & (run.process[rows] == run.process[event.row])]
    rows = rows[np.argsort(run.start[rows], kind="stable")][-BEFORE:]
    if not len(rows):
        return []
    cells = [_cells(run.event(row), names) for row in rows.tolist()]
    wide = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        f"  the {len(cells)} ops before it, the last one last:",
        *(
            "    " + "  ".join(c.ljust(w) for c, w in zip(row, wide, strict=True)).rstrip()
            for row in cells
        ),
    ]


def _cells(event: Event, names: dict[str, str]) -> tuple[str, str, str]:
    first = next(iter(event.outputs.values()), None)
    source = event.source
    line = "" if source is None else f"{names.get(source.file, source.file)}:{source.line}"
    name = event.name if event.phase == "forward" else f"{event.name} ({event.phase})"
    return name, "" if first is None else _numbers(first), line


def _numbers(value: Value) -> str:
    name = f" {value.name}" if value.name else ""
    numbers = numbers_text(value.stats, None)
    stats = value.stats
    zeros = f" {stats.zeros:,} zeros" if stats is not None and stats.zeros else ""
    return f"{value.look}{name} {numbers}{zeros}".rstrip()


def _address(event: Event, names: dict[str, str]) -> str:
    """Return an address that names the op for `allow=`."""
    source = event.source
    if source is None:
        return f"op:{event.name}"
    return f"line:{names.get(source.file, source.file)}:{source.line}"

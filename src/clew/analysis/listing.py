"""Events as rows of short texts: address, value, numbers, step, source line.

Input: an event and those of its values that an address names. Output: the cells of its row, for a
printed selection and for the table in a notebook.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from clew.address import with_rank
from clew.events.tensor_text import numbers_text
from clew.plain_text import plain
from clew.run.event import Event
from clew.run.run import Run
from clew.run.value import Value

HEAD = ("address", "value", "numbers", "step", "source")
# How many events of a selection are listed.
ROWS = 30


def full_address(run: Run, row: int) -> str:
    """Return the address that names one event alone: with its rank, if there are several."""
    address = run.address(row)
    return with_rank(address, int(run.rank[row])) if len(run.ranks) > 1 else address


def event_cells(run: Run, event: Event, values: Sequence[Value]) -> tuple[str, ...]:
    """Return the row of an event, with the first of its values and how many more there are."""
    shown = values[0] if values else None
    more = f" +{len(values) - 1}" if len(values) > 1 else ""
    source = event.source
    return (
        plain(full_address(run, event.row)),
        "" if shown is None else shown.look + more,
        "" if shown is None else numbers_text(shown.stats, None),
        f"step {event.step}",
        "" if source is None else plain(f"{PurePath(source.file).name}:{source.line}"),
    )


def lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines, their cells below each other; a column without text takes no room."""
    columns = [column for column in zip(*rows, strict=True) if any(column)]
    padded = [[cell.ljust(max(map(len, column))) for cell in column] for column in columns]
    return ["  " + "  ".join(cells).rstrip() for cells in zip(*padded, strict=True)]

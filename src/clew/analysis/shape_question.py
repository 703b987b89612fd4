"""Which tensor an address means when its shape is asked about, and the chain of its dimension.

Input: a `Run`, an address and a dimension. Output: a `ShapeChain`, or a `ClewError` that says what
there is instead.
"""

from __future__ import annotations

from dataclasses import replace
from operator import index

import numpy as np

from clew.address import parse
from clew.analysis.selection import Selection, address_of, select
from clew.analysis.shape_chain import trace_dimension
from clew.analysis.shape_links import ShapeChain
from clew.errors import ClewError, NotRecorded
from clew.plain_text import plain
from clew.run.event import Event
from clew.run.run import Run
from clew.run.value import Value


def why_shape(run: Run, address: str, dim: int) -> ShapeChain:
    """Follow a dimension of the tensor that an address names back to where it was made.

    Of several calls the first is taken, and the chain says so.
    """
    try:
        dim = index(dim)
    except TypeError:
        what = f"dim={dim!r}: it must be a whole number; -1 is the last dimension"
        raise ClewError(what) from None
    try:
        selection = select(run, address)
    except NotRecorded:
        number = _parameter(run, address)
        if number is None:
            raise
        return replace(trace_dimension(run, number, dim), address=address)
    events = [event for event in selection if selection.items_of(event)]
    if not events:
        raise ClewError(f"{address!r} names events without tensors: there is no shape")
    path, value = _only(selection, events[0])
    full = address_of(events[0], selection.role, path, with_call=True)
    if value.shape is None:
        raise ClewError(f"{full!r} is {value.look}, which has no plain shape")
    chain = trace_dimension(run, value.number, dim)
    notes = (*_of_several(full, events), *chain.notes)
    return replace(chain, address=full if len(events) > 1 else address, notes=notes)


def _parameter(run: Run, address: str) -> int | None:
    """Return the value of a parameter or buffer that ops took, though it was not captured."""
    asked = parse(address)
    if asked.role not in ("param", "buffer") or asked.path not in run.columns.value_names:
        return None
    name = run.columns.value_names.index(asked.path)
    numbers = np.flatnonzero(run.columns.value_name == name)
    return int(numbers[0]) if len(numbers) else None


def _only(selection: Selection, event: Event) -> tuple[str, Value]:
    """Return the tensor of an event that an address names; raise if it names several."""
    items = selection.items_of(event)
    if len(items) == 1:
        return items[0]
    listed = [f"{address_of(event, selection.role, path)} {value.look}" for path, value in items]
    raise ClewError(
        f"{selection.address!r} stands for {len(items)} tensors; pick one of: "
        f"{plain(', '.join(listed[:10]))}{', …' if len(listed) > 10 else ''}"
    )


def _of_several(full: str, events: list[Event]) -> list[str]:
    if len(events) == 1:
        return []
    first, last = events[0].address, events[-1].address
    return [f"of {len(events):,} matches, {first} to {last}, this is the first: {full}"]

"""Check how large columns become once every event has its text written out.

Names, paths and shapes are in the tables once, and an event has their numbers. An export, a saved
copy or a page writes them out for each event, so one long name and many events make much of few
bytes. Input: the columns of a rank and the bytes of its files. Output: ValueError if their text
would be far more than that of a recorded program.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from clew.events.columns import Columns, Ints
from clew.events.vocabulary import LABELLED, MODULE, NOTE, OF_OPS
from clew.store.read.allowance import Allowance

# Bytes for one argument of an event, as an item of a list and a text.
_LEAF = 32


def check_unfolded(c: Columns, size: int) -> None:
    """Raise ValueError if the text of all events is too much for `size` bytes of files."""
    allowance = Allowance(size)
    for length, what in (
        # As part of the name, and of the address.
        (2 * _subjects(c), "names"),
        (_places(c), "files, functions and threads"),
        (_total(c.error, map(len, c.errors)), "errors"),
        (_arguments(c), "arguments"),
        (_looks(c), "shapes"),
        (_derived(c), "modules and prefixes"),
    ):
        allowance.spend(length, f"{length} bytes of {what} of {len(c.id)} events")


def _total(numbers: Ints, lengths: Iterable[int]) -> int:
    """Sum the lengths of the texts that numbers refer to; a number below 0 is none."""
    known = np.fromiter(lengths, dtype=np.float64)
    counts = np.bincount(numbers[numbers >= 0], minlength=len(known))
    return int(known @ counts[: len(known)])


def _subjects(c: Columns) -> int:
    texts: dict[tuple[int, ...], Iterable[int]] = {
        (MODULE,): (len(row.path) + len(row.cls) for row in c.modules),
        OF_OPS: map(len, c.ops),
        (NOTE,): map(len, c.notes),
        LABELLED: (len(row.stem) + len(row.name) for row in c.labels),
    }
    return sum(
        _total(c.subject[np.isin(c.kind, kinds)], lengths) for kinds, lengths in texts.items()
    )


def _places(c: Columns) -> int:
    names = [len(name) for name in c.threads]
    lengths = [
        len(p.file) + len(p.function) + (names[p.thread] if p.thread < len(names) else 0)
        for p in c.places
    ]
    sources = c.place if c.derived is None else c.derived.source
    return max(_total(sources, lengths), _total(c.place, lengths))


def _arguments(c: Columns) -> int:
    return _LEAF * _total(c.template, (len(row.leaves) for row in c.templates))


def _looks(c: Columns) -> int:
    lengths = (4 * len(row.shape or ()) + len(row.dtype) + len(row.device) for row in c.metas)
    return _total(c.meta[c.refs], lengths)


def _derived(c: Columns) -> int:
    if c.derived is None:
        return 0
    return _total(c.derived.module, map(len, c.derived.paths)) + _total(
        c.derived.prefix, map(len, c.derived.prefixes)
    )

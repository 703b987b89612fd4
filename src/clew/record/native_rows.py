"""Turn the rows of the native engine into columns, with this recording's numbers in place of its.

Comes in: `NativeRows`. Goes out: arrays. Every step works on whole arrays; only what was never met
before (a meta, a nesting of arguments, a line) is looked at by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clew.events.columns import Ints, Meta
from clew.events.vocabulary import OF_OPS, Kept, Payload
from clew.record.native_arguments import EngineOps, call_of, numbered
from clew.record.stacks import STACKS
from clew.stream.records import EVENT_ROW, NativeRows, UnknownShape

if TYPE_CHECKING:
    from clew.record.record_tables import RecordTables

_VALUE = np.dtype(
    [(name, np.int64) for name in ("memory", "producer", "bytes")]
    + [(name, np.int32) for name in ("version", "meta", "name", "grad")]
)
_MOMENTS = ("min", "max", "mean", "std", "norm")
_ENDS = ("lowest", "highest")
_KEPT = np.dtype(
    [("value", np.int64), ("data", np.int64)]
    + [(name, np.float64) for name in (*_MOMENTS, *_ENDS)]
    + [(name, np.int64) for name in ("count", "nan", "inf", "zeros")]
    + [("digest", np.uint64), ("has", np.uint64), ("mark", np.int64), ("marks", np.int64)]
)
_FREED = np.dtype([("value", np.int64), ("event", np.int64)])
# A table of all numbers is quicker than sorting them while it has at most so many rows an event.
_MOST_COUNTED = 8
# The text of an error where Python has not seen it.
_RAISED = "an exception that did not reach Python code"


class NativeNumbers:
    """The numbers that rows and values of the native engine have in this recording."""

    def __init__(self, tables: RecordTables) -> None:
        self._tables = tables
        self._ops = EngineOps()
        self._metas = _Found()
        self._odd = _Found()
        self._names = _Found()
        # The words of nestings of arguments that may still be used, by number.
        self._arguments: dict[int, bytes] = {}
        self._texts: list[str] = []
        self._objects: list[Any] = []
        # The first value of each batch there, and what to add to get its number here.
        self._firsts = _Found()
        self._offsets = _Found()
        self.refs: Ints = np.zeros(0, np.int64)
        self._last_event = -1

    def value(self, number: int) -> int:
        """Return the number that a value has here."""
        return int(self.values(np.array([number]))[0])

    def values(self, numbers: Ints) -> Ints:
        """Return the numbers that values have here."""
        if not len(numbers):
            return numbers
        batch = np.searchsorted(self._firsts.all, numbers, side="right") - 1
        mapped: Ints = numbers + self._offsets.all[batch]
        return mapped

    def learn(self, rows: NativeRows, first: int) -> dict[str, Ints]:
        """Return the columns of the values of some rows, which get the numbers from `first` on."""
        self._firsts.extend([rows.first_value])
        self._offsets.extend([first - rows.first_value])
        tables = self._tables
        self._texts = rows.texts
        self._objects += rows.constants
        self._metas.extend([tables.plain_meta(_meta(words)) for words in rows.metas])
        self._odd.extend([tables.meta(_odd_key(facts)) for facts in rows.odd_metas])
        self._names.extend(tables.many_value_names(rows.names))
        self._learn_arguments(rows)
        values = np.frombuffer(rows.values, _VALUE)
        memory = values["memory"].copy()
        is_own = memory & 1 == 1
        memory[is_own] = 2 * self.values(memory[is_own] >> 1) + 1
        return {
            "version": values["version"],
            "storage": memory,
            "meta": self._mapped_metas(values["meta"]),
            "grad": values["grad"],
            "producer": values["producer"],
            "value_name": self._names[values["name"]],
            "nbytes": values["bytes"],
            "freed": np.full(len(values), -1, np.int64),
        }

    def _learn_arguments(self, rows: NativeRows) -> None:
        """Remember new nestings of arguments, and drop those that are not used again."""
        known = self._arguments
        # They are in the order of their numbers, so that only those to drop are looked at.
        while known and (first := next(iter(known))) < rows.oldest_arguments:
            del known[first]
        known.update(enumerate(rows.arguments, rows.first_arguments))

    def _mapped_metas(self, column: NDArray[np.int32]) -> Ints:
        if (column >= 0).all():
            return self._metas[column]
        odd = self._odd[np.where(column < -1, -2 - column, -1)]
        return np.where(column < 0, odd, self._metas[np.maximum(column, -1)])

    def events(self, rows: NativeRows) -> dict[str, Ints]:
        """Return the columns of the events of some rows, whose values were learned.

        Calls that are open come last.
        """
        events = np.frombuffer(rows.events + rows.open_calls, EVENT_ROW)
        tables = self._tables
        self.refs = self.values(np.frombuffer(rows.refs, np.int64))
        number = events["number"].copy()
        is_value = number <= -2
        if is_value.any():
            number[is_value] = -2 - self.values(-2 - number[is_value])
        errors = [-1 if e is None else tables.error(e or _RAISED) for e in rows.errors]
        error = events["error"]
        if errors:
            found = np.array([*errors, -1], np.int64)
            error = found[np.where(error < 0, -1, error - rows.first_error)]
        if len(events):
            self._last_event = max(self._last_event, int(events["id"].max()))
        return {
            "id": events["id"],
            "kind": events["kind"],
            "subject": self._subjects(events["kind"], events["subject"]),
            "place": _mapped(events["node"], lambda at: tables.place(STACKS.nodes[at])),
            "parent": events["parent"],
            "start": events["start"],
            "end": events["end"],
            "number": number,
            "template": _mapped(events["arguments"], self._template),
            "first_ref": events["first_ref"],
            "error": error,
            "generator": events["generator"],
            "draw": events["draw"],
        }

    def _subjects(self, kinds: Any, subjects: Any) -> Ints:
        """Return the numbers of ops here; those of names of modules are the same."""
        is_op = np.isin(kinds, OF_OPS)
        result: Ints = subjects.astype(np.int64)
        result[is_op] = _mapped(subjects[is_op], lambda op: self._tables.subject(self._ops[op])[2])
        return result

    def _template(self, number: int) -> int:
        words = self._arguments[number]
        return self._tables.template_of(
            words, lambda: call_of(words, self._texts, self._objects, self._ops)
        )

    def kept(self, rows: NativeRows) -> dict[int, Kept]:
        """Return what was kept of values, by their numbers."""
        if not rows.kept:
            return {}
        kept = np.frombuffer(rows.kept, _KEPT)
        metas = self._mapped_metas(np.frombuffer(rows.values, _VALUE)["meta"])
        facts = metas[kept["value"] - rows.first_value].tolist()
        table = self._tables.metas.rows
        numbers = self.values(kept["value"]).tolist()
        found: dict[int, Kept] = {}
        blocks, statistics = kept["data"].tolist(), _statistics(kept)
        marks = _fingerprints(kept, rows.marks)
        digests = kept["digest"].tolist()
        for number, meta, block, stats, mark, digest in zip(
            numbers, facts, blocks, statistics, marks, digests, strict=True
        ):
            payload = None
            if block >= 0:
                data = np.asarray(memoryview(rows.data[block]))
                checksum = digest if "digest" in stats and len(data) else None
                payload = Payload(table[meta].dtype, table[meta].shape, data, checksum)
            found[number] = Kept(stats, payload, mark)
        return found

    def freed(self, rows: NativeRows) -> tuple[Ints, Ints]:
        """Return the first values on memory that was freed, and the events before which it was."""
        freed = np.frombuffer(rows.freed, _FREED)
        events = np.where(freed["event"] < 0, self._last_event + 1, freed["event"])
        return self.values(freed["value"]), events

    def gone(self, rows: NativeRows) -> Ints:
        """Return the values that no later event takes."""
        return self.values(np.frombuffer(rows.gone, np.int64))


def _statistics(kept: Any) -> list[dict[str, Any]]:
    """Return the statistics of values; rows that have the same ones are read column by column."""
    found: list[dict[str, Any]] = [{}] * len(kept)
    for has in np.unique(kept["has"]).tolist():
        at = np.flatnonzero(kept["has"] == has)
        names = ["count", *(_MOMENTS if has & 1 else ()), "nan", "inf", "zeros"]
        names += _ENDS if has & 2 else ()
        cells = [kept[name][at].tolist() for name in names]
        if has & 4:
            names.append("digest")
            cells.append([f"{digest:016x}" for digest in kept["digest"][at].tolist()])
        for row, numbers in zip(at.tolist(), zip(*cells, strict=True), strict=True):
            found[row] = dict(zip(names, numbers, strict=True))
    return found


def _fingerprints(kept: Any, packed: bytes) -> list[bytes | None]:
    """Return the packed fingerprints of values, None for those without."""
    if not packed:
        return [None] * len(kept)
    first = (8 * kept["mark"]).tolist()
    end = (8 * (kept["mark"] + kept["marks"])).tolist()
    return [packed[a:b] or None for a, b in zip(first, end, strict=True)]


class _Found:
    """The numbers that rows of a table of the engine have here; the room for them is doubled."""

    def __init__(self) -> None:
        # Behind the last comes what stands for row -1.
        self._room: Ints = np.full(16, -1, np.int64)
        self._count = 0

    def extend(self, found: list[int]) -> None:
        """Add the numbers of the next rows."""
        last = self._count + len(found)
        if last >= len(self._room):
            more = np.full(2 * last - len(self._room), -1, np.int64)
            self._room = np.concatenate((self._room, more))
        self._room[self._count : last] = found
        self._count = last

    @property
    def all(self) -> Ints:
        """Return the numbers of all rows."""
        return self._room[: self._count]

    def __getitem__(self, rows: Any) -> Ints:
        """Return the numbers of some rows, -1 for -1."""
        found: Ints = self._room[: self._count + 1][rows]
        return found


def _mapped(column: Any, find: Callable[[int], int]) -> Ints:
    """Return what `find` returns for each number of a column, calling it once for each."""
    if not len(column):
        return np.zeros(0, np.int64)
    most = int(column.max()) + 1
    if most > _MOST_COUNTED * len(column):
        # Numbers that differ in every call grow with the run: a table of all would too.
        there, at = np.unique(column, return_inverse=True)
        return np.array([find(number) for number in there.tolist()], np.int64)[at]
    there = np.flatnonzero(np.bincount(column))
    table = np.zeros(most, np.int64)
    table[there] = [find(number) for number in there.tolist()]
    result: Ints = table[column]
    return result


def _meta(words: bytes) -> Meta:
    """Return the facts of a plain tensor."""
    dtypes, devices = numbered()
    head, *rest = np.frombuffer(words, np.int64).tolist()
    dims = head >> 32
    index = head >> 16 & 0xFF
    device = devices[head >> 8 & 0xFF]
    return Meta(
        dtype=str(dtypes[head & 0xFF]).replace("torch.", ""),
        shape=tuple(rest[:dims]),
        stride=tuple(rest[dims:]),
        device=device if index == 0xFF else f"{device}:{index}",
        layout="strided",
        cls="Tensor",
        placements=None,
        local_shape=None,
    )


def _odd_key(facts: tuple[Any, ...]) -> tuple[Any, ...]:
    cls, shape, *rest = facts
    return (UnknownShape([-1]) if cls is UnknownShape else shape, *rest)

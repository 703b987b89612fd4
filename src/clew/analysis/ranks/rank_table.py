"""One rank of a saved trace as arrays that can be compared with those of other ranks.

Input: the folder of a rank. Output: a `RankTable`: its ops and calls in order, each with a key that
is the same on every rank, and for each tensor they took or gave a digest. Only the columns needed
are read, rank by rank, so that the memory does not grow with the number of ranks.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from clew.analysis.ranks.arrow_columns import coded
from clew.analysis.ranks.keys import (
    Hashes,
    Ints,
    hashed,
    hashed_texts,
    mixed,
    occurrences,
    parsed_digests,
)
from clew.analysis.ranks.table_rows import MetaFacts, TableRows, is_tensor, leaves_of, read_tables
from clew.events.columns import Coded
from clew.events.model import Gap
from clew.store.read.allowance import Allowance
from clew.store.read.rank_columns import ints
from clew.store.read.table_parts import Query, read_query, size_of_parts

EVENT_COLUMNS = [
    "id", "kind", "name", "module", "step", "phase", "file", "line", "template", "values",
    "generator", "nan",
]  # fmt: skip
VALUE_COLUMNS = ["value", "producer", "dtype", "storage", "name", "digest", "meta"]
# Kinds of events that are not compared: what composites run is compared op by op.
_LEFT_OUT = ("composite", "step", "note", "gathered")
_ASYNC = "AsyncCollectiveTensor"
# How many views of views are looked through to find the numbers that a view shows.
_VIEWS = 4


@dataclass(frozen=True)
class RankValues:
    """The values of one rank in order of their numbers; the last row stands for none."""

    number: Ints
    producer: Ints
    digest: Hashes
    dtype: Hashes
    storage: Ints
    names: Coded
    meta: Ints

    def rows_of(self, numbers: Ints) -> Ints:
        """Return the row of each number; a number that is not there has the last row."""
        at = np.searchsorted(self.number, numbers)
        at = np.minimum(at, len(self.number) - 1)
        return np.where(self.number[at] == numbers, at, len(self.number) - 1)


@dataclass(frozen=True)
class RankTable:
    """The ops and calls of one rank in order, and the tensors they took and gave.

    An event has a row; `first[row]` to `first[row + 1]` are its slots, of which the first
    `inputs[row]` are what it took. `slot_value` says which row of `values` a slot shows.
    Keys are equal on ranks where the same line ran the same op, on the same parameter if on any,
    for the same time in a step.
    """

    rank: int
    id: Ints
    key: Hashes
    kinds: Coded
    names: Coded
    modules: Coded
    phases: Coded
    files: Coded
    line: Ints
    step: Ints
    template: Ints
    is_random: NDArray[np.bool_]
    nan: Ints
    first: Ints
    inputs: Ints
    slot_value: Ints
    slot_key: Hashes
    arguments: Hashes
    values: RankValues
    tables: TableRows

    @cached_property
    def slot_digest(self) -> Hashes:
        """Return the digest of each slot; 0 where nothing is known."""
        return self.values.digest[self.slot_value]

    @cached_property
    def slot_row(self) -> Ints:
        """Return the row of the event of each slot."""
        return np.repeat(np.arange(len(self.id)), np.diff(self.first))

    @cached_property
    def is_input(self) -> NDArray[np.bool_]:
        """Return which slots hold what an event took."""
        at = np.arange(len(self.slot_value)) - self.first[:-1][self.slot_row]
        return np.asarray(at < self.inputs[self.slot_row])

    @cached_property
    def row_of_key(self) -> dict[int, int]:
        """Return the row of each key."""
        return {key: row for row, key in enumerate(self.key.tolist())}

    @cached_property
    def row_of_id(self) -> dict[int, int]:
        """Return the row of each event id."""
        return {number: row for row, number in enumerate(self.id.tolist())}

    def maker(self, value: int) -> int:
        """Return the row of the event that made a value, -1 if none did that was recorded."""
        return self.row_of_id.get(int(self.values.producer[value]), -1)

    def taken(self, row: int) -> range:
        """Return the slots of what an event took."""
        return range(int(self.first[row]), int(self.first[row] + self.inputs[row]))

    def given(self, row: int) -> range:
        """Return the slots of what an event gave."""
        return range(int(self.first[row] + self.inputs[row]), int(self.first[row + 1]))

    def look(self, value: int) -> MetaFacts:
        """Return what a value looks like."""
        return self.tables.metas.get(int(self.values.meta[value]), MetaFacts())

    def place(self, row: int) -> tuple[str, int]:
        """Return file and line of an event, `("", -1)` if it is not known."""
        return self.files[row] or "", int(self.line[row])


def read_rank_table(folder: Path, rank: int, gaps: list[Gap]) -> RankTable:
    """Read what is compared of one rank; what is damaged is left out and listed in `gaps`."""
    allowance = Allowance(size_of_parts(folder))
    query = partial(Query, folded=True, allowance=allowance)
    events = read_query(folder, query("events", EVENT_COLUMNS), gaps)[0]
    values = read_query(folder, query("values", VALUE_COLUMNS), gaps)[0]
    rows = read_query(folder, query("tables", ["table", "number", "row"]), gaps)[0]
    tables = read_tables(rows)
    kinds = coded(events["kind"])
    wanted = ~kinds.where(lambda text: text in _LEFT_OUT) & (ints(events["id"]) >= 0)
    events = _newest(events, wanted)
    return _table(rank, events, _of_values(values), tables)


def _newest(events: pa.Table, wanted: NDArray[np.bool_]) -> pa.Table:
    """Return the newest row of each event, in order of their ids."""
    rows = np.flatnonzero(wanted)
    ids = ints(events["id"])[rows]
    _, last = np.unique(ids[::-1], return_index=True)
    return events.take(pa.array(rows[len(ids) - 1 - last]))


def _table(rank: int, events: pa.Table, values: RankValues, tables: TableRows) -> RankTable:
    lists = events["values"].combine_chunks()
    count = ints(pc.fill_null(pc.list_value_length(lists), 0))
    refs = values.rows_of(ints(lists.flatten()))
    first = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
    texts = {name: coded(events[name]) for name in ("kind", "name", "module", "phase", "file")}
    line, step = ints(events["line"]), ints(events["step"])
    template = ints(events["template"])
    key = _keys(texts, line, step, _first_names(values, refs, first))
    inputs, arguments = _arguments(template, tables)
    inputs = np.minimum(np.where(inputs < 0, count, inputs), count)
    slot = np.arange(len(refs)) - np.repeat(first[:-1], count)
    is_output = slot >= np.repeat(inputs, count)
    # An output is numbered from the first output on: ranks may give an op more inputs.
    position = np.where(is_output, slot - np.repeat(inputs, count) + (1 << 20), slot)
    found = RankTable(
        rank=rank, id=ints(events["id"]), key=key, kinds=texts["kind"], names=texts["name"],
        modules=texts["module"], phases=texts["phase"], files=texts["file"], line=line, step=step,
        template=template,
        is_random=ints(events["generator"]) >= 0, nan=ints(events["nan"]), first=first,
        inputs=inputs, slot_value=refs,
        slot_key=mixed(np.repeat(key, count), position.astype(np.uint64)),
        arguments=arguments, values=values, tables=tables,
    )  # fmt: skip
    _look_through_views(found)
    _forget_unfinished(found)
    return found


def _first_names(values: RankValues, refs: Ints, first: Ints) -> Hashes:
    """Return, for each event, a hash of the first parameter or buffer it took or gave, else 0."""
    hashes = np.append(hashed_texts(values.names.texts), np.uint64(0))
    found = np.zeros(len(first) - 1, np.uint64)
    slots = np.flatnonzero(values.names.codes[refs] >= 0)[::-1]
    rows = np.searchsorted(first, slots, side="right") - 1
    # The first slot of a row comes last, and is what stays.
    found[rows] = hashes[values.names.codes[refs[slots]]]
    return found


def _keys(texts: dict[str, Coded], line: Ints, step: Ints, names: Hashes) -> Hashes:
    """Return the key of each event: what ran, where, on what, for which time in its step."""
    what = np.zeros(len(line), np.uint64)
    for column in texts.values():
        files = column is texts["file"]
        hashes = hashed_texts([t.replace("\\", "/").rpartition("/")[2] if files else t
                               for t in column.texts])  # fmt: skip
        what = mixed(what, np.append(hashes, np.uint64(0))[column.codes])
    what = mixed(what, names)
    what = mixed(mixed(what, line.astype(np.uint64)), step.astype(np.uint64))
    return mixed(what, occurrences(what).astype(np.uint64))


def _arguments(template: Ints, tables: TableRows) -> tuple[Ints, Hashes]:
    """Return how many tensors each event took, and a hash of its other arguments."""
    numbers, inverse = np.unique(template, return_inverse=True)
    counts, hashes = [], []
    for number in numbers.tolist():
        leaves = leaves_of(tables.templates.get(number, ""))
        counts.append(sum(role == "in" and is_tensor(leaf) for role, _, leaf in leaves)
                      if leaves else -1)  # fmt: skip
        given = [(path, leaf) for role, path, leaf in leaves if role == "in"]
        hashes.append(hashed(json.dumps(given)))
    return (
        np.array(counts, np.int64)[inverse] if len(numbers) else template,
        np.array(hashes, np.uint64)[inverse] if len(numbers) else template.astype(np.uint64),
    )


def _look_through_views(table: RankTable) -> None:
    """Give views without a digest one that follows from what they show."""
    values, digest = table.values, table.values.digest
    for _ in range(_VIEWS):
        unknown = np.flatnonzero(digest == 0)
        makers = np.searchsorted(table.id, values.producer[unknown])
        makers = np.minimum(makers, max(len(table.id) - 1, 0))
        known = (values.producer[unknown] >= 0) & (len(table.id) > 0)
        if not len(unknown) or not known.any():
            return
        known &= (table.id[makers] == values.producer[unknown]) & (table.inputs[makers] > 0)
        rows, makers = unknown[known], makers[known]
        shown = table.slot_value[table.first[makers]]
        seen = digest[shown]
        name = np.append(hashed_texts(table.names.texts), np.uint64(0))[table.names.codes[makers]]
        usable = (seen != 0) & (values.storage[shown] == values.storage[rows])
        digest[rows[usable]] = mixed(seen, mixed(name, table.arguments[makers]))[usable] | 1


def _forget_unfinished(table: RankTable) -> None:
    """Take away digests of tensors that a collective may not have written yet."""
    unfinished = [number for number, facts in table.tables.metas.items() if facts.kind == _ASYNC]
    table.values.digest[np.isin(table.values.meta, unfinished)] = 0


def _of_values(rows: pa.Table) -> RankValues:
    """Join the rows of each value: its facts come first, a digest may come in a later row."""
    number = ints(rows["value"])
    order = np.argsort(number, kind="stable")
    number = number[order]
    facts = order[ints(rows["meta"])[order] >= 0]
    known, at = np.unique(ints(rows["value"])[facts], return_index=True)
    facts = facts[at]
    names = coded(rows["name"])
    digest = np.zeros(len(known) + 1, np.uint64)
    digests = coded(rows["digest"])
    has = np.flatnonzero(digests.codes >= 0)
    hashes = parsed_digests(digests.texts)
    found = np.searchsorted(known, ints(rows["value"])[has])
    inside = found < len(known)
    inside[inside] = known[found[inside]] == ints(rows["value"])[has[inside]]
    digest[found[inside]] = hashes[digests.codes[has[inside]]]
    dtypes = coded(rows["dtype"])
    dtype = np.append(hashed_texts(dtypes.texts), np.uint64(0))[dtypes.codes[facts]]

    def with_none(column: Ints) -> Ints:
        return np.append(column[facts], -1)

    return RankValues(
        np.append(known, np.iinfo(np.int64).max), with_none(ints(rows["producer"])), digest,
        np.append(dtype, np.uint64(0)), with_none(ints(rows["storage"])),
        Coded(np.append(names.codes[facts], -1), names.texts), with_none(ints(rows["meta"])),
    )  # fmt: skip

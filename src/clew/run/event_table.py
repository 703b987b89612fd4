"""The event table: every fact of events as columns of plain data.

In come columns with what was derived from them, out come the columns that SQL engines, pandas,
CSV and Parquet see. Texts that repeat come as codes into a list, so that nothing is written out
row by row; a number that may be missing is negative where it is, a statistic NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from clew.address import written
from clew.events.columns import IN, Coded, CodedLists, Columns, Derived, Ints, NumberLists
from clew.events.op_names import UNINITIALISED, bare_op
from clew.events.records import (
    GATHERED,
    KINDS,
    LABELLED,
    MODULE,
    NOTE,
    OP,
    PHASES,
    PREFIX,
)
from clew.events.tensor_text import short_dtype
from clew.run.value_stats import StatColumns, over_outputs


def event_table(c: Columns, derived: Derived, rank: Ints, ref_meta: Ints) -> dict[str, Any]:
    """Give the facts of all events but their statistics.

    `ref_meta` says what the tensors of the events look like, one event's after the other's.
    """
    places = c.places
    phase = np.array([place.phase for place in places], dtype=np.int64)
    thread = np.array([place.thread for place in places], dtype=np.int64)
    files, functions = _coded([p.file for p in places]), _coded([p.function for p in places])
    lines = np.array([place.line for place in places], dtype=np.int64)
    has_source = derived.source >= 0
    source = np.where(has_source, derived.source, 0)
    names = event_names(c, derived.call)
    labelled = np.isin(c.kind, (MODULE, OP, *LABELLED))
    inputs, outputs = _tensors(c, ref_meta)
    return {
        "id": c.id,
        "parent": c.parent,
        "kind": Coded(c.kind, KINDS),
        "name": names.names,
        "address": names.addresses(),
        "module": Coded(derived.module, derived.paths),
        "call": np.where(labelled, derived.call, -1),
        "step": derived.step,
        "phase": Coded(phase[c.place], PHASES),
        "rank": rank,
        "thread": Coded(thread[c.place], thread_names(c)),
        "file": Coded(_where(has_source, files, source), files.texts),
        "line": np.where(has_source, lines[source], -1) if len(lines) else derived.source,
        "function": Coded(_where(has_source, functions, source), functions.texts),
        "start": c.start,
        "end": c.end,
        "error": Coded(c.error, c.errors),
        "inputs": inputs,
        "outputs": outputs,
        "forward": derived.forward,
        "owner": derived.owner,
        "prefix": Coded(derived.prefix + 1, ["", *derived.prefixes]),
        "source": derived.source,
    }


def output_stats(c: Columns, stats: StatColumns, rows: Ints) -> StatColumns:
    """Give the statistics over all results of each event; of uninitialised memory there are none.

    `rows` says for the tensors of the events, in order, which rows of `stats` are theirs, -1 none.
    """
    counts, is_output = tensor_leaves(c)
    event = np.repeat(np.arange(len(c.id)), counts)
    mine = is_output & (rows >= 0) & ~gives_uninitialised(c)[event]
    joined: StatColumns = over_outputs(stats, rows[mine], event[mine], len(c.id))
    return joined


def gives_uninitialised(c: Columns) -> Any:
    """Tell for each event whether its results are memory that nobody has written yet."""
    ops = np.array([*(bare_op(name) in UNINITIALISED for name in c.ops), False], dtype=bool)
    return ops[np.where(c.kind == OP, c.subject, len(c.ops))]


def tensor_leaves(c: Columns) -> tuple[Ints, Any]:
    """Give how many tensors each event has, and for all of them whether they are results."""
    sizes, counts = _tensor_counts(c)
    roles = [leaf.role != IN for t in c.templates for leaf in t.tensors]
    if not len(c.id):
        return counts, np.zeros(0, dtype=bool)
    first = np.cumsum(sizes) - sizes
    starts = np.cumsum(counts) - counts
    at = np.repeat(first[c.template] - starts, counts) + np.arange(int(counts.sum()))
    return counts, np.array([*roles, False], dtype=bool)[at]


def event_values(c: Columns) -> Ints:
    """Give the numbers of the events' tensors, one event's after the other's."""
    _, counts = _tensor_counts(c)
    starts = np.cumsum(counts) - counts
    at = np.repeat(c.first_ref - starts, counts) + np.arange(int(counts.sum()))
    values: Ints = c.refs[at]
    return values


def numbers_of_tables(c: Columns, values: Ints) -> dict[str, Any]:
    """Give the columns of the event table that point at rows of other tables."""
    return {
        "subject": c.subject,
        "place": c.place,
        "number": c.number,
        "template": c.template,
        "values": NumberLists(_tensor_counts(c)[1], values),
    }


def _tensor_counts(c: Columns) -> tuple[Ints, Ints]:
    """Give how many tensors each template has, and each event."""
    sizes = np.array([len(t.tensors) for t in c.templates], dtype=np.int64)
    return sizes, sizes[c.template] if len(c.id) else np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class EventNames:
    """What each event is called, and its address: a stem, the call if the stem ends in `#`, a role.

    `stem` says for each event which of `stems` and `roles` are its own.
    """

    names: Coded
    stem: Ints
    stems: list[str]
    roles: list[str]
    call: Ints

    def address(self, row: int) -> str:
        """Give the address of one event."""
        stem = int(self.stem[row])
        return self._address(stem, int(self.call[row]))

    def addresses(self) -> list[str]:
        """Give the addresses of all events."""
        pairs = zip(self.stem.tolist(), self.call.tolist(), strict=True)
        return [self._address(stem, call) for stem, call in pairs]

    def _address(self, stem: int, call: int) -> str:
        text = self.stems[stem]
        return f"{text}{call}{self.roles[stem]}" if text.endswith("#") else text


def event_names(c: Columns, call: Ints) -> EventNames:
    """Give names and addresses of events."""
    texts: dict[str, int] = {}
    stems: list[str] = []
    roles: list[str] = []
    names = np.zeros(len(c.id), dtype=np.int64)
    stem = np.zeros(len(c.id), dtype=np.int64)
    for kind in np.unique(c.kind).tolist():
        mine = c.kind == kind
        subjects, inverse = np.unique(c.subject[mine], return_inverse=True)
        numbers = []
        for subject in subjects.tolist():
            name, head, role = _subject_texts(c, kind, subject)
            numbers.append((texts.setdefault(name, len(texts)), len(stems)))
            stems.append(head)
            roles.append(role)
        found = np.array(numbers, dtype=np.int64)[inverse]
        names[mine], stem[mine] = found[:, 0], found[:, 1]
    return EventNames(Coded(names, list(texts)), stem, stems, roles, call)


def _subject_texts(c: Columns, kind: int, subject: int) -> tuple[str, str, str]:
    """Give the name of events of a subject, and their address before and after the call."""
    if kind == MODULE:
        module = c.modules[subject]
        return module.cls, f"{written(module.path)}#", ""
    if kind == OP:
        return c.ops[subject], f"op:{c.ops[subject]}#", ""
    if kind == PREFIX:
        label = c.labels[subject]
        return label.name, label.stem, ""
    if kind in LABELLED:
        label = c.labels[subject]
        return label.name, f"{label.stem}#", f":{label.role}" if label.role else ""
    name = c.notes[subject] if kind == NOTE else "step"
    return name, name, ""


def ranks(c: Columns, rank: int | Ints) -> Ints:
    """Give the rank of each event: its process's, unless it was gathered from another."""
    found: Ints = np.full(len(c.id), rank) if isinstance(rank, int) else rank.copy()
    mine = np.flatnonzero(c.kind == GATHERED)
    if len(mine):
        of = np.array([-1 if n.rank is None else n.rank for n in c.labels], dtype=np.int64)
        gathered = of[c.subject[mine]]
        found[mine] = np.where(gathered >= 0, gathered, found[mine])
    return found


def thread_names(c: Columns) -> list[str]:
    """Give the names of all threads, numbers for those without."""
    most = max((place.thread for place in c.places), default=-1)
    return [*c.threads, *(str(number) for number in range(len(c.threads), most + 1))]


def _tensors(c: Columns, ref_meta: Ints) -> tuple[CodedLists, CodedLists]:
    """Give what the tensors an event took, and gave, look like."""
    looks = [
        f"{short_dtype(m.dtype)}[{'?' if m.shape is None else ','.join(map(str, m.shape))}]"
        for m in c.metas
    ]
    counts, is_output = tensor_leaves(c)
    event = np.repeat(np.arange(len(c.id)), counts)
    size = len(c.id)
    sides = [np.bincount(event[side], minlength=size) for side in (~is_output, is_output)]
    return (
        CodedLists(sides[0], ref_meta[~is_output], looks),
        CodedLists(sides[1], ref_meta[is_output], looks),
    )


def _coded(texts: list[str]) -> Coded:
    numbers: dict[str, int] = {}
    codes = [numbers.setdefault(text, len(numbers)) for text in texts]
    return Coded(np.array(codes, dtype=np.int64), list(numbers))


def _where(there: Any, coded: Coded, rows: Ints) -> Ints:
    return np.where(there, coded.codes[rows], -1) if len(coded.codes) else np.full(len(rows), -1)

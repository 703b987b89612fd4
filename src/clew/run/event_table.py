"""The event table: every fact of events as columns of plain data.

Input: columns with the facts derived from them. Output: the columns that SQL engines, pandas, CSV
and Parquet see. Texts that repeat are codes into a list, so that nothing is written row by row. A
missing number is negative, a missing statistic NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew.address import written
from clew.events.columns import (
    IN,
    Coded,
    CodedLists,
    Columns,
    CountedTexts,
    Derived,
    Flags,
    Ints,
    Meta,
    NumberLists,
    Tensor,
)
from clew.events.op_names import UNINITIALISED, bare_op
from clew.events.tensor_text import short_dtype
from clew.events.vocabulary import GATHERED, KINDS, LABELLED, MODULE, NOTE, OF_OPS, PHASES, PREFIX
from clew.run.lookup import numbered, used_rows
from clew.run.value_stats import StatColumns, over_outputs


@dataclass(frozen=True, slots=True)
class EventTensors:
    """Tensors of events, event by event: which event, which value, whether a result.

    `counts` has how many tensors each event has.
    """

    counts: Ints
    event: Ints
    value: Ints
    is_output: NDArray[np.bool_]


def event_tensors(c: Columns) -> EventTensors:
    """Return the tensors of all events."""
    # Templates of constants that differ in each call grow with the run: no table of all of them.
    used, template = np.unique(c.template, return_inverse=True)
    leaves = [c.templates[number].tensors for number in used.tolist()]
    sizes = np.array([len(of_one) for of_one in leaves], dtype=np.int64)
    roles = np.array([leaf.role != IN for of_one in leaves for leaf in of_one], dtype=bool)
    counts: Ints = sizes[template] if len(template) else template
    starts = np.cumsum(counts) - counts
    event = np.repeat(np.arange(len(c.id)), counts)
    within = np.arange(len(event)) - starts[event]
    first = np.cumsum(sizes) - sizes
    return EventTensors(
        counts, event, c.refs[c.first_ref[event] + within], roles[first[template[event]] + within]
    )


def direct_tensors(c: Columns, tensors: EventTensors) -> EventTensors:
    """Return the tensors of all events that are not inside an object."""
    used, template = np.unique(c.template, return_inverse=True)
    held = [c.templates[number].held() for number in used.tolist()]
    direct = [[h is None for leaf, h in pairs if leaf.constant is Tensor] for pairs in held]
    if all(map(all, direct)):
        return tensors
    sizes = np.array([len(of_one) for of_one in direct], dtype=np.int64)
    flags = np.array([flag for of_one in direct for flag in of_one], dtype=bool)
    first = (np.cumsum(sizes) - sizes)[template]
    starts = np.cumsum(tensors.counts) - tensors.counts
    within = np.arange(len(tensors.event)) - starts[tensors.event]
    kept = flags[first[tensors.event] + within]
    event = tensors.event[kept]
    counts = np.bincount(event, minlength=len(c.id))
    return EventTensors(counts, event, tensors.value[kept], tensors.is_output[kept])


def event_table(
    c: Columns, derived: Derived, rank: Ints, tensors: EventTensors, ref_meta: Ints
) -> dict[str, Any]:
    """Return the facts of all events except their statistics.

    `ref_meta` has the meta number of each of the events' tensors.
    """
    has_source = derived.source >= 0
    source = np.where(has_source, derived.source, c.place)
    used, at = used_rows(len(c.places), c.place, source)
    places = [c.places[number] for number in used]
    phase = np.array([place.phase for place in places], dtype=np.int64)
    thread = np.array([place.thread for place in places], dtype=np.int64)
    lines = np.array([place.line for place in places], dtype=np.int64)
    files, functions = _coded([p.file for p in places]), _coded([p.function for p in places])
    place, source = at[c.place], at[source]
    names = event_names(c, derived.call)
    labelled = np.isin(c.kind, (MODULE, *OF_OPS, *LABELLED))
    inputs, outputs = _looks(c, tensors, ref_meta)
    return {
        "id": c.id,
        "parent": c.parent,
        "kind": Coded(c.kind, KINDS),
        "name": names.names,
        "address": names.addresses(),
        "module": Coded(derived.module, derived.paths),
        "call": np.where(labelled, derived.call, -1),
        "step": derived.step,
        "phase": Coded(phase[place], PHASES),
        "rank": rank,
        "thread": Coded(thread[place], thread_names(c)),
        "file": Coded(np.where(has_source, files.codes[source], -1), files.texts),
        "line": np.where(has_source, lines[source], -1),
        "function": Coded(np.where(has_source, functions.codes[source], -1), functions.texts),
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


def output_stats(c: Columns, stats: StatColumns, tensors: EventTensors, rows: Ints) -> StatColumns:
    """Return statistics over all results of each event; uninitialised results are left out.

    `rows` has for each of the events' tensors its row of `stats`, -1 for none.
    """
    mine = tensors.is_output & (rows >= 0) & ~gives_uninitialised(c)[tensors.event]
    joined: StatColumns = over_outputs(stats, rows[mine], tensors.event[mine], len(c.id))
    return joined


def gives_uninitialised(c: Columns) -> Flags:
    """Return for each event whether its results are uninitialised memory."""
    ops = np.array([*(bare_op(name) in UNINITIALISED for name in c.ops), False], dtype=bool)
    return np.asarray(ops[np.where(np.isin(c.kind, OF_OPS), c.subject, len(c.ops))])


def numbers_of_tables(c: Columns, tensors: EventTensors) -> dict[str, Any]:
    """Return the columns of the event table that refer to rows of other tables."""
    return {
        "subject": c.subject,
        "place": c.place,
        "number": c.number,
        "template": c.template,
        "values": NumberLists(tensors.counts, tensors.value),
        "generator": c.generator,
        "draw": c.draw,
    }


@dataclass(frozen=True, slots=True)
class EventNames:
    """Name and address of each event: a stem, the call if the stem ends in `#`, a role.

    `stem` has for each event its index in `stems` and `roles`.
    """

    names: Coded
    stem: Ints
    stems: list[str]
    roles: list[str]
    call: Ints

    def address(self, row: int) -> str:
        """Return the address of one event."""
        head = self.stems[int(self.stem[row])]
        return f"{head}{self.call[row]}{self.roles[self.stem[row]]}" if _is_counted(head) else head

    def addresses(self) -> CountedTexts:
        """Return the addresses of all events."""
        counted = np.array([_is_counted(head) for head in self.stems], dtype=bool)
        numbers = np.where(counted[self.stem], self.call, -1) if len(counted) else self.call
        return CountedTexts(self.stem, self.stems, self.roles, numbers)


def _is_counted(head: str) -> bool:
    return head.endswith("#")


def event_names(c: Columns, call: Ints) -> EventNames:
    """Return names and addresses of events."""
    texts: dict[str, int] = {}
    stems: list[str] = []
    roles: list[str] = []
    names = np.zeros(len(c.id), dtype=np.int64)
    stem = np.zeros(len(c.id), dtype=np.int64)
    for kind in np.flatnonzero(np.bincount(c.kind)).tolist():
        mine = c.kind == kind
        inverse = numbered(c.subject[mine])
        subjects = np.zeros(inverse.max() + 1, dtype=np.int64)
        subjects[inverse] = c.subject[mine]
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
    """Return the name of events of a subject, and their address before and after the call."""
    if kind == MODULE:
        module = c.modules[subject]
        return module.cls, f"{written(module.path)}#", ""
    if kind in OF_OPS:
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
    """Return the rank of each event: that of its process, unless it was gathered from another."""
    found: Ints = np.full(len(c.id), rank) if isinstance(rank, int) else rank.copy()
    mine = np.flatnonzero(c.kind == GATHERED)
    if len(mine):
        of = np.array([-1 if n.rank is None else n.rank for n in c.labels], dtype=np.int64)
        gathered = of[c.subject[mine]]
        found[mine] = np.where(gathered >= 0, gathered, found[mine])
    return found


def thread_names(c: Columns) -> list[str]:
    """Return the names of all threads, numbers for those without."""
    most = max((place.thread for place in c.places), default=-1)
    return [*c.threads, *(str(number) for number in range(len(c.threads), most + 1))]


def _looks(c: Columns, tensors: EventTensors, ref_meta: Ints) -> tuple[CodedLists, CodedLists]:
    """Return dtype and shape of the tensors that each event took, and returned."""
    used, at = used_rows(len(c.metas), ref_meta)
    looks = [_look(c.metas[number]) for number in used]
    codes = at[ref_meta]
    sides = [
        CodedLists(np.bincount(tensors.event[side], minlength=len(c.id)), codes[side], looks)
        for side in (~tensors.is_output, tensors.is_output)
    ]
    return sides[0], sides[1]


def _look(meta: Meta) -> str:
    sizes = "?" if meta.shape is None else ",".join(map(str, meta.shape))
    return f"{short_dtype(meta.dtype)}[{sizes}]"


def _coded(texts: list[str]) -> Coded:
    numbers: dict[str, int] = {}
    codes = [numbers.setdefault(text, len(numbers)) for text in texts]
    return Coded(np.array(codes, dtype=np.int64), list(numbers))

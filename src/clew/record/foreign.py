"""Add batches of other processes to this recording, with its numbers in place of theirs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from clew.events.columns import Template
from clew.events.vocabulary import LABELLED, OP, PREFIX, Kept
from clew.stream.batch import Batch

if TYPE_CHECKING:
    from clew.record.encoder import Encoder


@dataclass(frozen=True, slots=True)
class Foreign:
    """A batch of another process: its source, the ids its events get here, and their thread."""

    batch: Batch
    source: str
    ids: list[int]
    thread: int


@dataclass(slots=True)
class Numbers:
    """The numbers that the rows, values and memory of one other process have here."""

    tables: dict[str, list[int]] = field(default_factory=dict)
    templates: list[Template] = field(default_factory=list)
    # value -> (its number here, its storage there), and storage -> its number here
    values: dict[int, tuple[int, int]] = field(default_factory=dict)
    storages: dict[int, int] = field(default_factory=dict)
    value_count: int = 0


def add(encoder: Encoder, foreign: Foreign, numbers: Numbers) -> dict[int, Kept]:
    """Add what another process recorded to a batch; return what was kept of its values.

    Only labelled values (variables, taps, gradients) and ops: its modules have no names here.
    """
    batch = foreign.batch
    _learn(encoder, foreign, numbers)
    c = {name: column.tolist() for name, column in batch.columns.items()}
    at = numbers.tables
    for version, storage, meta, grad, name in zip(
        c["version"], c["storage"], c["meta"], c["grad"], c["value_name"], strict=True
    ):
        named = -1 if name < 0 else at["value_names"][name]
        number = encoder.values.append_foreign(
            numbers.storages, storage, version, at["metas"][meta], grad, named
        )
        numbers.values[numbers.value_count] = number, storage
        numbers.value_count += 1
    kept = {numbers.values[value][0]: kept for value, kept in batch.kept.items()}
    firsts = [*c["first_ref"], len(c["refs"])]
    subjects = dict.fromkeys(LABELLED, at["labels"]) | {OP: at["ops"]}
    for row, event in enumerate(foreign.ids):
        kind = c["kind"][row]
        if kind not in subjects or kind == PREFIX:
            continue
        refs = [numbers.values[value][0] for value in c["refs"][firsts[row] : firsts[row + 1]]]
        encoder.append_event(
            refs, id=event, kind=kind, subject=subjects[kind][c["subject"][row]],
            place=at["places"][c["place"][row]], parent=-1, start=c["start"][row],
            end=c["end"][row], number=-1,
            template=encoder.tables.foreign_template(numbers.templates[c["template"][row]]),
            error=-1 if c["error"][row] < 0 else at["errors"][c["error"][row]], generator=-1,
            draw=-1,
        )  # fmt: skip
    for value in batch.gone.tolist():
        numbers.values.pop(value, None)
    used = {storage for _, storage in numbers.values.values()}
    numbers.storages = {there: here for there, here in numbers.storages.items() if there in used}
    return kept


def _learn(encoder: Encoder, foreign: Foreign, numbers: Numbers) -> None:
    """Number the rows that the other process's tables have gained."""
    tables = encoder.tables
    own: dict[str, Any] = {
        "ops": tables.ops, "labels": tables.labels, "metas": tables.metas,
        "errors": tables.errors, "value_names": tables.value_names,
    }  # fmt: skip
    for name, table in own.items():
        known = numbers.tables.setdefault(name, [])
        for row in foreign.batch.tables.get(name, ()):
            known.append(table.number(row, lambda row=row: row))
    numbers.templates += foreign.batch.tables.get("templates", ())
    places = numbers.tables.setdefault("places", [])
    for place in foreign.batch.tables.get("places", ()):
        above = -1 if place.parent < 0 else places[place.parent]
        places.append(
            encoder.tables.foreign_place(replace(place, parent=above, thread=foreign.thread))
        )

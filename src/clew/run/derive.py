"""Derive facts of events from their columns: step, call, module, owner, forward op, source line.

Input: a batch of events, as columns, and the `State` left by the batches before it. Output: a
`Derived`, row by row. The facts are the same whether a run comes as one batch or as many, so the
writer of a live trace, a trace in memory and a reader of older files all use this. A batch knows
only earlier events: a fact that depends on later ones is never a column.
"""

from __future__ import annotations

import numpy as np

from clew.events.columns import DERIVED_COLUMNS, Columns, Derived, Ints
from clew.events.vocabulary import BACKWARD, GATHERED, PREFIX, STEP
from clew.run.derive_state import MOST_CALLS, MOST_MAKERS, MOST_MARKS, State
from clew.run.event_owners import EventOwners
from clew.run.event_rows import EventRows
from clew.run.forward_ops import MAKER, ForwardOps
from clew.run.lookup import Rows


def derive(batch: Columns, state: State) -> Derived:
    """Derive the facts of a batch of events."""
    state.places.extend(batch.places)
    _learn_values(batch, state)
    events = EventRows(batch, state.places, state.composites)
    forward = ForwardOps(events, state)
    owners = EventOwners(events, forward, state)
    facts = _facts(events, forward, owners, state)
    _remember(events, forward, owners, state)
    back = np.empty_like(events.order)
    back[events.order] = np.arange(len(back))
    arrays = {name: facts[name][back] for name in DERIVED_COLUMNS}
    return Derived(**arrays, paths=state.paths.rows, prefixes=state.prefixes.rows)


def derive_all(columns: Columns) -> Derived:
    """Derive the facts of a whole rank at once."""
    return derive(columns, State())


def _learn_values(batch: Columns, state: State) -> None:
    count = len(batch.meta)
    state.values.append(
        number=np.arange(state.value_count, state.value_count + count),
        producer=batch.producer,
        name=batch.value_name,
        meta=batch.meta,
    )
    state.value_count += count


def _facts(
    events: EventRows, forward: ForwardOps, owners: EventOwners, state: State
) -> dict[str, Ints]:
    """Return all facts, by the names of their columns."""
    step = _latest(events, state.steps, "step", STEP, events.subject)
    gathered = events.kind == GATHERED
    return {
        "step": np.where(gathered, events.number, np.where(step < 0, 0, step)),
        "call": state.counts.of(events, state.composites),
        "module": owners.path,
        "owner": owners.owner,
        "forward": forward.known["id"],
        "source": _source(events, forward, state),
        "prefix": _latest(events, state.stretches, "prefix", PREFIX, _prefixes(events, state)),
    }


def _prefixes(events: EventRows, state: State) -> Ints:
    numbers = [
        state.prefixes.number(label.stem) if label.kind == PREFIX and label.stem else -1
        for label in events.columns.labels
    ]
    found: Ints = events.nothing()
    mine = events.kind == PREFIX
    found[mine] = np.array(numbers, dtype=np.int64)[events.subject[mine]] if mine.any() else -1
    return found


def _latest(events: EventRows, marks: Rows, name: str, kind: int, begins: Ints) -> Ints:
    """Return what the last mark of a kind up to each event begins, -1 before the first."""
    mine = (events.kind == kind) & ~np.isin(events.id, marks["id"])
    marks.append(id=events.id[mine], **{name: begins[mine]})
    marks.keep(np.argsort(marks["id"], kind="stable"))
    at = np.searchsorted(marks["id"], events.id, "right")
    result: Ints = np.concatenate([[-1], marks[name]])[at]
    if len(marks) > MOST_MARKS:
        marks.keep(slice(-MOST_MARKS // 2, None))
    return result


def _source(events: EventRows, forward: ForwardOps, state: State) -> Ints:
    """Return the line of user code of each event.

    For a backward op it is that of its forward op, unless user code ran the backward op.
    """
    places = state.places
    own = places.backward_line[events.place] if len(events.place) else events.place
    place = np.where(forward.known["place"] >= 0, forward.known["place"], events.place)
    line = places.line[place] if len(place) else place
    return np.where((forward.known["id"] >= 0) & (own >= 0), own, line)


def _remember(events: EventRows, forward: ForwardOps, owners: EventOwners, state: State) -> None:
    """Store what later batches need in the state."""
    # An open call comes again with a later batch.
    new = ~np.isin(events.id, state.events["id"])
    state.events.append(id=events.id[new], owner=owners.owner[new], path=owners.path[new])
    if (np.diff(state.events["id"]) < 0).any():
        state.events.keep(np.argsort(state.events["id"], kind="stable"))
    calls = state.calls["id"]
    if len(calls) > MOST_CALLS:
        is_open = events.columns.end[events.order] < 0
        recent = np.arange(len(calls)) >= len(calls) - MOST_CALLS // 2
        state.calls.keep(recent | np.isin(calls, events.id[is_open]))
    if len(state.composites) > MOST_CALLS:
        state.composites.keep(slice(-MOST_CALLS // 2, None))
    backward = events.phase == BACKWARD
    for thread in np.unique(events.thread[forward.makers]).tolist():
        rows = forward.makers[events.thread[forward.makers] == thread]
        made = forward.made[rows]
        # Of ops that read the same number, the first made the node; the last ran just before
        # the next.
        ends = np.r_[True, made[1:] != made[:-1]] | np.r_[made[1:] != made[:-1], True]
        rows = rows[ends]
        table = state.makers.setdefault(thread, Rows(MAKER, MOST_MAKERS))
        stands = {
            "id": events.id,
            "place": events.place,
            "owner": owners.owner,
            "path": owners.path,
        }
        table.append(
            made=forward.made[rows],
            checkpoint=owners.checkpoints(rows),
            **{
                name: np.where(backward[rows], forward.known[name][rows], own[rows])
                for name, own in stands.items()
            },
        )
        if (np.diff(table["made"]) < 0).any():
            table.keep(np.argsort(table["made"], kind="stable"))

"""Derive facts of events from their columns: step, call, module, owner, forward op, source line.

Input: a batch of events, as columns, and the `State` left by the batches before it. Output: a
`Derived`, row by row. The facts are the same whether a run comes as one batch or as many, so the
writer of a live trace, a trace in memory and a reader of older files all use this. A batch knows
only earlier events: a fact that depends on later ones is never a column.
"""

from __future__ import annotations

import numpy as np

from clew.events.columns import DERIVED_COLUMNS, IN, Columns, Derived, Ints
from clew.events.labels import counted_as
from clew.events.records import (
    BACKWARD,
    GATHERED,
    LABELLED,
    MODULE,
    NO_NODE,
    NODE_RUN,
    OP,
    PREFIX,
    RECOMPUTE,
    RECOMPUTED,
    STEP,
    node_made,
)
from clew.run.lookup import Interned, Rows, find
from clew.run.place_facts import PlaceFacts

# How much of the past is kept: ops whose autograd graph may be alive (per thread), events that may
# have made a value, calls that a later event may lie in, steps begun.
_MOST_MAKERS = 1 << 20
_MOST_EVENTS = 1 << 18
_MOST_CALLS = 1 << 16
_MOST_MARKS = 1 << 16
# In a run with steps, a writer keeps the last steps, and at least this many events.
_RECENT_STEPS = 3
_RECENT_EVENTS = 1 << 12


class State:
    """What facts of later events need of earlier ones; its size does not grow with the run."""

    def __init__(self) -> None:
        self.places = PlaceFacts()
        self.paths = Interned()
        self.prefixes = Interned()
        # Counters of events by address, and the counter of each op and label.
        self.counts: Ints = np.zeros(0, dtype=np.int64)
        self.counters: dict[object, int] = {}
        self.op_counter: list[int] = []
        self.label_counter: list[int] = []
        # Ids of the events that begin a step or a named prefix block, and what they begin.
        self.steps = Rows(("id", "step"))
        self.stretches = Rows(("id", "prefix"))
        # Module calls that events may lie in, by id.
        self.calls = Rows(("id", "path", "place", "parent", "checkpoint"))
        # The module of each event that may have made a value, by id.
        self.events = Rows(("id", "owner", "path"), _MOST_EVENTS)
        # Values that events may take, by number.
        self.values = Rows(("number", "producer", "name", "meta"))
        self.value_count = 0
        # thread -> ops that made autograd nodes, in order of the numbers of those
        self.makers: dict[int, Rows] = {}

    def forget(self, gone: Ints, still_open: Ints) -> None:
        """Drop what later events do not need, so that the state stays small in a long run.

        Later events take none of the values `gone`, and may lie in the calls `still_open`. Of what
        is older than the last two steps, including autograd graphs, only the newest is kept.
        """
        self.values.keep(~np.isin(self.values["number"], gone))
        if len(self.steps) < _RECENT_STEPS:
            return
        since = int(self.steps["id"][-_RECENT_STEPS])
        oldest = min(since, int(still_open.min(initial=since)))
        for marks in (self.steps, self.stretches):
            # Including the one that is in effect at the beginning.
            first = int(np.searchsorted(marks["id"], oldest, "right")) - 1
            marks.keep(slice(max(0, first), None))
        calls = self.calls["id"]
        self.calls.keep((calls >= since) | np.isin(calls, still_open))
        for table in (self.events, *self.makers.values()):
            wanted_rows = table["id"] >= since
            wanted_rows[-_RECENT_EVENTS:] = True
            if table is self.events:
                wanted_rows |= np.isin(table["id"], self.values["producer"])
            table.keep(wanted_rows)


# Facts of an op that made an autograd node: the number it read; id, place, owner and module path of
# the forward op that it is or belongs to; the call that made the checkpoint that contains it.
_MAKER = ("made", "id", "place", "owner", "path", "checkpoint")
_NO_MAKERS = Rows(_MAKER, 0)


def derive(batch: Columns, state: State) -> Derived:
    """Derive the facts of a batch of events."""
    state.places.extend(batch.places)
    _learn_values(batch, state)
    rows = _Batch(batch, state)
    facts = rows.facts()
    rows.remember()
    back = np.empty_like(rows.order)
    back[rows.order] = np.arange(len(back))
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


class _Batch:
    """One batch in order of event ids, with the facts found for each event."""

    def __init__(self, c: Columns, state: State) -> None:
        self.c = c
        self.state = state
        self.order: Ints = np.argsort(c.id, kind="stable")
        self.id: Ints = c.id[self.order]
        self.kind: Ints = c.kind[self.order]
        self.subject: Ints = c.subject[self.order]
        self.place: Ints = c.place[self.order]
        self.parent: Ints = c.parent[self.order]
        self.number: Ints = c.number[self.order]
        self.phase: Ints = state.places.phase[self.place]
        self.thread: Ints = state.places.thread[self.place]
        self.is_op = self.kind == OP
        in_backward = self.is_op & ((self.phase == BACKWARD) | (self.number >= RECOMPUTED))
        # Ops that a node runs, and the number each op read; with `create_graph` backward ops make
        # nodes as well, for a backward of the backward.
        self.runs: Ints = np.flatnonzero(in_backward & (self.number >= 0))
        made = np.where(self.number >= 0, node_made(self.number), 0)
        self.made: Ints = np.where(in_backward, made, self.number)
        self.makers: Ints = np.flatnonzero(self.is_op & (~in_backward | (self.made > 0)))
        self.owner: Ints = np.full(len(self.id), -1, dtype=np.int64)
        self.path: Ints = np.full(len(self.id), -1, dtype=np.int64)
        # For the op that made the node that an op runs: its row here, or its facts.
        self.maker: Ints = np.full(len(self.id), -1, dtype=np.int64)
        self.known: dict[str, Ints] = {
            name: np.full(len(self.id), -1, dtype=np.int64) for name in _MAKER
        }

    def facts(self) -> dict[str, Ints]:
        """Find all facts."""
        self._find_calls()
        self._find_makers()
        self._follow_forward()
        self._own_recomputed()
        self._own_backward()
        self._own_labels()
        step = self._latest(self.state.steps, "step", STEP, self.subject)
        gathered = self.kind == GATHERED
        return {
            "step": np.where(gathered, self.number, np.where(step < 0, 0, step)),
            "call": self._calls_so_far(),
            "module": self.path,
            "owner": self.owner,
            "forward": self.known["id"],
            "source": self._source(),
            "prefix": self._latest(self.state.stretches, "prefix", PREFIX, self._prefixes()),
        }

    def _find_calls(self) -> None:
        """Set the owner: a call owns itself, any other event belongs to the call it ran in."""
        c, state = self.c, self.state
        numbers = [state.paths.number(module.path) for module in c.modules]
        paths = np.array(numbers, dtype=np.int64)
        mine = np.flatnonzero(self.kind == MODULE)
        known = ~np.isin(state.calls["id"], self.id[mine])
        state.calls.keep(known)
        state.calls.append(
            id=self.id[mine],
            path=paths[self.subject[mine]],
            place=self.place[mine],
            parent=self.parent[mine],
            checkpoint=np.full(len(mine), -1, dtype=np.int64),
        )
        state.calls.keep(np.argsort(state.calls["id"], kind="stable"))
        if state.places.has_checkpoints:
            self._find_checkpoints_of_calls()
        self.call: Ints = find(state.calls["id"], self.parent)
        inside = self.call >= 0
        self.owner[inside] = self.parent[inside]
        self.path[inside] = state.calls["path"][self.call[inside]]
        self.owner[mine] = self.id[mine]
        self.path[mine] = paths[self.subject[mine]]

    def _find_checkpoints_of_calls(self) -> None:
        """Find for each call the call that made the innermost checkpoint that contains it."""
        calls, places = self.state.calls, self.state.places
        above = find(calls["id"], calls["parent"]).tolist()
        depth = places.depth[calls["place"]].tolist()
        checkpoint = places.checkpoint[calls["place"]].tolist()
        ids, found = calls["id"].tolist(), calls["checkpoint"]
        for row, up in enumerate(above):
            if checkpoint[row] > (depth[up] if up >= 0 else 0):
                found[row] = ids[up] if up >= 0 else ids[row]
            elif up >= 0:
                found[row] = found[up]

    def _checkpoints(self, rows: Ints) -> Ints:
        """Return the call that made the innermost checkpoint of some ops, -1 if none did."""
        if not self.state.places.has_checkpoints:
            return np.full(len(rows), -1, dtype=np.int64)
        calls, places = self.state.calls, self.state.places
        call, place = self.call[rows], self.place[rows]
        inside = call >= 0
        last = len(calls["id"])
        depth = np.append(places.depth[calls["place"]], 0)[np.where(inside, call, last)]
        own = places.checkpoint[place] > depth
        around = np.append(calls["checkpoint"], -1)[np.where(inside, call, last)]
        # Outside any call a checkpoint belongs to the owner of the op itself.
        return np.where(own, np.where(inside, self.parent[rows], self.owner[rows]), around)

    def _find_makers(self) -> None:
        """Find the forward op that made each autograd node that runs.

        An op that makes node n afterwards reads n + 1 as the next number; the first op to read it
        is the maker. Numbers count up per thread, so ops of other threads are matched within their
        thread. A node made after its op had run, as for a write to a view, has no reader: it
        belongs to the op before it.
        """
        threads = sorted({*self.state.makers, *np.unique(self.thread[self.makers]).tolist()})
        unknown = self._match(threads, self.runs, exact=True)
        self._match(threads, unknown, exact=False)

    def _match(self, threads: list[int], unknown: Ints, exact: bool) -> Ints:
        """Match ops that nodes run with the ops that made the nodes; return those not matched."""
        for thread in threads:
            at_home = (self.thread[unknown] == thread) | (self.thread[unknown] == 0)
            rows, unknown = unknown[at_home], unknown[~at_home]
            if not len(rows):
                continue
            before = self.state.makers.get(thread, _NO_MAKERS)
            mine = self.makers[self.thread[self.makers] == thread]
            mine = mine[np.argsort(self.made[mine], kind="stable")]
            wanted = (self.number[rows] & NODE_RUN) + 1
            early, late = before["made"], self.made[mine]
            if exact:
                old, new = find(early, wanted), find(late, wanted)
                new[old >= 0] = -1
            else:
                old, new = (np.searchsorted(n, wanted, "left") - 1 for n in (early, late))
                old[new >= 0] = -1
            self.maker[rows[new >= 0]] = mine[new[new >= 0]]
            for name in _MAKER:
                self.known[name][rows[old >= 0]] = before[name][old[old >= 0]]
            unknown = np.concatenate([unknown, rows[(old < 0) & (new < 0)]])
        return unknown

    def _follow_forward(self) -> None:
        """Replace a backward op as the maker of another backward op by the forward op it belongs
        to.
        """
        backward = self.phase == BACKWARD
        link = np.where(backward, self.maker, -1)
        while True:
            again = np.flatnonzero((link >= 0) & backward[link])
            if not len(again):
                break
            up = link[again]
            for name in _MAKER:
                self.known[name][again] = self.known[name][up]
            # A link to itself or to a later op would never end.
            link[again] = np.where(link[up] < up, link[up], -1)
        self.link: Ints = link

    def _own_recomputed(self) -> None:
        """Set the owner of ops that a checkpoint recomputes outside any call: the call that made
        it.
        """
        for row in np.flatnonzero(self.is_op & (self.number >= RECOMPUTED)).tolist():
            maker = int(self.maker[row])
            if maker >= 0:
                owner = int(self._checkpoints(np.array([maker]))[0])
            else:
                owner = int(self.known["checkpoint"][row])
            self.owner[row], self.path[row] = owner, self._path_of(owner)
        # An op that no backward pass runs has no forward op.
        forward = self.phase != BACKWARD
        for name in _MAKER:
            self.known[name][forward] = -1

    def _path_of(self, call: int) -> int:
        at = int(find(self.state.calls["id"], np.array([call]))[0]) if call >= 0 else -1
        return int(self.state.calls["path"][at]) if at >= 0 else -1

    def _own_backward(self) -> None:
        """Set the owner of backward ops: the module of the forward op.

        For the first gradient of a pass it is the call that made the tensor; for an accumulated
        gradient the owner of the parameter, or the module that made the tensor.
        """
        rows = np.flatnonzero(self.link >= 0)
        forward = self.link[rows]
        for name, column in (
            ("id", self.id), ("place", self.place), ("owner", self.owner), ("path", self.path),
        ):  # fmt: skip
            self.known[name][rows] = column[forward]
        linked = self.known["id"] >= 0
        self.owner[linked] = self.known["owner"][linked]
        self.path[linked] = self.known["path"][linked]
        alone = self.is_op & (self.phase == BACKWARD) & (self.owner < 0)
        for row in np.flatnonzero(alone & (self.number == NO_NODE)).tolist():
            self.owner[row], path = self._maker_of(row, self._first_input(row))
            self.path[row] = path if self.owner[row] >= 0 else -1
        for row in np.flatnonzero(alone & (self.number <= -2)).tolist():
            value = -2 - int(self.number[row])
            parameter = self._value("name", value)
            if parameter >= 0:
                owner = str(self.c.value_names[parameter]).rpartition(".")[0]
                self.path[row] = self.state.paths.number(owner)
            else:
                self.path[row] = self._maker_of(row, value)[1]

    def _value(self, name: str, value: int) -> int:
        at = int(find(self.state.values["number"], np.array([value]))[0])
        return int(self.state.values[name][at]) if at >= 0 else -1

    def _first_input(self, row: int) -> int:
        """Return the number of the first tensor an event took, -1 if it took none."""
        at = int(self.order[row])
        leaves = self.c.templates[int(self.c.template[at])].tensors
        taken = [position for position, leaf in enumerate(leaves) if leaf.role == IN]
        return int(self.c.refs[int(self.c.first_ref[at]) + taken[0]]) if taken else -1

    def _maker_of(self, row: int, value: int) -> tuple[int, int]:
        """Return the owner and the path of the event that made a value, if it was before a row."""
        producer = self._value("producer", value) if value >= 0 else -1
        if not 0 <= producer < int(self.id[row]):
            return -1, -1
        at = int(find(self.id, np.array([producer]))[0])
        if at >= 0:
            return int(self.owner[at]), int(self.path[at])
        at = int(find(self.state.events["id"], np.array([producer]))[0])
        if at < 0:
            return -1, -1
        return int(self.state.events["owner"][at]), int(self.state.events["path"][at])

    def _own_labels(self) -> None:
        """Set the module of named values: the one in their label."""
        paths = self.state.paths
        named = np.array(
            [-1 if label.module is None else paths.number(label.module) for label in self.c.labels],
            dtype=np.int64,
        )
        labelled = np.flatnonzero(np.isin(self.kind, LABELLED))
        if len(labelled):
            mine = named[self.subject[labelled]]
            self.path[labelled] = np.where(mine >= 0, mine, self.path[labelled])

    def _prefixes(self) -> Ints:
        numbers = [
            self.state.prefixes.number(label.stem) if label.kind == PREFIX and label.stem else -1
            for label in self.c.labels
        ]
        found: Ints = np.full(len(self.id), -1, dtype=np.int64)
        mine = self.kind == PREFIX
        found[mine] = np.array(numbers, dtype=np.int64)[self.subject[mine]] if mine.any() else -1
        return found

    def _latest(self, marks: Rows, name: str, kind: int, begins: Ints) -> Ints:
        """Return what the last mark of a kind up to each event begins, -1 before the first."""
        mine = (self.kind == kind) & ~np.isin(self.id, marks["id"])
        marks.append(id=self.id[mine], **{name: begins[mine]})
        marks.keep(np.argsort(marks["id"], kind="stable"))
        at = np.searchsorted(marks["id"], self.id, "right")
        result: Ints = np.concatenate([[-1], marks[name]])[at]
        if len(marks) > _MOST_MARKS:
            marks.keep(slice(-_MOST_MARKS // 2, None))
        return result

    def _calls_so_far(self) -> Ints:
        """Return the index of each event among those of the same address.

        Named values that a checkpoint recomputes are counted separately, as calls are.
        """
        state = self.state
        for name in self.c.ops[len(state.op_counter) :]:
            state.op_counter.append(state.counters.setdefault(name, len(state.counters)))
        for number in range(len(state.label_counter), len(self.c.labels)):
            key = "label", counted_as(number, self.c.labels[number])
            state.label_counter.append(state.counters.setdefault(key, len(state.counters)))
        labels = np.isin(self.kind, LABELLED)
        counter = np.full(len(self.id), -1, dtype=np.int64)
        ops = np.array(state.op_counter, dtype=np.int64)
        counter[self.is_op] = 2 * ops[self.subject[self.is_op]]
        named = np.array(state.label_counter, dtype=np.int64)
        counter[labels] = 2 * named[self.subject[labels]] + (self.phase[labels] == RECOMPUTE)
        counts = np.zeros(2 * len(state.counters), dtype=np.int64)
        counts[: len(state.counts)] = state.counts
        rows = np.flatnonzero(counter >= 0)
        rows = rows[np.argsort(counter[rows], kind="stable")]
        mine = counter[rows]
        starts = np.flatnonzero(np.r_[True, mine[1:] != mine[:-1]]) if len(mine) else mine
        sizes = np.diff(np.r_[starts, len(mine)])
        result: Ints = self.number.copy()
        result[rows] = np.arange(len(mine)) - np.repeat(starts, sizes) + counts[mine]
        counts += np.bincount(mine, minlength=len(counts))
        state.counts = counts
        return result

    def _source(self) -> Ints:
        """Return the line of user code of each event.

        For a backward op it is that of its forward op, unless user code ran the backward op.
        """
        places = self.state.places
        own = places.backward_line[self.place] if len(self.place) else self.place
        place = np.where(self.known["place"] >= 0, self.known["place"], self.place)
        line = places.line[place] if len(place) else place
        return np.where((self.known["id"] >= 0) & (own >= 0), own, line)

    def remember(self) -> None:
        """Store what later batches need in the state."""
        state = self.state
        # An open call comes again with a later batch.
        new = ~np.isin(self.id, state.events["id"])
        state.events.append(id=self.id[new], owner=self.owner[new], path=self.path[new])
        if (np.diff(state.events["id"]) < 0).any():
            state.events.keep(np.argsort(state.events["id"], kind="stable"))
        calls = state.calls["id"]
        if len(calls) > _MOST_CALLS:
            is_open = self.c.end[self.order] < 0
            recent = np.arange(len(calls)) >= len(calls) - _MOST_CALLS // 2
            state.calls.keep(recent | np.isin(calls, self.id[is_open]))
        backward = self.phase == BACKWARD
        for thread in np.unique(self.thread[self.makers]).tolist():
            rows = self.makers[self.thread[self.makers] == thread]
            made = self.made[rows]
            # Of ops that read the same number, the first made the node; the last ran just before
            # the next.
            ends = np.r_[True, made[1:] != made[:-1]] | np.r_[made[1:] != made[:-1], True]
            rows = rows[ends]
            table = state.makers.setdefault(thread, Rows(_MAKER, _MOST_MAKERS))
            stands = {"id": self.id, "place": self.place, "owner": self.owner, "path": self.path}
            table.append(
                made=self.made[rows],
                checkpoint=self._checkpoints(rows),
                **{
                    name: np.where(backward[rows], self.known[name][rows], own[rows])
                    for name, own in stands.items()
                },
            )
            if (np.diff(table["made"]) < 0).any():
                table.keep(np.argsort(table["made"], kind="stable"))

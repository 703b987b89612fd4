"""Find the call that each event belongs to, and the path of its module.

Input: the events of a batch, their forward ops, and the calls and events of earlier batches.
Output: `owner` (the id of a call) and `path` (the number of a module's path) of each event.
"""

from __future__ import annotations

import numpy as np

from clew.events.columns import IN, Ints
from clew.events.vocabulary import BACKWARD, LABELLED, MODULE, NO_NODE, RECOMPUTED
from clew.run.derive_state import State
from clew.run.event_rows import EventRows
from clew.run.forward_ops import MAKER, ForwardOps
from clew.run.lookup import find


class EventOwners:
    """The owners of the events of one batch; completes the facts of the forward ops."""

    def __init__(self, events: EventRows, forward: ForwardOps, state: State) -> None:
        self._events = events
        self._forward = forward
        self._state = state
        self.owner: Ints = events.nothing()
        self.path: Ints = events.nothing()
        # The row in `state.calls` of the call that an event ran in.
        self._call: Ints = self._find_calls()
        self._own_recomputed()
        self._own_backward()
        self._own_labels()

    def _find_calls(self) -> Ints:
        """Set the owner: a call owns itself, any other event belongs to the call it ran in."""
        events = self._events
        state = self._state
        numbers = [state.paths.number(module.path) for module in events.columns.modules]
        paths = np.array(numbers, dtype=np.int64)
        mine = np.flatnonzero(events.kind == MODULE)
        known = ~np.isin(state.calls["id"], events.id[mine])
        state.calls.keep(known)
        state.calls.append(
            id=events.id[mine],
            path=paths[events.subject[mine]],
            place=events.place[mine],
            parent=events.parent[mine],
            checkpoint=np.full(len(mine), -1, dtype=np.int64),
        )
        state.calls.keep(np.argsort(state.calls["id"], kind="stable"))
        if state.places.has_checkpoints:
            self._find_checkpoints_of_calls()
        call = find(state.calls["id"], events.parent)
        inside = call >= 0
        self.owner[inside] = events.parent[inside]
        self.path[inside] = state.calls["path"][call[inside]]
        self.owner[mine] = events.id[mine]
        self.path[mine] = paths[events.subject[mine]]
        return call

    def _find_checkpoints_of_calls(self) -> None:
        """Find for each call the call that made the innermost checkpoint that contains it."""
        calls, places = self._state.calls, self._state.places
        above = find(calls["id"], calls["parent"]).tolist()
        depth = places.depth[calls["place"]].tolist()
        checkpoint = places.checkpoint[calls["place"]].tolist()
        ids, found = calls["id"].tolist(), calls["checkpoint"]
        for row, up in enumerate(above):
            if checkpoint[row] > (depth[up] if up >= 0 else 0):
                found[row] = ids[up] if up >= 0 else ids[row]
            elif up >= 0:
                found[row] = found[up]

    def checkpoints(self, rows: Ints) -> Ints:
        """Return the call that made the innermost checkpoint of some ops, -1 if none did."""
        events = self._events
        if not self._state.places.has_checkpoints:
            return np.full(len(rows), -1, dtype=np.int64)
        calls, places = self._state.calls, self._state.places
        call, place = self._call[rows], events.place[rows]
        inside = call >= 0
        last = len(calls["id"])
        depth = np.append(places.depth[calls["place"]], 0)[np.where(inside, call, last)]
        own = places.checkpoint[place] > depth
        around = np.append(calls["checkpoint"], -1)[np.where(inside, call, last)]
        # Outside any call a checkpoint belongs to the owner of the op itself.
        return np.where(own, np.where(inside, events.parent[rows], self.owner[rows]), around)

    def _own_recomputed(self) -> None:
        """Set the owner of ops that a checkpoint recomputes outside any call: the call that made
        it.
        """
        events = self._events
        for row in np.flatnonzero(events.is_run & (events.number >= RECOMPUTED)).tolist():
            maker = int(self._forward.maker[row])
            if maker >= 0:
                owner = int(self.checkpoints(np.array([maker]))[0])
            else:
                owner = int(self._forward.known["checkpoint"][row])
            self.owner[row], self.path[row] = owner, self._path_of(owner)
        # An op that no backward pass runs has no forward op.
        forward = events.phase != BACKWARD
        for name in MAKER:
            self._forward.known[name][forward] = -1

    def _path_of(self, call: int) -> int:
        at = int(find(self._state.calls["id"], np.array([call]))[0]) if call >= 0 else -1
        return int(self._state.calls["path"][at]) if at >= 0 else -1

    def _own_backward(self) -> None:
        """Set the owner of backward ops: the module of the forward op.

        For the first gradient of a pass it is the call that made the tensor; for an accumulated
        gradient the owner of the parameter, or the module that made the tensor.
        """
        events = self._events
        rows = np.flatnonzero(self._forward.link >= 0)
        forward = self._forward.link[rows]
        for name, column in (
            ("id", events.id), ("place", events.place), ("owner", self.owner), ("path", self.path),
        ):  # fmt: skip
            self._forward.known[name][rows] = column[forward]
        linked = self._forward.known["id"] >= 0
        self.owner[linked] = self._forward.known["owner"][linked]
        self.path[linked] = self._forward.known["path"][linked]
        alone = events.is_run & (events.phase == BACKWARD) & (self.owner < 0)
        for row in np.flatnonzero(alone & (events.number == NO_NODE)).tolist():
            self.owner[row], path = self._maker_of(row, self._first_input(row))
            self.path[row] = path if self.owner[row] >= 0 else -1
        for row in np.flatnonzero(alone & (events.number <= -2)).tolist():
            value = -2 - int(events.number[row])
            parameter = self._value("name", value)
            if parameter >= 0:
                owner = str(events.columns.value_names[parameter]).rpartition(".")[0]
                self.path[row] = self._state.paths.number(owner)
            else:
                self.path[row] = self._maker_of(row, value)[1]

    def _value(self, name: str, value: int) -> int:
        at = int(find(self._state.values["number"], np.array([value]))[0])
        return int(self._state.values[name][at]) if at >= 0 else -1

    def _first_input(self, row: int) -> int:
        """Return the number of the first tensor an event took, -1 if it took none."""
        events = self._events
        c, at = events.columns, int(events.order[row])
        leaves = c.templates[int(c.template[at])].tensors
        taken = [position for position, leaf in enumerate(leaves) if leaf.role == IN]
        return int(c.refs[int(c.first_ref[at]) + taken[0]]) if taken else -1

    def _maker_of(self, row: int, value: int) -> tuple[int, int]:
        """Return the owner and the path of the event that made a value, if it was before a row."""
        events = self._events
        producer = self._value("producer", value) if value >= 0 else -1
        if not 0 <= producer < int(events.id[row]):
            return -1, -1
        at = int(find(events.id, np.array([producer]))[0])
        if at >= 0:
            return int(self.owner[at]), int(self.path[at])
        at = int(find(self._state.events["id"], np.array([producer]))[0])
        if at < 0:
            return -1, -1
        return int(self._state.events["owner"][at]), int(self._state.events["path"][at])

    def _own_labels(self) -> None:
        """Set the module of named values: the one in their label."""
        events = self._events
        paths = self._state.paths
        modules = [label.module for label in events.columns.labels]
        numbers = [-1 if module is None else paths.number(module) for module in modules]
        named = np.array(numbers, dtype=np.int64)
        labelled = np.flatnonzero(np.isin(events.kind, LABELLED))
        if len(labelled):
            mine = named[events.subject[labelled]]
            self.path[labelled] = np.where(mine >= 0, mine, self.path[labelled])

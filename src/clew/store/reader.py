"""Reads columns: rows of events and values as the objects of `events.model`.

In come `Columns`, out come events, values, sources. Also settles what only the whole trace can
tell: the forward op of a backward op, the module it belongs to, the result of a call that went
past the hooks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from clew.address import written
from clew.events.columns import IN, OUT, Columns, Ints, Place, Tensor
from clew.events.labels import counted_as
from clew.events.model import Event, Events, Source, Stats, Value, Values
from clew.events.records import (
    BACKWARD,
    GATHERED,
    KINDS,
    LABELLED,
    MODULE,
    NO_NODE,
    NOTE,
    OP,
    PHASES,
    PREFIX,
    RECOMPUTE,
    STEP,
    Unseen,
)
from clew.store.belonging import (
    checkpoint_caller,
    first_forward,
    node_makers,
    recomputed_outside,
)
from clew.store.decode import decode


class Reader:
    """One rank's trace, ready to be read."""

    def __init__(self, columns: Columns | Callable[[], Columns]) -> None:
        self._source = columns

    @cached_property
    def columns(self) -> Columns:
        """The columns themselves, read now if they were not yet."""
        return self._source() if callable(self._source) else self._source

    @cached_property
    def phase(self) -> Ints:
        """For each row its phase."""
        c = self.columns
        return np.array([p.phase for p in c.places], dtype=np.int64)[c.place]

    @cached_property
    def thread(self) -> Ints:
        """For each row its thread."""
        c = self.columns
        return np.array([p.thread for p in c.places], dtype=np.int64)[c.place]

    def __len__(self) -> int:
        return len(self.columns.id)

    def rows(self, kind: int) -> Ints:
        """The rows of all events of a kind."""
        return np.flatnonzero(self.columns.kind == kind)

    @cached_property
    def steps(self) -> list[int]:
        """The steps in which something was recorded; the mark that begins one is not enough."""
        c = self.columns
        # What was gathered is of steps before.
        steps: list[int] = np.unique(c.step[~np.isin(c.kind, (STEP, GATHERED))]).tolist()
        return steps

    def events(self, rows: Any, what: str) -> Events:
        """Events of some rows."""
        return Events(rows, self.event, what)

    def row_of(self, event_id: int) -> int:
        """The row of an event, -1 if it is not there."""
        row = int(np.searchsorted(self.columns.id, event_id))
        found = row < len(self) and int(self.columns.id[row]) == event_id
        return row if found else -1

    @cached_property
    def parent_row(self) -> Ints:
        """For each row the row of its parent, -1 for none."""
        c = self.columns
        rows = np.searchsorted(c.id, c.parent)
        rows[rows >= len(c.id)] = 0
        return np.where((c.parent >= 0) & (c.id[rows] == c.parent), rows, -1) if len(c.id) else rows

    @cached_property
    def forward_row(self) -> Ints:
        """For each backward op the row of the forward op whose autograd node it runs, else -1."""
        return first_forward(self._node_row, self.phase)

    @cached_property
    def _node_row(self) -> Ints:
        return node_makers(self.columns, self.phase, self.thread)

    @cached_property
    def module_row(self) -> Ints:
        """For each event the row of the module call it belongs to, -1 outside any.

        A module call belongs to itself, a backward op to the call its forward op ran in, an op
        that a checkpoint recomputes outside any call to the call that made the checkpoint, and
        the gradient that a backward pass begins with to the call that made what it is of.
        """
        c = self.columns
        rows = np.where(c.kind == MODULE, np.arange(len(c.id)), self.parent_row)
        callers: dict[int, int] = {}
        for row in recomputed_outside(c).tolist():
            maker = int(self._node_row[row])
            if maker not in callers:
                callers[maker] = checkpoint_caller(c, self.parent_row, rows, maker)
            rows[row] = callers[maker]
        linked = self.forward_row >= 0
        rows[linked] = rows[self.forward_row[linked]]
        begun = (c.kind == OP) & (self.phase == BACKWARD) & (c.number == NO_NODE) & (rows < 0)
        for row in np.flatnonzero(begun).tolist():
            taken = [n for leaf, n in self.leaf_values(row) if leaf.role == IN]
            maker = self.row_of(int(c.producer[taken[0]])) if taken else -1
            rows[row] = rows[maker] if 0 <= maker < row else -1
        return rows

    def module_path(self, row: int) -> str | None:
        """The path of the module an event ran in, None outside any."""
        call = int(self.module_row[row])
        if call < 0:
            return self._accumulated_path(row)
        return self.columns.modules[int(self.columns.subject[call])].path

    def _accumulated_path(self, row: int) -> str | None:
        """The owner of the tensor whose gradient a backward op accumulates, or who made it."""
        number = int(self.columns.number[row])
        if self.phase[row] != BACKWARD or number > -2:
            return None
        name = int(self.columns.value_name[-2 - number])
        if name >= 0:
            return self.columns.value_names[name].rpartition(".")[0]
        maker = self.row_of(int(self.columns.producer[-2 - number]))
        return self.module_path(maker) if 0 <= maker < row else None

    @cached_property
    def call_index(self) -> Ints:
        """The index of each event among those of the same address.

        Named values that a checkpoint computes again are counted apart, as the calls are.
        """
        c = self.columns
        result: Ints = c.number.copy()
        ops, labels = c.kind == OP, np.isin(c.kind, LABELLED)
        keys: dict[Any, int] = {}
        first_op = [keys.setdefault(name, len(keys)) for name in c.ops]
        first_label = [
            keys.setdefault(("label", counted_as(*numbered)), len(keys))
            for numbered in enumerate(c.labels)
        ]
        alike = np.full(len(c.id), -1, dtype=np.int64)
        alike[ops] = np.array(first_op, dtype=np.int64)[c.subject[ops]]
        alike[labels] = np.array(first_label, dtype=np.int64)[c.subject[labels]]
        alike[labels & (self.phase == RECOMPUTE)] += len(keys)
        counted = np.flatnonzero(alike >= 0)
        names = alike[counted]
        order = np.argsort(names, kind="stable")
        order, names = counted[order], names[order]
        starts = np.flatnonzero(np.r_[True, names[1:] != names[:-1]]) if len(order) else order
        sizes = np.diff(np.r_[starts, len(order)])
        result[order] = np.arange(len(order)) - np.repeat(starts, sizes)
        return result

    def name(self, row: int) -> str:
        """An op's overload name, a module's class, a note's subject."""
        c = self.columns
        subject = int(c.subject[row])
        kind = int(c.kind[row])
        if kind == MODULE:
            return c.modules[subject].cls
        if kind == OP:
            return c.ops[subject]
        if kind in LABELLED:
            return c.labels[subject].name
        return c.notes[subject] if kind == NOTE else "step"

    def event(self, row: int) -> Event:
        """The event of a row."""
        c = self.columns
        kind = int(c.kind[row])
        call = int(self.call_index[row])
        name = self.name(row)
        module: str | None
        step, rank = int(c.step[row]), c.rank
        if kind == MODULE:
            module = c.modules[int(c.subject[row])].path
            address = f"{written(module)}#{call}"
        else:
            module = self.module_path(row)
            address = f"op:{name}#{call}" if kind == OP else name
            if kind in LABELLED:
                label = c.labels[int(c.subject[row])]
                address = label.stem if kind == PREFIX else label.address(call)
                module = module if label.module is None else label.module
                if kind == GATHERED:
                    step, rank = int(c.number[row]), rank if label.rank is None else label.rank
        end = int(c.end[row])
        start = int(c.start[row])
        parent = int(c.parent[row])
        error = int(c.error[row])
        thread = int(self.thread[row])
        lazy = {
            "source": lambda: self.source(row),
            "stack": lambda: self.stack(row),
            "inputs": lambda: self.values_of(row, IN),
            "outputs": lambda: self.values_of(row, OUT),
            "arguments": lambda: self.arguments(row),
            "forward": lambda: self._forward(row),
            "reader": self,
        }
        return Event(
            lazy,
            row=row,
            id=int(c.id[row]),
            parent=parent if parent >= 0 else None,
            kind=KINDS[kind],
            name=name,
            address=address,
            module=module,
            call=call,
            step=step,
            prefix=self._prefix(row),
            phase=PHASES[int(self.phase[row])],
            rank=rank,
            thread=c.threads[thread] if thread < len(c.threads) else str(thread),
            start=(start - c.environment["clock"]) / 1e9,
            duration=(self.end(row) - start) / 1e9 if self.end(row) >= 0 else None,
            error=c.errors[error] if error >= 0 else None,
            reconstructed=end < 0 and self._is_reconstructed(row),
        )

    def _prefix(self, row: int) -> str:
        """The name of the stretch of the run that an event lies in."""
        at = int(np.searchsorted(self._prefix_rows, row, "right"))
        if not at:
            return ""
        return self.columns.labels[int(self.columns.subject[self._prefix_rows[at - 1]])].stem

    @cached_property
    def _prefix_rows(self) -> Ints:
        return self.rows(PREFIX)

    def end(self, row: int) -> int:
        """When an event ended; for a call past the hooks, when the last thing in it did."""
        end = int(self.columns.end[row])
        if end < 0 and self._is_reconstructed(row):
            return int(self._last_inside.get(row, end))
        return end

    @cached_property
    def _last_inside(self) -> dict[int, int]:
        last: dict[int, int] = {}
        ends = self.columns.end
        for row in range(len(self) - 1, -1, -1):
            parent = int(self.parent_row[row])
            if parent >= 0 and ends[parent] < 0:
                end = int(ends[row]) if ends[row] >= 0 else last.get(row, -1)
                last[parent] = max(last.get(parent, -1), end)
        return last

    def _forward(self, row: int) -> Event | None:
        forward = int(self.forward_row[row])
        return self.event(forward) if forward >= 0 else None

    def _is_reconstructed(self, row: int) -> bool:
        leaves = self.columns.templates[int(self.columns.template[row])].leaves
        return bool(leaves) and leaves[-1].constant is Unseen

    def leaf_values(self, row: int) -> list[tuple[Any, int]]:
        """The tensor leaves of an event with the numbers of their values."""
        c = self.columns
        tensors = self._tensor_leaves(int(c.template[row]))
        first = int(c.first_ref[row])
        return list(zip(tensors, c.refs[first : first + len(tensors)].tolist(), strict=True))

    def _tensor_leaves(self, template: int) -> list[Any]:
        cache = self.__dict__.setdefault("_leaf_cache", {})
        leaves = cache.get(template)
        if leaves is None:
            leaves = cache[template] = self.columns.templates[template].tensors
        return list(leaves)

    def values_of(self, row: int, role: str) -> Values:
        """The tensors of an event's arguments or result."""
        found = Values(
            (leaf.path, self.value(n)) for leaf, n in self.leaf_values(row) if leaf.role == role
        )
        if role == OUT and not found and self._is_reconstructed(row):
            for path, number in enumerate(self._inferred_results(row)):
                found[str(path)] = self.value(number)
            if len(found) == 1:
                return Values({"": found["0"]})
        return found

    def arguments(self, row: int) -> dict[str, Any]:
        """All arguments of an event in order, tensors and constants."""
        numbers = iter(self.leaf_values(row))
        result: dict[str, Any] = {}
        for leaf in self.columns.templates[int(self.columns.template[row])].leaves:
            if leaf.role == IN:
                is_tensor = leaf.constant is Tensor
                result[leaf.path] = self.value(next(numbers)[1]) if is_tensor else leaf.constant
        return result

    def _inferred_results(self, row: int) -> list[int]:
        """What a call past the hooks returned: values made inside it and used outside it."""
        c = self.columns
        inside = self._subtree(row)
        made = [
            n
            for r in inside
            if c.kind[r] == OP
            for leaf, n in self.leaf_values(r)
            if leaf.role == OUT and self.row_of(int(c.producer[n])) == r
        ]
        last_row = max(inside, default=row)
        later = []
        for n in dict.fromkeys(made):
            uses = self._uses.get(n, [])
            at = bisect_right(uses, (last_row, len(c.refs)))
            later += [(uses[at], n)] if at < len(uses) else []
        used = [n for _, n in sorted(later)]
        if used or not made:
            return used
        # Nothing used it: the first result of the last op.
        last = c.producer[made[-1]]
        return [next(n for n in made if c.producer[n] == last)]

    @cached_property
    def _uses(self) -> dict[int, list[tuple[int, int]]]:
        """For each value where it is taken, the backward pass aside: rows, and which tensor."""
        uses: dict[int, list[tuple[int, int]]] = {}
        phase = self.phase.tolist()
        for row in range(len(self)):
            if phase[row] != BACKWARD:
                for position, (leaf, number) in enumerate(self.leaf_values(row)):
                    if leaf.role == IN:
                        uses.setdefault(number, []).append((row, position))
        return uses

    @cached_property
    def _children(self) -> dict[int, list[int]]:
        children: dict[int, list[int]] = {}
        for row, parent in enumerate(self.parent_row.tolist()):
            children.setdefault(parent, []).append(row)
        return children

    def _subtree(self, row: int) -> list[int]:
        """Everything inside an event, in order."""
        inside: list[int] = []
        pending = [row]
        while pending:
            found = self._children.get(pending.pop(), [])
            inside += found
            pending += found
        return sorted(inside)

    def value(self, number: int) -> Value:
        """The value with a number."""
        c = self.columns
        meta = c.metas[int(c.meta[number])]
        name = int(c.value_name[number])
        kept = c.kept.get(number)
        stats = None if kept is None else kept.stats
        producer = int(c.producer[number])

        def produced_by() -> Event | None:
            row = self.row_of(producer) if producer >= 0 else -1
            return self.event(row) if row >= 0 else None

        return Value(
            number=number,
            dtype=meta.dtype,
            shape=meta.shape,
            stride=meta.stride,
            device=meta.device,
            layout=meta.layout,
            cls=meta.cls,
            placements=meta.placements,
            local_shape=meta.local_shape,
            requires_grad=bool(c.grad[number]),
            version=int(c.version[number]),
            storage=int(c.storage[number]),
            name=c.value_names[name] if name >= 0 else None,
            stats=None if stats is None else _stats(stats),
            digest=None if stats is None else stats.get("digest"),
            fingerprint=None,
            _producer=produced_by,
            _load=lambda form: decode(None if kept is None else kept.payload, form),
        )

    def source(self, row: int) -> Source | None:
        """The innermost line of the user's own code that an event came from.

        For a backward op that no Python code called, the line of its forward op.
        """
        c = self.columns
        place = int(c.place[row])
        forward = int(self.forward_row[row])
        if forward >= 0:
            own = self._user_place(place, BACKWARD)
            place = own if own >= 0 else int(c.place[forward])
        found = self._user_place(place, None)
        if found < 0:
            found = place
            while found >= 0 and c.places[found].line <= 0:
                found = c.places[found].parent
        return self.source_at(c.places[found]) if found >= 0 else None

    def _user_place(self, place: int, phase: int | None) -> int:
        """The innermost place from `place` up that is the user's code, while in a phase."""
        places = self.columns.places
        while place >= 0 and (phase is None or places[place].phase == phase):
            if places[place].line > 0 and not places[place].library:
                return place
            place = places[place].parent
        return -1

    def stack(self, row: int) -> tuple[Source, ...]:
        """Every place on the way to an event, outermost first, torch's own code included."""
        c = self.columns
        place = int(c.place[row])
        found = []
        while place >= 0:
            if c.places[place].line > 0:
                found.append(self.source_at(c.places[place]))
            place = c.places[place].parent
        return tuple(reversed(found))

    def source_at(self, place: Place) -> Source:
        """A place as the user sees it, with its text."""
        return Source(
            place.file,
            place.line,
            place.end_line,
            place.col,
            place.end_col,
            place.function,
            self.line_text(place.file, place.line),
        )

    def line_text(self, file: str, line: int) -> str:
        """One source line, empty where the source was not kept."""
        lines = _lines(self.columns.sources.get(file, ""))
        return lines[line - 1].strip() if 0 < line <= len(lines) else ""


@lru_cache(maxsize=64)
def _lines(text: str) -> list[str]:
    return text.splitlines()


def _stats(stats: dict[str, Any]) -> Stats:
    return Stats(
        min=stats.get("min"),
        max=stats.get("max"),
        mean=stats.get("mean"),
        std=stats.get("std"),
        norm=stats.get("norm"),
        nan=stats.get("nan", 0),
        inf=stats.get("inf", 0),
        zeros=stats.get("zeros", 0),
        count=stats.get("count", 0),
    )

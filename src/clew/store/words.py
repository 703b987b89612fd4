"""The event table in words: what its raw columns say in numbers, spelled out for SQL.

In come parts of a trace in order, out come columns of `schema.EVENTS`. A part knows only the
past, so a backward op finds its forward op among those already seen.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Mapping
from typing import Any

from clew.address import written
from clew.events.columns import IN, ModuleRow, Place
from clew.events.labels import counted_as
from clew.events.model import short_dtype
from clew.events.records import (
    BACKWARD,
    GATHERED,
    KINDS,
    LABELLED,
    MODULE,
    NO_NODE,
    NODE_RUN,
    NOTE,
    OP,
    PHASES,
    PREFIX,
    RECOMPUTED,
    STEP,
    Kept,
    node_made,
)
from clew.store.belonging import makes_checkpoints
from clew.store.compact import Part, Tables

_MOST_REMEMBERED = 1_000_000


class Words:
    """Spells out events part by part."""

    def __init__(self, tables: Tables) -> None:
        self.modules: list[ModuleRow] = []
        self.threads: list[str] = []
        self._tables = tables
        self._places: list[Place] = []
        # Of every value so far, in as few bytes as it takes.
        self._metas = array("i")
        self._names = array("i")
        self._producers = array("q")
        # Of every event so far, by its id, the number of its module in `_paths`.
        self._modules_of = array("i")
        self._paths: dict[str | None, int] = {None: 0}
        # What each kind of tensor looks like, in words.
        self._texts: list[str] = []
        # id of a module call -> row of its name, its place, the call around it
        self._calls: dict[int, tuple[int, int, int]] = {}
        # autograd number -> (module, place) of the forward op that read it first
        self._forward: dict[int, tuple[str | None, int]] = {}
        # autograd number -> the module that made the checkpoint around that op
        self._checkpointed: dict[int, str | None] = {}
        # place -> how deep it is, and how deep the innermost checkpoint above it, -1 if none is
        self._depths: dict[int, tuple[int, int]] = {-1: (0, -1)}
        # name of an op, or what a label is counted as -> events of it so far
        self._calls_of: Counter[Any] = Counter()
        # (id of the event that begins a step, number of the step)
        self._steps: list[tuple[int, int]] = []
        # Where the tensors of the part at hand begin.
        self._first_ref = 0

    def around(self, places: list[Place], modules: list[ModuleRow], threads: list[str]) -> None:
        """Take note of the places, modules and threads known by now."""
        self._places, self.modules, self.threads = places, modules, threads

    def learn_values(self, part: Part) -> None:
        """Take note of values, in order of their numbers."""
        self._metas.extend(part.columns["meta"].tolist())
        self._names.extend(part.columns["value_name"].tolist())
        self._producers.extend(part.columns["producer"].tolist())

    def learn_calls(self, *parts: Part) -> None:
        """Take note of calls and steps before the events in them are spelled out."""
        forget_half(self._calls)
        forget_half(self._forward)
        forget_half(self._checkpointed)
        for part in parts:
            c = part.columns
            names = ("id", "kind", "subject", "place", "parent")
            columns = (c[name].tolist() for name in names)
            for event, kind, subject, place, parent in zip(*columns, strict=True):
                if kind == MODULE:
                    self._calls[event] = subject, place, parent
                elif kind == STEP:
                    insort(self._steps, (event, subject))

    def events(self, part: Part, kept: Mapping[int, Kept], rank: int) -> dict[str, list[Any]]:
        """The event table of a part; `kept` is what was kept of its values."""
        c = {name: column.tolist() for name, column in part.columns.items()}
        count = len(c["id"])
        self._first_ref = min(c["first_ref"], default=0)
        rows: dict[str, list[Any]] = {
            name: c[name] for name in ("id", "start", "subject", "place", "number", "template")
        }
        rows["parent"] = [p if p >= 0 else None for p in c["parent"]]
        rows["kind"] = [KINDS[k] for k in c["kind"]]
        rows["end"] = [e if e >= 0 else None for e in c["end"]]
        rows["rank"] = [rank] * count
        errors = self._tables.errors.rows
        rows["error"] = [errors[e] if e >= 0 else None for e in c["error"]]
        for name in ("name", "address", "module", "call", "step", "phase", "thread", "file",
                     "line", "function", "inputs", "outputs", "min", "max", "nan", "inf",
                     "values"):  # fmt: skip
            rows[name] = [None] * count
        for row in range(count):
            self._spell(rows, c, row)
            self._spell_values(rows, c, row, kept)
        return rows

    def _spell(self, rows: dict[str, list[Any]], c: dict[str, list[int]], row: int) -> None:
        kind, subject, number = c["kind"][row], c["subject"][row], c["number"][row]
        place = self._places[c["place"][row]]
        module = self._module(c, row)
        source = c["place"][row]
        call: int | None = None
        if kind == MODULE:
            name, module, call = self.modules[subject].cls, self.modules[subject].path, number
            address = f"{written(module)}#{call}"
        elif kind == OP:
            name = self._tables.ops.rows[subject]
            call = self._counted(name)
            address = f"op:{name}#{call}"
            if place.phase == BACKWARD:
                if number >= 0:
                    run = (number & NODE_RUN) + 1
                    module, source = self._forward.get(run, (module, source))
                    self._forward.setdefault(node_made(number), (module, source))
                elif number == NO_NODE and module is None:
                    module = self._module_of_first_input(c, row)
            else:
                made = number
                if number >= RECOMPUTED:
                    made = node_made(number)
                    module = self._checkpointed.get((number & NODE_RUN) + 1)
                self._forward.setdefault(made, (module, source))
                if self._depth(source)[1] >= 0:
                    outer = self._checkpoint_caller(source, c["parent"][row], module)
                    self._checkpointed.setdefault(made, outer)
        elif kind in LABELLED:
            label = self._tables.labels.rows[subject]
            name, call = label.name, self._counted(("label", counted_as(subject, label)))
            module = module if label.module is None else label.module
            address = label.stem if kind == PREFIX else label.address(call)
            if kind == GATHERED and label.rank is not None:
                rows["rank"][row] = label.rank
        else:
            name = self._tables.notes.rows[subject] if kind == NOTE else "step"
            address = name
        rows["name"][row], rows["address"][row], rows["call"][row] = name, address, call
        step = number if kind == GATHERED else self._step_of(c["id"][row])
        rows["module"][row], rows["step"][row] = module, step
        self._remember(c["id"][row], module)
        rows["phase"][row] = PHASES[place.phase]
        known = place.thread < len(self.threads)
        rows["thread"][row] = self.threads[place.thread] if known else str(place.thread)
        user = self._user_place(source)
        if user is not None:
            rows["file"][row], rows["line"][row] = user.file, user.line
            rows["function"][row] = user.function

    def _counted(self, key: Any) -> int:
        self._calls_of[key] += 1
        return self._calls_of[key] - 1

    def _step_of(self, event: int) -> int:
        at = bisect_right(self._steps, (event, 1 << 63))
        return self._steps[at - 1][1] if at else 0

    def _module(self, c: dict[str, list[int]], row: int) -> str | None:
        call = self._calls.get(c["parent"][row])
        if call is not None:
            return self.modules[call[0]].path
        number = c["number"][row]
        if c["kind"][row] == OP and number <= -2:
            name = self._names[-2 - number]
            if name < 0:
                return self._module_of_maker(-2 - number)
            return str(self._tables.value_names.rows[name]).rpartition(".")[0]
        return None

    def _remember(self, event: int, module: str | None) -> None:
        """Take note of the module of an event."""
        missing = event + 1 - len(self._modules_of)
        if missing > 0:
            self._modules_of.frombytes(bytes(missing * self._modules_of.itemsize))
        self._modules_of[event] = self._paths.setdefault(module, len(self._paths))

    def _module_of_maker(self, value: int) -> str | None:
        """The module of the event that made a value."""
        event = self._producers[value]
        if not 0 <= event < len(self._modules_of):
            return None
        return list(self._paths)[self._modules_of[event]]

    def _module_of_first_input(self, c: dict[str, list[int]], row: int) -> str | None:
        leaves = self._tables.templates.rows[c["template"][row]].tensors
        taken = [at for at, leaf in enumerate(leaves) if leaf.role == IN]
        first = c["first_ref"][row] - self._first_ref
        return self._module_of_maker(c["refs"][first + taken[0]]) if taken else None

    def _depth(self, place: int) -> tuple[int, int]:
        """How deep a place is, and how deep the innermost checkpoint at or above it."""
        unknown = []
        at = place
        while at not in self._depths:
            unknown.append(at)
            at = self._places[at].parent
        for below in reversed(unknown):
            depth, checkpoint = self._depths[self._places[below].parent]
            own = makes_checkpoints(self._places[below])
            self._depths[below] = depth + 1, depth + 1 if own else checkpoint
        return self._depths[place]

    def _checkpoint_caller(self, place: int, call: int, module: str | None) -> str | None:
        """The module that made the innermost checkpoint around an op, as `belonging` finds it."""
        while True:
            subject, above, parent = self._calls.get(call, (-1, -1, -1))
            if self._depth(place)[1] > self._depth(above)[0]:
                return module if subject < 0 else self.modules[subject].path
            if subject < 0:
                return None
            place, call, module = above, parent, None

    def _user_place(self, row: int) -> Place | None:
        innermost = None
        while row >= 0:
            place = self._places[row]
            if place.line > 0:
                innermost = innermost or place
                if not place.library:
                    return place
            row = place.parent
        return innermost

    def _spell_values(
        self,
        rows: dict[str, list[Any]],
        c: dict[str, list[int]],
        row: int,
        kept: Mapping[int, Kept],
    ) -> None:
        leaves = self._tables.templates.rows[c["template"][row]].tensors
        first = c["first_ref"][row] - self._first_ref
        numbers = c["refs"][first : first + len(leaves)]
        rows["values"][row] = numbers
        inputs: list[str] = []
        outputs: list[str] = []
        found = []
        for leaf, number in zip(leaves, numbers, strict=True):
            (inputs if leaf.role == IN else outputs).append(self._text(number))
            if leaf.role != IN and number in kept:
                found.append(kept[number])
        rows["inputs"][row], rows["outputs"][row] = inputs, outputs
        _spell_stats(rows, row, found)

    def _text(self, number: int) -> str:
        known = self._metas[number]
        for meta in self._tables.metas.rows[len(self._texts) : known + 1]:
            shape = "?" if meta.shape is None else ",".join(map(str, meta.shape))
            self._texts.append(f"{short_dtype(meta.dtype)}[{shape}]")
        return self._texts[known]


def forget_half(known: dict[int, Any]) -> None:
    """Forget what was learnt first, once there is too much; calls still open are learnt again."""
    if len(known) > _MOST_REMEMBERED:
        for key in list(known)[: _MOST_REMEMBERED // 2]:
            del known[key]


def _spell_stats(rows: dict[str, list[Any]], row: int, kept: list[Kept]) -> None:
    stats = [k.stats for k in kept if k.stats is not None]
    if not stats:
        return
    rows["nan"][row] = sum(s["nan"] for s in stats)
    rows["inf"][row] = sum(s["inf"] for s in stats)
    rows["min"][row] = min((s["min"] for s in stats if s.get("min") is not None), default=None)
    rows["max"][row] = max((s["max"] for s in stats if s.get("max") is not None), default=None)

"""Facts of a training run that several rules need, as arrays: gradients, weights, optimizers.

Input: a `Run`. Output: tables with a row for each parameter in each step. Gradients come from the
ops that accumulate them, or from `capture=["**:grad"]`; weights from the ops that take them, or
from `capture=["**:param"]`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from clew.address import written
from clew.analysis.file_names import bare_name
from clew.analysis.health.verdicts import HealthFinding
from clew.events.columns import Columns, Flags, Floats, Ints
from clew.events.op_names import bare_op
from clew.events.vocabulary import FORWARD, GRADIENT, MODULE, OF_OPS, OP, OPTIMIZER, VARIABLE
from clew.run.run import Run

RECORD_OPS = "record with level='ops', values='stats'"
RECORD_GRADIENTS = f"{RECORD_OPS}, or with capture=['**:grad', '**:param'] at level='modules'"
_CAPTURED = ("grad", "param", "update")
NO_STATISTICS = "no statistics were taken; record with values='stats'"


@dataclass(frozen=True, slots=True)
class ParameterTable:
    """A value of a parameter, or its gradient, in each step: by rank, step and name, in order."""

    name: Ints
    step: Ints
    rank: Ints
    value: Ints
    row: Ints

    def __len__(self) -> int:
        return len(self.name)

    def only(self, which: Ints | Flags) -> ParameterTable:
        """Return some of the rows."""
        return ParameterTable(
            self.name[which], self.step[which], self.rank[which], self.value[which],
            self.row[which],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """One parameter group of an optimizer: what it holds, and its settings as they changed."""

    rank: int
    optimizer: str
    parameters: frozenset[str]
    # those that required no gradient at the first step; None if that was not noted
    frozen: frozenset[str] | None
    # (id of the event before which it held, learning rate)
    rates: tuple[tuple[int, float], ...]


class TrainingFacts:
    """Facts of a run for the rules; each is computed when it is first asked for."""

    def __init__(self, run: Run) -> None:
        self.run = run

    # What there is

    @cached_property
    def has_ops(self) -> bool:
        """Return whether ops were recorded."""
        return bool((self.run.columns.kind == OP).any())

    @cached_property
    def has_stats(self) -> bool:
        """Return whether any value has statistics."""
        return bool((self.run.stats["count"] >= 0).any())

    @cached_property
    def steps(self) -> Ints:
        """Return the steps in which an optimizer ran ops."""
        return np.unique(self.run.step[self.run.phase == OPTIMIZER])

    # Ops and calls

    def ops_named(self, names: frozenset[str] | set[str]) -> Ints:
        """Return the rows of ops with one of some bare names."""
        c = self.run.columns
        wanted = np.array([bare_op(name) in names for name in c.ops] + [False], dtype=bool)
        return np.flatnonzero(wanted[np.where(c.kind == OP, c.subject, len(c.ops))])

    def calls_of(self, classes: frozenset[str]) -> Ints:
        """Return the rows of calls of modules of some classes."""
        c = self.run.columns
        wanted = np.array([one.cls in classes for one in c.modules] + [False], dtype=bool)
        return np.flatnonzero(wanted[np.where(c.kind == MODULE, c.subject, len(c.modules))])

    @cached_property
    def roots(self) -> Ints:
        """Return the rows of outermost module calls of the forward pass."""
        run = self.run
        return np.flatnonzero(
            (run.columns.kind == MODULE) & (run.parent_row < 0) & (run.phase == FORWARD)
        )

    @cached_property
    def root_of(self) -> Ints:
        """Return for each row the outermost module call it ran in, itself for such a call."""
        parent = self.run.parent_row
        above = np.where(parent >= 0, parent, np.arange(len(parent)))
        while True:
            further = above[above]
            if np.array_equal(further, above):
                return above
            above = further

    def has_grad(self, rows: Ints) -> Flags:
        """Return which of some rows returned a tensor that requires a gradient."""
        tensors = self.run.tensors
        given = tensors.is_output & (self.run.columns.grad[tensors.value] > 0)
        return np.isin(rows, tensors.event[given])

    @cached_property
    def first_input(self) -> Ints:
        """Return for each row the first tensor it took, -1 for none."""
        return self._first(False)

    @cached_property
    def first_result(self) -> Ints:
        """Return for each row the first tensor it returned, -1 for none."""
        return self._first(True)

    def _first(self, is_output: bool) -> Ints:
        tensors = self.run.tensors
        found = np.full(len(self.run), -1, dtype=np.int64)
        mine = np.flatnonzero(tensors.is_output == is_output)[::-1]
        found[tensors.event[mine]] = tensors.value[mine]
        return found

    @cached_property
    def training(self) -> Ints:
        """Return for each row of a module call its `training` flag: 1, 0, or -1 if not known."""
        flags = [self._training_of(columns) for columns, _ in self.run.parts]
        return np.concatenate(flags) if flags else np.zeros(0, dtype=np.int64)

    @staticmethod
    def _training_of(c: Columns) -> Ints:
        found = np.full(len(c.id), -1, dtype=np.int64)
        noted = [
            (one.number, one.event, int(bool(one.values["training"])))
            for one in c.attributes
            if one.kind == "module" and isinstance(one.values.get("training"), bool)
        ]
        calls = np.flatnonzero(c.kind == MODULE)
        if not noted or not len(calls):
            return found
        number, event, flag = np.array(sorted(noted), dtype=np.int64).T
        of_module = np.array([one.number for one in c.modules] or [0], dtype=np.int64)
        module = of_module[c.subject[calls]]
        # Positions in place of numbers of a file, which may be of any size.
        numbers, moments = np.unique(number), np.unique(event)
        span = len(moments) + 1
        noted_at = np.searchsorted(numbers, number) * span + np.searchsorted(moments, event) + 1
        asked_at = np.searchsorted(numbers, module) * span
        asked_at += np.searchsorted(moments, c.id[calls], "right")
        at = np.searchsorted(noted_at, asked_at, "right") - 1
        known = (at >= 0) & (number[at] == module)
        found[calls[known]] = flag[at[known]]
        return found

    # Parameters

    @cached_property
    def names(self) -> list[str]:
        """Return the names of parameters and buffers; tables hold indices of this list."""
        run = self.run
        labelled = [f"{one.stem}" for one in run.columns.labels if one.role in _CAPTURED]
        return list(dict.fromkeys([*run.columns.value_names, *labelled]))

    @cached_property
    def is_matrix(self) -> Flags:
        """Return for each name whether the tensor has two dimensions or more, each above 1."""
        found = np.zeros(len(self.names), dtype=bool)
        c = self.run.columns
        sizes = [sum(size > 1 for size in meta.shape or ()) > 1 for meta in c.metas]
        for table in (self.gradients, self.weights):
            found[table.name] = np.array([*sizes, False], dtype=bool)[c.meta[table.value]]
        return found

    @cached_property
    def gradients(self) -> ParameterTable:
        """Return the gradient of each parameter at the end of the backward pass of each step."""
        return self._table(*self._accumulated)

    @cached_property
    def least_gradient(self) -> Floats:
        """Return for each row of `gradients` the smallest size that the gradient had in the step.

        Where several losses are differentiated in a step, an optimizer may have used any of them.
        """
        rows, name, value = self._accumulated
        table, size = self.gradients, self.rms(value)
        keys = np.stack([table.rank, table.step, table.name])
        asked = np.stack([self.run.rank[rows], self.run.step[rows], name])
        _, at = np.unique(np.concatenate([keys, asked], axis=1), axis=1, return_inverse=True)
        at = at.reshape(-1)
        least = np.full(len(at), np.inf)
        np.fmin.at(least, at[len(table) :], size)
        return least[at[: len(table)]]

    @cached_property
    def _accumulated(self) -> tuple[Ints, Ints, Ints]:
        """Return rows, names and values of gradients, each time that one was added to."""
        c = self.run.columns
        rows = np.flatnonzero((c.kind == OP) & (c.number <= -2))
        name = c.value_name[-2 - c.number[rows]]
        value = self.first_result[rows]
        there = (name >= 0) & (value >= 0)
        rows, name, value = rows[there], name[there], value[there]
        if not len(rows):
            rows, name, value = self._labelled(GRADIENT, "grad")
        return rows, name, self._unscaled(rows, value)

    @cached_property
    def updated(self) -> frozenset[tuple[int, int, int]]:
        """Return rank, step and name of the parameters that ops of an optimizer took."""
        run, tensors = self.run, self.run.tensors
        name = run.columns.value_name[tensors.value]
        mine = (name >= 0) & (run.phase == OPTIMIZER)[tensors.event]
        event = tensors.event[mine]
        keys = np.unique(np.stack([run.rank[event], run.step[event], name[mine]]), axis=1)
        return frozenset((rank, step, number) for rank, step, number in keys.T.tolist())

    @cached_property
    def weights(self) -> ParameterTable:
        """Return each parameter as the forward pass of each step first took it."""
        run = self.run
        c = run.columns
        tensors = run.tensors
        mine = ~tensors.is_output & (c.value_name[tensors.value] >= 0)
        mine &= np.isin(c.kind, OF_OPS)[tensors.event] & (run.phase == FORWARD)[tensors.event]
        at = np.flatnonzero(mine)[::-1]
        rows, value = tensors.event[at], tensors.value[at]
        name = c.value_name[value]
        if not len(rows):
            rows, name, value = (part[::-1] for part in self._labelled(VARIABLE, "param"))
        return self._table(rows, name, value)

    @cached_property
    def captured_gradients(self) -> ParameterTable:
        """Return the gradients of parameters that `capture=["**:grad"]` recorded."""
        return self._table(*self._labelled(GRADIENT, "grad"))

    @cached_property
    def updates(self) -> ParameterTable:
        """Return what each step added to each parameter, as `capture=["**:update"]` records it."""
        return self._table(*self._labelled(VARIABLE, "update"))

    def _labelled(self, kind: int, role: str) -> tuple[Ints, Ints, Ints]:
        """Return rows, names and values of captured parameters or their gradients."""
        run = self.run
        c = run.columns
        index = {name: at for at, name in enumerate(self.names)}
        parameters = {written(path) for path, _, _ in c.parameters}
        names = np.array(
            [
                index[one.stem] if one.role == role and one.stem in parameters else -1
                for one in c.labels
            ]
            + [-1],
            dtype=np.int64,
        )
        rows = np.flatnonzero(c.kind == kind)
        name, value = names[c.subject[rows]], self.first_result[rows]
        there = (name >= 0) & (value >= 0)
        return rows[there], name[there], value[there]

    def _table(self, rows: Ints, name: Ints, value: Ints) -> ParameterTable:
        """Return the last of some rows for each rank, step and name."""
        run = self.run
        step, rank = run.step[rows], run.rank[rows]
        order = np.lexsort((np.arange(len(rows)), name, step, rank))
        keys = np.stack([rank, step, name])[:, order]
        last = np.ones(len(rows), dtype=bool)
        last[:-1] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
        at = order[last]
        return ParameterTable(name[at], step[at], rank[at], value[at], rows[at])

    def _unscaled(self, rows: Ints, value: Ints) -> Ints:
        """Return gradients as they are after a `GradScaler` has taken its factor out of them."""
        run = self.run
        unscaling = self.ops_named({"_amp_foreach_non_finite_check_and_unscale_"})
        if not len(unscaling):
            return value
        storage, made = run.columns.storage, np.flatnonzero(np.isin(run.producers, unscaling))
        steps = run.step[run.producers[made]]
        numbers = zip(storage[made].tolist(), steps.tolist(), made.tolist(), strict=True)
        after = {(held, step): number for held, step, number in numbers}
        keys = zip(storage[value].tolist(), run.step[rows].tolist(), strict=True)
        found = [after.get(key, same) for key, same in zip(keys, value.tolist(), strict=True)]
        return np.array(found, dtype=np.int64)

    def rms(self, value: Ints) -> Floats:
        """Return the root of the mean square of values; NaN without statistics or elements."""
        stats = self.run.stats
        count = stats["count"][value].astype(float)
        count[count <= 0] = np.nan
        return np.asarray(stats["norm"][value] / np.sqrt(count))

    def digest(self, value: int) -> str | None:
        """Return the digest of a value, None if none was taken."""
        return self.run.value(value).digest

    @cached_property
    def groups(self) -> tuple[ParameterGroup, ...]:
        """Return the parameter groups of the optimizers that made a step."""
        found: dict[tuple[int, int, int], list[Any]] = {}
        for rank, (columns, _) in zip(self.run.ranks, self.run.parts, strict=True):
            for one in columns.attributes:
                if one.kind == "optimizer":
                    found.setdefault((rank, one.number, one.group), []).append(one)
        return tuple(
            ParameterGroup(
                rank,
                str(next((n.values["class"] for n in noted if "class" in n.values), "optimizer")),
                _texts(noted, "params"),
                _texts(noted, "frozen") if any("frozen" in n.values for n in noted) else None,
                tuple(
                    (n.event, float(n.values["lr"]))
                    for n in noted
                    if isinstance(n.values.get("lr"), int | float)
                ),
            )
            for (rank, _, _), noted in found.items()
        )  # fmt: skip

    def group_of(self, name: str, rank: int) -> ParameterGroup | None:
        """Return the group of an optimizer that holds a parameter."""
        return self._groups_by_name.get((rank, name))

    @cached_property
    def _groups_by_name(self) -> dict[tuple[int, str], ParameterGroup]:
        return {(group.rank, name): group for group in self.groups for name in group.parameters}

    def rate(self, group: ParameterGroup, row: int) -> float | None:
        """Return the learning rate of a group in the optimizer's first step after a row."""
        mine = self._optimizer_rows[group.rank]
        at = int(np.searchsorted(mine, row))
        if at == len(mine):
            return None
        event = int(self.run.columns.id[mine[at]])
        rates = [rate for noted, rate in group.rates if noted <= event]
        return rates[-1] if rates else None

    @cached_property
    def _optimizer_rows(self) -> dict[int, Ints]:
        """Return the rows of optimizers' ops, by rank."""
        run = self.run
        is_step = run.phase == OPTIMIZER
        return {rank: np.flatnonzero(is_step & (run.rank == rank)) for rank in run.ranks}

    # Words

    def line(self, row: int) -> str:
        """Write the line of a row: ` at model.py:7`, or nothing if it is not known."""
        source = self.run.source(row)
        return "" if source is None else f" at {bare_name(source.file)}:{source.line}"

    def finding(
        self, rule: str, row: int, address: str, figure: float, threshold: float, text: str,
        advice: str, certain: bool = False,
    ) -> HealthFinding:  # fmt: skip
        """Return a finding about a row."""
        run = self.run
        return HealthFinding(
            rule, address, int(run.step[row]), int(run.rank[row]), float(figure), float(threshold),
            text, advice, run.event(row), certain,
        )  # fmt: skip


def _texts(noted: list[Any], key: str) -> frozenset[str]:
    held = [n.values.get(key) for n in noted]
    return frozenset(
        name for names in held if isinstance(names, list) for name in names if type(name) is str
    )


def in_steps(steps: Iterable[int]) -> str:
    """Write some steps in a few words: `step 3`, `steps 3 to 9`, `5 steps from 3 to 90`.

    >>> in_steps([3]), in_steps([3, 4, 5]), in_steps([0, 7, 9])
    ('step 3', 'steps 3 to 5', '3 steps from 0 to 9')
    """
    listed = sorted({int(step) for step in steps})
    first, last = listed[0], listed[-1]
    if first == last:
        return f"step {first}"
    if last - first + 1 == len(listed):
        return f"steps {first} to {last}"
    return f"{len(listed)} steps from {first} to {last}"

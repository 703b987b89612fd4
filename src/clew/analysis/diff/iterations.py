"""The iterations of a training loop: which ops lead to which update of the parameters.

Input: a `FlowGraph`. Output: `Iterations`, in which an iteration has the ops from after one update
of the parameters to the end of the next: its batch is made in it, though the program may load the
batch before it counts the step. What follows the last update is an iteration of its own. A run
without updates has one for each step that was recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from clew.analysis.diff.flow_graph import FlowGraph
from clew.analysis.health.training_facts import TrainingFacts
from clew.events.columns import Flags, Ints
from clew.events.vocabulary import BACKWARD, FORWARD, MODULE, NO_NODE, OPTIMIZER, RECOMPUTE


@dataclass(frozen=True, slots=True)
class Pass:
    """An outermost call of a module in the forward pass, its iteration, and its mode if known."""

    row: int
    iteration: int
    training: int


class Iterations:
    """The iterations of one run; each fact is computed when it is first asked for."""

    def __init__(self, graph: FlowGraph) -> None:
        self.graph = graph
        run = graph.run
        self._phase = run.phase[graph.rows]

    @cached_property
    def is_training(self) -> bool:
        """Return whether gradients were computed."""
        return bool((self._phase == BACKWARD).any())

    @cached_property
    def of_op(self) -> Ints:
        """Return for each op the number of its iteration."""
        if not self._starts:
            run = self.graph.run
            steps = run.step[self.graph.rows]
            return np.asarray(steps - min(run.steps, default=0))
        at = np.arange(len(self.graph))
        return np.asarray(np.searchsorted(np.array(self._starts), at, side="right"))

    @cached_property
    def count(self) -> int:
        """Return how many iterations end with an update of the parameters."""
        return int(self.of_op[self.updates].max()) + 1 if self.updates.any() else 0

    @cached_property
    def updates(self) -> Flags:
        """Return for each op whether it updates parameters: in an optimizer, or by hand.

        What writes parameters before there are gradients gives them their first values.
        """
        found = self._phase == OPTIMIZER
        first = int(np.argmax(self._phase == BACKWARD)) if self.is_training else len(found)
        wrote = self.graph.maker[np.flatnonzero(self._is_parameter)]
        by_hand = np.zeros(len(found), dtype=bool)
        by_hand[wrote[wrote >= first]] = True
        by_hand &= ~np.isin(self._phase, (BACKWARD, RECOMPUTE))
        return np.asarray(found | by_hand)

    @cached_property
    def left_behind(self) -> Flags:
        """Return which results of updates nothing took: parameters and states at the end."""
        graph = self.graph
        found = np.concatenate([self.updates, [False]])[graph.maker]
        found[graph.takes.values] = False
        return np.asarray(found)

    @cached_property
    def from_parameters(self) -> Flags:
        """Return for each op whether parameters or buffers went into it."""
        named = self.graph.run.columns.value_name >= 0
        return self._reached(named, stops=np.zeros(len(named), dtype=bool))

    @cached_property
    def from_gradients(self) -> Flags:
        """Return for each op whether it is in the backward pass, or gradients went into it.

        Not those that went into it by way of parameters that were updated.
        """
        graph = self.graph
        mine = self._phase == BACKWARD
        named = graph.run.columns.value_name >= 0
        made = np.concatenate([mine, [False]])[graph.maker]
        return np.asarray(mine | self._reached(made & ~named, stops=named))

    def _reached(self, values: Flags, stops: Flags) -> Flags:
        """Return the ops that some values went into, directly or not."""
        graph = self.graph
        starts, ends, maker = values.tolist(), stops.tolist(), graph.maker.tolist()
        found = [False] * len(graph)
        for op in range(len(graph)):
            found[op] = any(
                starts[v] or (maker[v] >= 0 and found[maker[v]] and not ends[v])
                for v in graph.takes[op]
            )
        return np.array(found, dtype=bool)

    @cached_property
    def _is_parameter(self) -> Flags:
        """Return which values are versions of parameters."""
        c = self.graph.run.columns
        parameters = {path for path, _, _ in c.parameters}
        named = np.array([name in parameters for name in c.value_names] + [False], dtype=bool)
        return np.asarray(named[c.value_name])

    @cached_property
    def _starts(self) -> list[int]:
        """Return the op that each iteration but the first begins with."""
        found: list[int] = []
        last = -1
        updates = self.updates.tolist()
        for op, phase in enumerate(self._phase.tolist()):
            if updates[op]:
                last = op
            elif phase == BACKWARD and last >= 0:
                found.append(last + 1)
                last = -1
        return [*found, last + 1] if last >= 0 else found

    @cached_property
    def labels(self) -> list[int]:
        """Return the number of the recorded step of each iteration, if no two have the same."""
        steps = self.graph.run.step[self.graph.rows]
        found = []
        for number in range(self.count):
            mine = np.flatnonzero((self.of_op == number) & (self._phase == BACKWARD))
            found.append(int(steps[mine[0]]) if len(mine) else -1)
        return found if len(set(found)) == len(found) else list(range(self.count))

    @cached_property
    def _of_row(self) -> Ints:
        """Return for each event the iteration of the first op that is not before it."""
        at = np.searchsorted(self.graph.rows, np.arange(len(self.graph.run)))
        last = int(self.of_op[-1]) if len(self.of_op) else 0
        return np.concatenate([self.of_op, [last]])[at]

    @cached_property
    def passes(self) -> list[Pass]:
        """Return the outermost calls of modules, in order."""
        run = self.graph.run
        mine = (run.columns.kind == MODULE) & (run.parent_row < 0) & (run.phase == FORWARD)
        training = TrainingFacts(run).training
        return [
            Pass(row, int(self._of_row[row]), int(training[row]))
            for row in np.flatnonzero(mine).tolist()
        ]

    @cached_property
    def pass_of(self) -> Ints:
        """Return for each event the index of the pass that it is in, -1 for none."""
        run = self.graph.run
        found: Ints = np.full(len(run), -1, dtype=np.int64)
        for number, one in enumerate(self.passes):
            found[one.row] = number
        parent = run.parent_row.tolist()
        for row in np.flatnonzero(run.columns.kind == MODULE).tolist():
            if parent[row] >= 0:
                found[row] = found[parent[row]]
        return found

    @cached_property
    def call_in_pass(self) -> Ints:
        """Return for each module call how many of its path came before in the same pass."""
        run = self.graph.run
        found: Ints = np.full(len(run), -1, dtype=np.int64)
        counts: dict[tuple[int, int], int] = {}
        paths, passes = run.derived.module.tolist(), self.pass_of.tolist()
        for row in np.flatnonzero(run.columns.kind == MODULE).tolist():
            key = passes[row], paths[row]
            counts[key] = number = counts.get(key, -1) + 1
            found[row] = number
        return found

    @cached_property
    def place_of_op(self) -> Ints:
        """Return for each op a number for its place in an iteration, the same in all iterations."""
        graph, run = self.graph, self.graph.run
        first: dict[int, int] = {}
        for index, one in enumerate(self.passes):
            first.setdefault(one.iteration, index)
        owner = run.owner_row[graph.rows]
        passes = np.where(owner >= 0, self.pass_of[owner], -1).tolist()
        calls = np.where(owner >= 0, self.call_in_pass[owner], -1).tolist()
        modules, steps = run.derived.module[graph.rows].tolist(), self.of_op.tolist()
        phases, names = self._phase.tolist(), graph.name_codes.tolist()
        counts: dict[tuple[int, ...], int] = {}
        numbers: dict[tuple[int, ...], int] = {}
        found: list[int] = []
        for op, step in enumerate(steps):
            at = passes[op] - first.get(step, 0) if passes[op] >= 0 else -1
            key = phases[op], at, modules[op], calls[op], names[op]
            place = step, *key
            counts[place] = count = counts.get(place, -1) + 1
            found.append(numbers.setdefault((*key, count), len(numbers)))
        return np.array(found, dtype=np.int64)

    # What comes out of an iteration

    @cached_property
    def losses(self) -> list[list[int]]:
        """Return the values that gradients were computed of, by iteration."""
        graph = self.graph
        found: list[list[int]] = [[] for _ in range(int(self.of_op.max(initial=0)) + 1)]
        starts = graph.are(frozenset({"ones_like"})) & (self._phase == BACKWARD)
        starts &= graph.run.columns.number[graph.rows] == NO_NODE
        for op in np.flatnonzero(starts).tolist():
            found[int(self.of_op[op])] += graph.takes[op][:1]
        return found

    @cached_property
    def outputs(self) -> list[list[int]]:
        """Return what the passes returned that gradients can be computed of, by iteration."""
        run, tensors = self.graph.run, self.graph.run.tensors
        found: list[list[int]] = [[] for _ in range(int(self.of_op.max(initial=0)) + 1)]
        at = np.full(len(run), -1, dtype=np.int64)
        at[[one.row for one in self.passes]] = [one.iteration for one in self.passes]
        mine = tensors.is_output & (at[tensors.event] >= 0) & (run.columns.grad[tensors.value] > 0)
        for row, value in zip(tensors.event[mine].tolist(), tensors.value[mine].tolist(),
                              strict=True):  # fmt: skip
            found[int(at[row])].append(value)
        return found

    @cached_property
    def gradients(self) -> list[dict[str, int]]:
        """Return the last gradient of each parameter, by iteration."""
        graph, c = self.graph, self.graph.run.columns
        found: list[dict[str, int]] = [{} for _ in range(int(self.of_op.max(initial=0)) + 1)]
        numbers = c.number[graph.rows]
        for op in np.flatnonzero(numbers <= -2).tolist():
            name = int(c.value_name[-2 - int(numbers[op])])
            if name >= 0 and graph.gives[op]:
                found[int(self.of_op[op])][c.value_names[name]] = graph.gives[op][0]
        return found

    @cached_property
    def used_gradients(self) -> list[dict[str, int]]:
        """Return the gradients as optimizers took them: accumulated, unscaled and clipped."""
        graph, c = self.graph, self.graph.run.columns
        found: list[dict[str, int]] = [{} for _ in self.gradients]
        names = [{int(c.storage[v]): name for name, v in one.items()} for one in self.gradients]
        for op in np.flatnonzero(self._phase == OPTIMIZER).tolist():
            at = int(self.of_op[op])
            for value in graph.takes[op]:
                name = names[at].get(int(c.storage[value]))
                if name is not None:
                    found[at].setdefault(name, value)
        return found

    @cached_property
    def written(self) -> list[dict[str, int]]:
        """Return the parameters and buffers that were written, by iteration: the last versions."""
        graph, c = self.graph, self.graph.run.columns
        found: list[dict[str, int]] = [{} for _ in range(int(self.of_op.max(initial=0)) + 1)]
        named = np.flatnonzero((c.value_name >= 0) & (graph.maker >= 0))
        for value in named[np.argsort(graph.maker[named], kind="stable")].tolist():
            at = int(self.of_op[graph.maker[value]])
            found[at][c.value_names[int(c.value_name[value])]] = value
        return found

    @cached_property
    def given(self) -> dict[str, int]:
        """Return the first version of each parameter and buffer, as it came from outside."""
        c = self.graph.run.columns
        found: dict[str, int] = {}
        for value in np.flatnonzero((c.value_name >= 0) & (self.graph.maker < 0)).tolist():
            found.setdefault(c.value_names[int(c.value_name[value])], value)
        return found

    @cached_property
    def first_used(self) -> dict[str, int]:
        """Return the version of each parameter and buffer that the first op in a module took."""
        graph, c = self.graph, self.graph.run.columns
        found: dict[str, int] = {}
        inside = (graph.run.owner_row[graph.rows] >= 0) & (self._phase == FORWARD)
        for op in np.flatnonzero(inside & (self.of_op == 0)).tolist():
            for value in graph.takes[op]:
                if c.value_name[value] >= 0:
                    found.setdefault(c.value_names[int(c.value_name[value])], value)
        return found


def shared_labels(a: Iterations, b: Iterations) -> list[int]:
    """Return the number of the step of each iteration, and one more; the same for both runs.

    If one run counts steps that the other does not, such as evaluations, iterations are counted.
    """
    mine, theirs = a.labels, b.labels
    size = min(len(mine), len(theirs))
    longer = mine if len(mine) >= len(theirs) else theirs
    found = longer if mine[:size] == theirs[:size] else list(range(len(longer)))
    return [*found, (found[-1] if found else -1) + 1]

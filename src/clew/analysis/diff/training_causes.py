"""What it is that makes two training runs part: data, random numbers, gradients, the optimizer.

Input: `Compared` and the `PartingPlace`. Output: a cause, the step, and sentences that tell more.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from clew.analysis.diff.batches import batch_said
from clew.analysis.diff.compared import Compared, Half
from clew.analysis.diff.draws import draws_said
from clew.analysis.diff.iterations import Iterations, shared_labels
from clew.analysis.diff.optimizer_settings import different_optimizers
from clew.analysis.diff.parting import EXTRA, INPUTS, MISSING
from clew.analysis.diff.passed import where
from clew.analysis.diff.training_parting import TrainingPlace, is_before_model
from clew.events.vocabulary import BACKWARD, MODULE, OPTIMIZER, RECOMPUTE

CAUSES = DATA, RANDOM, PARAMETERS, FORWARD, LOSS, GRADIENT, UPDATE, MODE, STEPS = (
    "data", "random", "parameters", "forward", "loss", "gradient", "optimizer", "mode", "steps",
)  # fmt: skip
_MOST_NAMES = 6


class TrainingCause:
    """The cause of one parting of two training runs."""

    def __init__(self, found: Compared, parting: TrainingPlace) -> None:
        place = parting.place
        self._found, self._place, self._shown = found, place, parting.iteration
        self._of_a = place.op_b < 0 or place.kind == MISSING
        self._half: Half = found.a if self._of_a else found.b
        self._own: Iterations = found.iterations[0 if self._of_a else 1]
        self._op = place.op_a if self._of_a else place.op_b
        self._row = int(self._half.graph.rows[self._op])

    @property
    def iteration(self) -> int:
        """Return the iteration that the runs part in; of data, the one that uses it."""
        return self._shown if self.cause == DATA else int(self._own.of_op[self._op])

    @cached_property
    def labels(self) -> list[int]:
        """Return the number of the step of each iteration, the same for both runs."""
        return shared_labels(*self._found.iterations)

    @property
    def step(self) -> int:
        """Return the step that the runs part in."""
        return self.labels[min(self.iteration, len(self.labels) - 1)]

    # The cause

    @cached_property
    def cause(self) -> str:
        """Return what it is that makes the runs part."""
        a, b = self._found.iterations
        at = int(self._own.of_op[self._op])
        if a.count != b.count and at >= min(a.count, b.count):
            return STEPS
        if self._modes:
            return MODE
        place = self._place
        if place.kind == INPUTS:
            return self._cause_of_input()
        if is_before_model(self._found, place):
            return PARAMETERS if self._is_first_value else DATA
        if draws_said(self._found, place.op_a, place.op_b):
            return RANDOM
        return self._cause_by_phase()

    def _cause_of_input(self) -> str:
        if self._half.graph.run.value(self._place.value).name:
            return PARAMETERS
        is_data = is_before_model(self._found, self._place) or self._is_given
        return DATA if is_data else FORWARD

    @property
    def _is_first_value(self) -> bool:
        """Return whether the op writes to the memory of a parameter or buffer."""
        graph = self._half.graph
        c = graph.run.columns
        held = set(c.storage[c.value_name >= 0].tolist())
        return any(int(c.storage[v]) in held for v in graph.gives[self._op])

    def _cause_by_phase(self) -> str:
        own, op = self._own, self._op
        if own.updates[op]:
            return UPDATE
        phase = int(own.graph.run.phase[self._row])
        if phase == RECOMPUTE:
            return FORWARD
        if phase == BACKWARD or self._passes:
            return GRADIENT
        if own.from_gradients[op]:
            by_hand = not (own.graph.run.phase == OPTIMIZER).any()
            return UPDATE if by_hand and not self._is_gradient else GRADIENT
        return LOSS if self._half.graph.run.owner_row[self._row] < 0 else FORWARD

    @property
    def _is_given(self) -> bool:
        """Return whether the value was given to an outermost call of a module."""
        tensors = self._half.graph.run.tensors
        rows = tensors.event[(tensors.value == self._place.value) & ~tensors.is_output]
        return bool(np.isin(rows, [one.row for one in self._own.passes]).any())

    @property
    def _is_gradient(self) -> bool:
        """Return whether the op writes to the memory of a gradient."""
        graph = self._half.graph
        storage = graph.run.columns.storage
        held = {int(storage[v]) for one in self._own.gradients for v in one.values()}
        return any(int(storage[v]) in held for v in graph.gives[self._op])

    @cached_property
    def _passes(self) -> tuple[int, int] | None:
        """Return how many passes the iteration has in each run, if the op is in one too many."""
        if self._place.kind not in (MISSING, EXTRA):
            return None
        owner = int(self._half.graph.run.owner_row[self._row])
        counts = [
            sum(one.iteration == self._shown and one.training != 0 for one in iterations.passes)
            for iterations in self._found.iterations
        ]
        if owner < 0 or counts[0] == counts[1]:
            return None
        return counts[0], counts[1]

    @cached_property
    def _modes(self) -> list[str]:
        """Say which of the modules around the op are in another mode in the other run."""
        run, row = self._half.graph.run, int(self._half.graph.run.owner_row[self._row])
        other = self._found.iterations[1 if self._of_a else 0]
        said: list[str] = []
        while row >= 0:
            twin = _same_call(self._own, row, other)
            mine = run.attributes(row).get("training")
            theirs = None if twin < 0 else other.graph.run.attributes(twin).get("training")
            if twin >= 0 and mine is not None and theirs is not None and mine != theirs:
                sides = (mine, theirs) if self._of_a else (theirs, mine)
                path = run.module_path(row) or "the root module"
                said.append(f"{path}: training is {sides[0]} in a, {sides[1]} in b")
            row = int(run.parent_row[row])
        return said

    # More about it

    def said(self) -> list[str]:
        """Return sentences that say more about the cause."""
        place, cause = self._place, self.cause
        if cause == STEPS:
            counts = [one.count for one in self._found.iterations]
            return [f"a has {counts[0]} steps, b {counts[1]}; those that both have agree"]
        said = list(self._modes)
        if cause == DATA:
            return [*said, *batch_said(self._found, self._shown, self.labels)]
        said += draws_said(self._found, place.op_a, place.op_b)
        said += self._parameters() if cause == PARAMETERS else []
        said += self._gradient() if cause == GRADIENT else []
        said += self._settings() if cause in (UPDATE, GRADIENT) else []
        return said

    def _parameters(self) -> list[str]:
        """Say how many parameters and buffers differ as they were given."""
        a, b = (one.given for one in self._found.iterations)
        both = [name for name in a if name in b]
        half = self._found.b
        off = [name for name in both if half.far[b[name]] > half.noise[b[name]]]
        if len(off) < 2:
            return ["all other parameters and buffers agree"] if len(both) > 1 else []
        shown = ", ".join(off[:_MOST_NAMES]) + (", ..." if len(off) > _MOST_NAMES else "")
        return [f"{len(off)} of {len(both)} parameters and buffers differ: {shown}"]

    def _gradient(self) -> list[str]:
        """Say which op of the forward pass a gradient belongs to, and what is added to it."""
        run = self._half.graph.run
        said = []
        if self._passes:
            said.append(f"a runs {self._passes[0]} forward passes before the update of step "
                        f"{self.step}, b {self._passes[1]}")  # fmt: skip
        forward = int(run.forward_row[self._row])
        if forward >= 0:
            ops = np.flatnonzero(self._half.graph.rows == forward)
            said += [f"it is the gradient of {where(self._half, int(ops[0]))}"] if len(ops) else []
        name, place = self._accumulated(), self._place
        runs = [half.graph.run for half in (self._found.a, self._found.b)]
        rows = self._found.a.graph.rows, self._found.b.graph.rows
        alone = min(place.op_a, place.op_b) < 0 or (
            runs[0].name(int(rows[0][place.op_a])) != runs[1].name(int(rows[1][place.op_b]))
        )
        if name and alone and place.kind != MISSING:
            said.append(f"b adds to the gradient of {name} that an earlier backward pass left: it "
                        "was not cleared")  # fmt: skip
        elif name and place.kind == MISSING:
            said.append(f"b does not add to the gradient of {name}: it was cleared, or there is "
                        "none")  # fmt: skip
        return said

    def _accumulated(self) -> str:
        """Return the name of the parameter to whose earlier gradient the op adds, else nothing."""
        graph = self._half.graph
        c = graph.run.columns
        number = int(c.number[self._row])
        at = int(c.value_name[-2 - number]) if number <= -2 else -1
        if at < 0:
            return ""
        name = c.value_names[at]
        held = [one[name] for one in self._own.gradients if name in one]
        before = {int(c.storage[v]) for v in held if graph.maker[v] < self._op}
        adds = any(int(c.storage[v]) in before for v in graph.takes[self._op])
        return name if adds else ""

    def _settings(self) -> list[str]:
        """Say which settings of the optimizers differ, and from which step on."""
        a, b = self._found.iterations
        changes = different_optimizers(a, b)
        known = [number for number in changes if number <= self.iteration]
        if not known:
            return []
        number = max(known)
        said = changes[number]
        first = next(n for n in sorted(changes) if said[0] in changes[n])
        since = f" from step {self.labels[first]} on" if first else ""
        return [f"{one}{since}" for one in said]


def _same_call(of: Iterations, row: int, other: Iterations) -> int:
    """Return the call of the other run of the same module in the same iteration, -1 for none."""
    path, count = of.graph.run.module_path(row), int(of.call_in_pass[row])
    mine = [n for n, one in enumerate(of.passes) if one.iteration == _iteration(of, row)]
    theirs = [n for n, one in enumerate(other.passes) if one.iteration == _iteration(of, row)]
    number = int(of.pass_of[row])
    if number not in mine or mine.index(number) >= len(theirs):
        return -1
    wanted = theirs[mine.index(number)]
    run = other.graph.run
    rows = np.flatnonzero((run.columns.kind == MODULE) & (other.pass_of == wanted))
    rows = rows[other.call_in_pass[rows] == count]
    return next((one for one in rows.tolist() if run.module_path(one) == path), -1)


def _iteration(of: Iterations, row: int) -> int:
    number = int(of.pass_of[row])
    return of.passes[number].iteration if number >= 0 else -1

"""One step back from a value: the event that made it, and which values its dimension came from.

Input: a `Run`, a value and a part of a dimension. Output: a `Made`, by `analysis.shape.rules`.
`analysis.shape_chain` follows the steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from clew.analysis.shape.call import CARRIED, CREATED, NOT_KNOWN, OpCall, Part, Shape, Step
from clew.analysis.shape.module_calls import explain_module
from clew.analysis.shape.recurrent import CELLS, LAYERS, explain_recurrent, recurrent_weights
from clew.analysis.shape.regrouping import RULES as REGROUPING
from clew.analysis.shape.regrouping import ones_beside
from clew.analysis.shape.rules import explain
from clew.events.columns import OUT
from clew.events.op_names import UNINITIALISED, bare_op
from clew.events.vocabulary import MODULE
from clew.run.event import Event
from clew.run.run import Run
from clew.run.value import Value

# A part of a dimension of a value, by the number of the value.
Place: TypeAlias = tuple[int, Part]

# How far to look for a dimension of 1 that merging with another one has hidden.
_HIDDEN_OPS = 8
# How far to look where a dimension leads.
_MOST_OPS = 20_000


@dataclass(frozen=True, slots=True)
class Made:
    """A step through the event of a row, the values it leads to, and others it could lead to."""

    row: int
    step: Step
    sources: tuple[Place, ...] = ()
    others: tuple[Place, ...] = ()


def shape_of(run: Run, value: int) -> Shape:
    """Return the shape of a value, empty if it has none."""
    return run.metas[int(run.columns.meta[value])].shape or ()


class ShapeSteps:
    """The steps of a run, each made once."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._first: dict[Place, Made | None] = {}
        self._outside: dict[Place, bool] = {}

    def made(self, value: int, part: Part) -> Made | None:
        """Step through the event that made a value; None if no recorded event did.

        Of several tensors with the same dimension, one that leads to a tensor from outside says
        more than one that was created with this size: a state of zeros, a token expanded to a
        batch.
        """
        made = self._made_first(value, part)
        if made is None or not made.others or self._leads_outside(*made.sources[0]):
            return made
        better = [place for place in made.others if self._leads_outside(*place)]
        return replace(made, sources=(better[0],)) if better else made

    def _leads_outside(self, value: int, part: Part) -> bool:
        """Return whether a dimension can be followed to an input or parameter, or to several."""
        above: dict[Place, Place | None] = {(value, part): None}
        pending: list[Place] = [(value, part)]
        while pending and len(above) < _MOST_OPS:
            place = pending.pop()
            made = self._made_first(*place)
            if self._outside.get(place) or made is None or len(made.sources) > 1:
                on_the_way: Place | None = place
                while on_the_way is not None:
                    self._outside[on_the_way] = True
                    on_the_way = above[on_the_way]
                return True
            if place not in self._outside:
                following = [to for to in (*made.sources, *made.others) if to not in above]
                above.update(dict.fromkeys(following, place))
                pending += reversed(following)
        self._outside.update(dict.fromkeys(above, False))
        return False

    def _made_first(self, value: int, part: Part) -> Made | None:
        if (value, part) not in self._first:
            self._first[value, part] = self._make(value, part)
        return self._first[value, part]

    def _make(self, value: int, part: Part) -> Made | None:
        row = self._run.producer_row(value)
        if row < 0:
            return None
        result = self._result_path(row, value)
        if result is None:
            earlier = self._earlier_version(value, row)
            if earlier is None:
                return Made(row, NOT_KNOWN)
            return Made(row, Step(CARRIED, "written to"), ((earlier, part),))
        recurrent = self._recurrent(row, value, part)
        if recurrent is not None:
            return recurrent
        if bare_op(self._run.name(row)) in UNINITIALISED:
            row, result = self._around(row, value, result)
        made = self._explained(row, value, result, part)
        if made.step.how != CREATED or not made.sources:
            return made
        ones = ones_beside(shape_of(self._run, value), part)
        hidden = self._hidden_one(*made.sources[0], ones.index(part.dim))
        if hidden is None:
            return Made(row, made.step)
        return Made(row, Step(CARRIED), (hidden,))

    def _recurrent(self, row: int, value: int, part: Part) -> Made | None:
        """Step over the call of a recurrent layer or cell that returned a value, if one did."""
        around = int(self._run.owner_row[row])
        cls = "" if around < 0 else self._run.name(around)
        result = self._result_path(around, value) if cls in (*LAYERS, *CELLS) else None
        if result is None:
            return None
        event = self._run.event(around)
        given = {path: v.number for path, v in event.inputs.items()}
        given.update(self._weights(f"{event.module}." if event.module else "", event))
        shapes = {path: shape_of(self._run, number) for path, number in given.items()}
        call = OpCall(cls, shapes, {}, shape_of(self._run, value), result)
        step = explain_recurrent(call, part, event.attributes)
        return None if step == NOT_KNOWN else Made(around, step, _numbered(given, step.sources))

    def _weights(self, path: str, call: Event) -> dict[str, int]:
        """Return the recurrent weights of a call that ops took, by their names in the module."""
        c = self._run.columns
        found = {}
        for name in recurrent_weights(call.name, call.attributes):
            if path + name in c.value_names:
                numbers = np.flatnonzero(c.value_name == c.value_names.index(path + name))
                if len(numbers):
                    found[name] = int(numbers[0])
        return found

    def _explained(self, row: int, value: int, result: str, part: Part) -> Made:
        arguments = self._run.arguments(row)
        tensors = {path: arg for path, arg in arguments.items() if isinstance(arg, Value)}
        name = self._run.name(row)
        call = OpCall(
            _rule_name(name),
            {path: arg.shape or () for path, arg in tensors.items()},
            {path: arg for path, arg in arguments.items() if path not in tensors},
            shape_of(self._run, value),
            result,
            name.rpartition(".")[2],
            frozenset(p for p, arg in tensors.items() if arg.dtype in ("bool", "uint8")),
        )
        try:
            if self._run.columns.kind[row] == MODULE:
                step = explain_module(call, part, self._run.module_path(row) or "")
            else:
                step = explain(call, part)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            # An op of the same name with other arguments, or a damaged trace.
            step = NOT_KNOWN
        numbers = {path: value.number for path, value in tensors.items()}
        return Made(row, step, _numbered(numbers, step.sources), _numbered(numbers, step.others))

    def _result_path(self, row: int, value: int) -> str | None:
        """Return the path of a value among the results of an event, None if it is not there.

        A custom autograd function returns its result as another tensor on the same memory.
        """
        c = self._run.columns
        found = [(str(leaf.path), n) for leaf, n in self._run.leaf_values(row) if leaf.role == OUT]
        same = [path for path, n in found if n == value]
        same += [
            path
            for path, n in found
            if (c.storage[n], c.meta[n]) == (c.storage[value], c.meta[value])
        ]
        return same[0] if same else None

    def _around(self, row: int, value: int, result: str) -> tuple[int, str]:
        """Return the call that asked for empty memory to return it as its own result.

        Some kernels, `max_pool1d` for one, call no other op that the engine sees.
        """
        around = int(self._run.composite_row[row])
        while around >= 0:
            path = self._result_path(around, value)
            if path is not None:
                return around, path
            around = int(self._run.composite_row[around])
        return row, result

    def _earlier_version(self, value: int, row: int) -> int | None:
        """Return the tensor as it was before an op wrote to its memory through another one."""
        c = self._run.columns
        same = (c.storage == c.storage[value]) & (c.meta == c.meta[value])
        older = np.flatnonzero(same & (self._run.producers < row))
        older = older[older != value]
        return int(older[np.argmax(self._run.producers[older])]) if len(older) else None

    def _hidden_one(self, value: int, part: Part, index: int) -> tuple[int, Part] | None:
        """Find a dimension of 1 that a `view` before has merged into another one.

        Of several beside each other it is the one of an index.
        """
        for _ in range(_HIDDEN_OPS):
            row = self._run.producer_row(value)
            result = None if row < 0 else self._result_path(row, value)
            if result is None:
                return None
            made = self._explained(row, value, result, part)
            if made.step.how != CARRIED or len(made.sources) != 1:
                return None
            value, part = made.sources[0]
            ones = ones_beside(shape_of(self._run, value), part)
            if index < len(ones) and _rule_name(self._run.name(row)) in REGROUPING:
                return value, Part(ones[index], 1)
        return None


def _rule_name(name: str) -> str:
    """Return the name that the rule of an op has; ops of other libraries keep theirs."""
    return bare_op(name).rstrip("_") if name.startswith("aten.") else name


def _numbered(numbers: Mapping[str, int], places: Iterable[tuple[str, Part]]) -> tuple[Place, ...]:
    return tuple((numbers[path], part) for path, part in places if path in numbers)

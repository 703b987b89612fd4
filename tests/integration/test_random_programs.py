"""Random programs of views, writes and copies: the trace tells what the program itself saw.

A dispatch mode of the test's own stands between the program and Clew. It copies every tensor on
the spot and keeps its own account of who made and who last wrote what.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import clew
from clew.errors import NotRecorded
from clew.torch_compat import without_modes
from tests.outcomes import faults


def row(x: Tensor) -> Tensor:
    return x[0] if x.dim() else x


def write_row(x: Tensor, y: Tensor) -> Tensor:
    if x.dim():
        x[0] = 7.0
    return x


def write_where(x: Tensor, y: Tensor) -> Tensor:
    x[x > 1] = 2.0
    return x


def add_to_both(x: Tensor, y: Tensor) -> None:
    # Refused at the second tensor, it would have written to the first.
    if x is not y and 0 not in (*x.stride(), *y.stride()):
        torch._foreach_add_([x, y], 1)


STEPS: list[Callable[[Tensor, Tensor], Any]] = [
    lambda x, y: x + 1,
    lambda x, y: x.clone(),
    lambda x, y: torch.cat([x.reshape(-1), y.reshape(-1)]),
    lambda x, y: torch.stack([x.sum(), y.sum()]),
    lambda x, y: x.flatten().add(y.sum()),
    # views
    lambda x, y: row(x),
    lambda x, y: x[..., ::2] if x.dim() else x,
    lambda x, y: x.reshape(-1),
    lambda x, y: x.transpose(0, -1) if x.dim() > 1 else x.unsqueeze(0),
    lambda x, y: x.unsqueeze(0).expand(2, *x.shape),
    lambda x, y: list(x.unbind(0)) if x.dim() else x,
    lambda x, y: list(x.chunk(2)) if x.dim() else x,
    lambda x, y: x.detach(),
    lambda x, y: x.view_as(x),
    lambda x, y: x.contiguous(),
    lambda x, y: x[x > 0],
    # writes
    lambda x, y: x.add_(1),
    lambda x, y: x.mul_(2),
    lambda x, y: x.zero_(),
    lambda x, y: x.copy_(y.sum()),
    lambda x, y: x.relu_(),
    add_to_both,
    lambda x, y: torch.neg(x, out=torch.empty(0)),
    write_row,
    write_where,
]


class Witness(TorchDispatchMode):
    """Sees every op before Clew does and writes down what it should have seen."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.inputs: list[list[Tensor]] = []
        self.outputs: list[list[Tensor]] = []
        # The ops that made or last wrote to each input: to its elements, and to its memory.
        self.producers: list[list[tuple[int, int]]] = []
        self._made: dict[int, int] = {}
        # By memory: which op wrote to which elements.
        self._written: dict[int, list[tuple[int, set[int]]]] = {}
        # Nothing may die, or addresses would be used again.
        self._keep: list[Tensor] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = tensors([args, kwargs])
        with without_modes():
            copies = [x.clone() for x in given]
        producers = [self._producer(x) for x in given]
        number = len(self.names)
        self.names.append(str(func))
        self.inputs.append(copies)
        self.producers.append(producers)
        self.outputs.append([])
        # An op that fails may have written before it did.
        for x in self._targets(func, args, kwargs):
            writes = self._written.setdefault(x.untyped_storage()._cdata, [])
            writes.append((number, elements(x)))
        self._keep += given
        out = func(*args, **kwargs)
        for x in tensors(out):
            if not any(x is y for y in given):
                self._made[id(x)] = number
        self._keep += tensors(out)
        with without_modes():
            self.outputs[number] = [x.clone() for x in tensors(out)]
        return out

    def _targets(self, func: Any, args: Any, kwargs: Any) -> list[Tensor]:
        if func.__name__.startswith("neg.out"):
            return [kwargs["out"]]
        return tensors(args[0]) if func._schema.name.endswith("_") else []

    def _producer(self, x: Tensor) -> tuple[int, int]:
        made = self._made.get(id(x), -1)
        writes = self._written.get(x.untyped_storage()._cdata, [])
        mine = elements(x)
        to_elements = [number for number, written in writes if written & mine]
        return max([made, *to_elements]), max([made, *(number for number, _ in writes)])


def elements(x: Tensor) -> set[int]:
    """Where in its memory the elements of a tensor lie."""
    with without_modes():
        size = x.untyped_storage().nbytes() // x.element_size()
        return set(
            torch.arange(size)
            .as_strided(x.shape, x.stride(), x.storage_offset())
            .flatten()
            .tolist()
        )


def tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for item in value for t in tensors(item)] if isinstance(value, (list, tuple)) else []


Program = list[tuple[int, int, int]]

programs: st.SearchStrategy[Program] = st.lists(
    st.tuples(st.integers(0, len(STEPS) - 1), st.integers(0, 100), st.integers(0, 100)),
    min_size=1,
    max_size=10,
)


def run(program: Program, pool: list[Tensor]) -> None:
    for step, first, second in program:
        x, y = pool[first % len(pool)], pool[second % len(pool)]
        # Writes to tensors whose elements overlap are refused, or warned of; some are empty.
        with contextlib.suppress(RuntimeError, UserWarning, IndexError):
            made = STEPS[step](x, y)
            pool += [t for t in tensors(made) if not any(t is p for p in pool)]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(program=programs, gradients=st.booleans())
def test_the_trace_tells_what_the_program_saw(program: Program, gradients: bool) -> None:
    # A fixture would be the same for all examples, which hypothesis does not allow.
    engine = os.environ["CLEW_ENGINE"]
    outside = [torch.arange(6.0).reshape(2, 3), torch.tensor([1.0, -2.0])]
    outside.append(outside[0][1])
    with torch.set_grad_enabled(gradients), clew.trace(values="full") as t, Witness() as witness:
        run(program, [*outside, torch.ones(2, 2)])
    assert faults(t) == []
    seen = list(t.ops)
    assert [event.name for event in seen] == witness.names
    for number, event in enumerate(seen):
        made_by = [value.producer for value in event.inputs.values()]
        told = [-1 if producer is None else seen.index(producer) for producer in made_by]
        for known, (to_elements, to_memory) in zip(told, witness.producers[number], strict=True):
            if engine == "python":
                assert known == to_memory, (number, event)
                continue
            # A number that is written has become a tensor where no mode sees it.
            if known >= 0 and seen[known].name == "aten.lift_fresh.default":
                to_memory = known
            # After a write to other elements, a view is for the native engine what it was before.
            assert to_elements <= known <= to_memory, (number, event)
        outputs = witness.outputs[number]
        if engine == "native" and event.name == "aten.empty.memory_format":
            outputs = []  # whose elements are arbitrary, and not kept
        for value, copy in zip(event.outputs.values(), outputs, strict=False):
            assert torch.equal(value.tensor(), copy), (number, event)
        for value, copy in zip(event.inputs.values(), witness.inputs[number], strict=True):
            assert value.shape == tuple(copy.shape)
            # Missing, never wrong: torch counts no version where a foreach op writes, so a view of
            # what it wrote is not known to need a new copy.
            with contextlib.suppress(NotRecorded):
                assert torch.equal(value.tensor(), copy), (number, event)

"""Figures about memory that `t.memory()` gives, beside those that are counted without Clew.

Each program runs twice from the same seed: once under a dispatch mode that holds weak references to
every storage it meets and adds up those that are alive after each op, and once recorded. Bytes of
parameters, gradients, buffers and optimizer state are added up from the objects themselves. What is
saved for backward is what autograd gives to hooks on saved tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import clew
from accuracy.memory_programs import PROGRAMS, Program
from clew.analysis.memory.memory_model import Memory

# The part by which a figure of the native engine may differ: without a dispatch mode, torch runs a
# few other ops, and memory that few ops use is looked at in turn.
TOLERANCE = {"python": 0.0, "native": 0.01}


@dataclass(frozen=True)
class Figure:
    """A number of bytes: what it is of, as counted without Clew, and as Clew gives it."""

    name: str
    engine: str
    expected: int
    answered: int

    @property
    def is_right(self) -> bool:
        """Return whether both agree."""
        return abs(self.answered - self.expected) <= TOLERANCE[self.engine] * self.expected


class Counted(TorchDispatchMode):
    """Counts the bytes of storages that are alive after each op."""

    def __init__(self, met: list[Tensor]) -> None:
        super().__init__()
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = self.step_peak = 0
        self.step_peaks: list[int] = []
        self._meet(met)
        self._unmet = dict(self._alive)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **kwargs or {})
        leaves = tree_leaves((args, kwargs, out))
        self._meet(leaves)
        for value in leaves:
            if isinstance(value, Tensor) and value.layout is torch.strided:
                self._unmet.pop(value.untyped_storage()._cdata, None)
        now = self.alive()
        self.peak, self.step_peak = max(self.peak, now), max(self.step_peak, now)
        return out

    def _meet(self, values: list[Any]) -> None:
        for value in values:
            if isinstance(value, Tensor) and value.layout is torch.strided:
                storage = value.untyped_storage()
                known = self._alive.get(storage._cdata)
                if known is None or known[0].expired():
                    self._alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())

    def alive(self) -> int:
        """Return the bytes that are alive now."""
        self._alive = {at: one for at, one in self._alive.items() if not one[0].expired()}
        return sum(size for _, size in self._alive.values())

    @property
    def unmet(self) -> int:
        """Return the bytes of parameters and buffers that no op met."""
        return sum(size for _, size in self._unmet.values())

    def step(self) -> None:
        """End a step."""
        self.step_peaks.append(self.step_peak)
        self.step_peak = 0


def figures(engine: str, names: tuple[str, ...] = tuple(PROGRAMS)) -> Iterator[Figure]:
    """Compare the memory of each program."""
    for name in names:
        program = _made(name)
        model = program.model
        counted = Counted([*model.parameters(), *model.buffers()])
        with counted:
            program.run(counted.step)
        program = _made(name)
        with clew.trace(program.model, engine=engine) as trace:
            program.run(trace.step)
        memory = trace.memory()
        compared = [
            *_compared(program, counted, memory, trace.ops[-1]),
            *_saved(name, trace, memory),
        ]
        for what, expected, answered in compared:
            yield Figure(f"{name}: {what}", engine, expected, answered)


def _made(name: str) -> Program:
    torch.manual_seed(0)
    return PROGRAMS[name]()


def _compared(
    program: Program, counted: Counted, memory: Memory, last_op: Any
) -> Iterator[tuple[str, int, int]]:
    (device,) = memory.devices
    # Clew cannot count what meets no op: the counter of a batch norm in inference.
    unmet = counted.unmet
    yield "peak", counted.peak - unmet, device.peak.bytes
    for number, (expected, step) in enumerate(zip(counted.step_peaks, device.steps, strict=False)):
        yield f"peak of step {number}", expected - unmet, step.peak
    kinds = {group.name: group.bytes for group in memory.at(device.steps[-1].step).kinds}
    model = program.model
    yield "parameters", _bytes(model.parameters()), kinds.get("parameters", 0)
    yield "buffers", _bytes(model.buffers()) - unmet, kinds.get("buffers", 0)
    if program.optimizer is not None:
        state = tree_leaves(list(program.optimizer.state.values()))
        yield "optimizer state", _bytes(state), kinds.get("optimizer state", 0)

    gradients = [one.grad for one in model.parameters() if one.grad is not None]
    if gradients and all(one.layout is torch.strided for one in gradients):
        last = {group.name: group.bytes for group in memory.at(last_op).kinds}
        yield "gradients at the end", _bytes(gradients), last.get("gradients", 0)


def _saved(name: str, trace: clew.Trace, memory: Memory) -> Iterator[tuple[str, int, int]]:
    """Compare what is saved when the first backward pass begins with what autograd's hooks get."""
    ops = list(trace.ops)
    first = next((at for at, op in enumerate(ops) if op.phase in ("backward", "recompute")), None)
    if first is None:
        return
    program = _made(name)
    held: dict[int, Any] = {}
    own = {*map(_address, program.model.parameters()), *map(_address, program.model.buffers())}

    def pack(tensor: Tensor) -> Tensor:
        held[_address(tensor)] = tensor.untyped_storage()
        return tensor

    def unpack(tensor: Tensor) -> Tensor:
        raise _BackwardBegins

    with suppress(_BackwardBegins), torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        program.run(lambda: None)
    expected = sum(one.nbytes() for at, one in held.items() if at not in own)
    kinds = {group.name: group.bytes for group in memory.at(ops[first - 1]).kinds}
    yield "saved for backward", expected, kinds.get("saved for backward", 0)


class _BackwardBegins(Exception):
    pass


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _bytes(values: Any) -> int:
    tensors = [value for value in values if isinstance(value, Tensor)]
    storages = {one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in tensors}
    return sum(storages.values())


def report(engine: str, found: list[Figure]) -> str:
    """Write how many figures agree, and below that each that does not."""
    wrong = [one for one in found if not one.is_right]
    rate = f"{len(found) - len(wrong)} of {len(found)} figures agree"
    misses = [f"  {one.name}: {one.expected:,} bytes; answered {one.answered:,}" for one in wrong]
    return "\n".join([f"memory, {engine} engine: {rate}", *misses])

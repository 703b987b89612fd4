"""Compute statistics of tensors on an accelerator without waiting for it.

Comes in: a live tensor. Goes out: a function that returns its statistics. The reductions run on
the device, by torch ops, into rows of a buffer, which is copied to the host once for all rows that
are read together. There is no digest, which would need the elements. Call `measure` where autograd
and dispatch modes are off.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from math import inf, nan
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from clew.events.statistics import Statistics
from clew.torch_compat import unobserved, without_modes

# Rows of a buffer; a tensor takes one for each block of so many elements, as the reductions need
# memory of the device for masks and for elements in a wider type.
_ROWS = 1024
_BLOCK = 1 << 22


class Block(NamedTuple):
    """What is reduced of a block of elements; the names are the columns of a buffer.

    `lowest` and `highest` are of all elements; `low`, `high` and what follows `zeros` of the finite
    ones.
    """

    lowest: Any
    highest: Any
    low: Any
    high: Any
    nan: Any
    inf: Any
    zeros: Any
    finite: Any
    total: Any
    squares: Any
    apart: Any  # the squares of differences from the mean


class RowBuffer:
    """Rows of numbers on a device, with a copy of those that were read."""

    def __init__(self, device: torch.device) -> None:
        # Apple's GPUs have no float64.
        kind = torch.float32 if device.type == "mps" else torch.float64
        self._rows = torch.empty((_ROWS, len(Block._fields)), dtype=kind, device=device)
        self._lock = threading.Lock()
        self._copy = np.empty((0, len(Block._fields)))
        self._written = done_after(device)
        self.used = 0

    @property
    def kind(self) -> torch.dtype:
        """Return the type that elements are reduced in."""
        return self._rows.dtype

    def append(self, block: Block) -> int:
        """Write a row on the device; return its index."""
        torch.stack([number.to(self.kind) for number in block], out=self._rows[self.used])
        self._written = done_after(self._rows.device)
        self.used += 1
        return self.used - 1

    def row(self, index: int) -> Block:
        """Return a row, copying all that were written by now if it was not copied yet."""
        with self._lock:
            if index >= len(self._copy):
                used = self.used
                self._written()
                with unobserved(), torch.no_grad(), without_modes():
                    self._copy = self._rows[:used].cpu().numpy().astype(np.float64)
            return Block(*self._copy[index].tolist())


class DeviceStatistics:
    """The statistics of the tensors of one recording that are on accelerators."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buffers: dict[torch.device, RowBuffer] = {}

    def measure(self, elements: Tensor) -> Callable[[], Statistics]:
        """Start to reduce an ordinary tensor; return a function that returns its statistics."""
        count = elements.numel()
        if not count:
            return lambda: {"count": 0, "nan": 0, "inf": 0, "zeros": 0}
        places: list[tuple[RowBuffer, int]] = []
        for block in _in_memory_order(elements).split(_BLOCK):
            with self._lock:
                buffer = self._buffer(elements.device)
                places.append((buffer, buffer.append(_reduced(block, buffer.kind))))
        return lambda: _statistics(count, [buffer.row(index) for buffer, index in places])

    def _buffer(self, device: torch.device) -> RowBuffer:
        buffer = self._buffers.get(device)
        if buffer is None or buffer.used == _ROWS:
            buffer = self._buffers[device] = RowBuffer(device)
        return buffer


def done_after(device: torch.device) -> Callable[[], None]:
    """Return a function that waits until the device has done what it was given so far."""
    if device.type in ("cpu", "meta"):
        return lambda: None
    event = torch.Event(device)
    event.record()
    return event.synchronize


def _in_memory_order(elements: Tensor) -> Tensor:
    """Return the elements in one dimension, in the order that needs no copy if there is one."""
    order = sorted(range(elements.dim()), key=elements.stride, reverse=True)
    return elements.permute(order).reshape(-1)


def _reduced(block: Tensor, kind: torch.dtype) -> Block:
    if block.is_complex():
        pairs = torch.view_as_real(block)
        zeros = (pairs == 0).all(dim=-1).sum()
        numbers = pairs.reshape(-1).to(kind)
    else:
        numbers = block.to(kind)
        zeros = (numbers == 0).sum()
    is_finite = torch.isfinite(numbers)
    finite = is_finite.sum()
    known = torch.where(is_finite, numbers, 0)
    total = known.sum()
    apart = torch.where(is_finite, numbers - total / finite, 0)
    return Block(
        lowest=numbers.amin(),
        highest=numbers.amax(),
        low=torch.where(is_finite, numbers, inf).amin(),
        high=torch.where(is_finite, numbers, -inf).amax(),
        nan=torch.isnan(numbers).sum(),
        inf=torch.isinf(numbers).sum(),
        zeros=zeros,
        finite=finite,
        total=total,
        squares=(known * known).sum(),
        apart=(apart * apart).sum(),
    )


def _statistics(count: int, blocks: list[Block]) -> Statistics:
    """Return the statistics of elements from those of their blocks."""
    counts = {name: int(sum(getattr(b, name) for b in blocks)) for name in ("nan", "inf", "zeros")}
    found: Statistics = {"count": count, **_moments(blocks), **counts}
    if counts["inf"] and not counts["nan"]:
        found["lowest"] = min(block.lowest for block in blocks)
        found["highest"] = max(block.highest for block in blocks)
    return found


def _moments(blocks: list[Block]) -> Statistics:
    blocks = [block for block in blocks if block.finite]
    finite = sum(block.finite for block in blocks)
    if not finite:
        return dict.fromkeys(("min", "max", "mean", "std", "norm"), nan)
    mean = sum(block.total for block in blocks) / finite
    # Of each block about its own mean, and of the means about that of all.
    apart = sum(
        block.apart + block.finite * (block.total / block.finite - mean) ** 2 for block in blocks
    )
    return {
        "min": min(block.low for block in blocks),
        "max": max(block.high for block in blocks),
        "mean": mean,
        "std": (apart / finite) ** 0.5,
        "norm": sum(block.squares for block in blocks) ** 0.5,
    }

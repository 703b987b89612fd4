"""Compute fingerprints of tensors: sums that equal tensors share in any layout.

Comes in: a live tensor, or the bytes of a copy. Goes out: the packed form that
`clew.events.fingerprint` reads, or for an accelerator a function that returns it. Read a live
tensor only where autograd and dispatch modes are off; a copy can be read on any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clew.events.fingerprint import (
    MOST_AXES,
    SUMS,
    Floats,
    bins_of,
    block_of,
    packed_fingerprint,
)
from clew.keep.device_statistics import done_after
from clew.keep.tensor_statistics import memory_of, native, numbers_of_bytes
from clew.torch_compat import unobserved, without_modes

# Fingerprints of parameters with the digests of their elements, by address, dtype and shape.
_parameters: dict[tuple[Any, ...], tuple[object, bytes]] = {}
_MOST_PARAMETERS = 4096
# Elements that are widened at a time on a device, and fingerprints that are copied together.
_TILE = 1 << 22
_MOST_PENDING = 1024


def fingerprint(elements: Tensor) -> bytes:
    """Compute the fingerprint of an ordinary strided tensor in memory."""
    found = native()
    element = None if found is None else found.elements.get(elements.dtype)
    if found is not None and element is not None:
        packed: bytes = found.engine.fingerprint_view(
            elements.data_ptr(), element, elements.shape, elements.stride()
        )
        return packed
    flat = elements.contiguous()
    return fingerprint_of_bytes(memory_of(flat), elements.dtype, tuple(elements.shape))


def fingerprint_of_bytes(data: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> bytes:
    """Compute the fingerprint of elements in row-major order from their bytes."""
    found = native()
    element = None if found is None else found.elements.get(dtype)
    if found is not None and element is not None:
        data = np.frombuffer(data, np.uint8)
        packed: bytes = found.engine.fingerprint_view(
            data.ctypes.data, element, shape, contiguous_strides(shape)
        )
        return packed
    return packed_fingerprint(numbers_of_bytes(data, dtype, shape))


def contiguous_strides(shape: tuple[int, ...]) -> list[int]:
    """Return the strides of elements in row-major order."""
    return [prod(shape[axis + 1 :]) for axis in range(len(shape))]


def fingerprint_of_parameter(tensor: Tensor, digest: object) -> bytes:
    """Compute the fingerprint of a plain tensor that may have been seen with the same digest."""
    key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape))
    known = _parameters.get(key)
    if known is not None and known[0] == digest:
        return known[1]
    found = fingerprint_of_bytes(memory_of(tensor), tensor.dtype, tuple(tensor.shape))
    if len(_parameters) >= _MOST_PARAMETERS:
        _parameters.clear()
    _parameters[key] = (digest, found)
    return found


class DeviceFingerprints:
    """The fingerprints of the tensors of one recording that are on accelerators."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: dict[torch.device, _Pending] = {}

    def measure(self, elements: Tensor) -> Callable[[], bytes]:
        """Start to reduce an ordinary tensor; return a function that returns its fingerprint."""
        shape = tuple(elements.shape)
        if elements.is_complex():
            elements = torch.view_as_real(elements)
            shape = tuple(elements.shape)
        sums = _reduced(elements)
        with self._lock:
            pending = self._pending.get(elements.device)
            if pending is None or pending.is_full:
                pending = self._pending[elements.device] = _Pending()
            at = pending.append(sums)
        return lambda: (
            np.concatenate([[len(shape)], shape, pending.read(at)]).astype("<f8").tobytes()
        )


class _Pending:
    """Sums of several tensors, on one device, that are copied to the host together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: list[Tensor] = []
        self._ends: list[int] = []
        self._copy: Floats | None = None
        self._done: Callable[[], None] = lambda: None

    @property
    def is_full(self) -> bool:
        """Return whether no more sums can be added, as they were copied or are many."""
        return self._copy is not None or len(self._sums) >= _MOST_PENDING

    def append(self, sums: Tensor) -> int:
        """Add the sums of a tensor; return their index."""
        with self._lock:
            self._sums.append(sums)
            self._ends.append((self._ends[-1] if self._ends else 0) + len(sums))
            self._done = done_after(sums.device)
            return len(self._sums) - 1

    def read(self, index: int) -> Floats:
        """Return the sums of a tensor, copying all of them the first time."""
        with self._lock:
            if self._copy is None:
                self._done()
                with unobserved(), torch.no_grad(), without_modes():
                    self._copy = torch.cat(self._sums).cpu().numpy().astype(np.float64)
                self._sums = [self._sums[0]] * len(self._sums)
            start = self._ends[index - 1] if index else 0
            return self._copy[start : self._ends[index]]


@torch.no_grad()
def _reduced(numbers: Tensor) -> Tensor:
    """Return the four sums and those along each axis, on the device of the numbers."""
    # Apple's GPUs have no float64.
    kind = torch.float32 if numbers.device.type == "mps" else torch.float64
    shape = tuple(numbers.shape)
    last = shape[-1] if shape else 1
    rows = numbers.reshape(prod(shape[:-1]), last)
    zeros = partial(torch.zeros, dtype=kind, device=numbers.device)
    along_rows = zeros(len(rows))
    along_last = zeros(bins_of(last))
    sums = zeros(len(SUMS))
    for row, column, part in _tiles(rows, block_of(last)):
        tile = part.to(kind)
        tile = torch.where(torch.isfinite(tile), tile, 0)
        along_rows[row : row + len(tile)] += tile.sum(dim=1)
        first, bins = column // block_of(last), _binned(tile.sum(dim=0), block_of(last))
        along_last[first : first + len(bins)] += bins
        positive = tile.abs()
        powers = (tile, positive, tile * tile, positive * tile * tile)
        sums += torch.stack([power.sum() for power in powers])
    marginals = [along_last] if shape else []
    rest = along_rows.reshape(shape[:-1])
    while rest.dim() and len(marginals) < MOST_AXES:
        line = rest.reshape(prod(rest.shape[:-1]), rest.shape[-1]).sum(dim=0)
        marginals.insert(0, _binned(line, block_of(len(line))))
        rest = rest.sum(dim=-1)
    return torch.cat([sums, *marginals])


def _tiles(rows: Tensor, block: int) -> Iterator[tuple[int, int, Tensor]]:
    """Yield stretches of rows with the row and column they begin at."""
    count, wide = rows.shape
    height, width = max(_TILE // max(wide, 1), 1), max(_TILE // block, 1) * block
    for row in range(0, count, height):
        for column in range(0, wide, width):
            yield row, column, rows[row : row + height, column : column + width]


def _binned(line: Tensor, block: int) -> Tensor:
    """Add up the numbers of each block."""
    bins = -(-len(line) // block)
    padded = torch.nn.functional.pad(line, (0, bins * block - len(line)))
    return padded.reshape(bins, block).sum(dim=1)

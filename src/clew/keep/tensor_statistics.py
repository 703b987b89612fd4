"""Compute statistics and digest of a tensor's elements, in as few passes over them as possible.

Comes in: a live tensor, or the bytes of a copy. Goes out: a dict. Read a live tensor only where
autograd and dispatch modes are off; a copy can be read on any thread. The native engine reads the
elements once, where it is built; without it NumPy does, several times.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from clew.events.digest import RunningChecksum, checksum
from clew.events.statistics import Numbers, Statistics, moments
from clew.native.loading import wanted
from clew.torch_compat import unobserved, without_modes

_BYTES = np.dtype(np.uint8)
# Dtypes whose bytes NumPy can read directly; a complex number is two floats, one after the other.
_AS_THEY_ARE: dict[torch.dtype, np.dtype[Any]] = {
    torch.float32: np.dtype(np.float32), torch.complex64: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64), torch.complex128: np.dtype(np.float64),
}  # fmt: skip
_INTEGRAL: dict[torch.dtype, np.dtype[Any]] = {
    kind: np.dtype(str(kind).removeprefix("torch."))
    for kind in (
        torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
        torch.uint16, torch.uint32, torch.uint64,
    )
}  # fmt: skip
# Statistics of parameters with their versions, by address, bytes and dtype. It references no
# tensor: even a weak reference would keep torch from swapping it.
_parameters: dict[tuple[int, int, torch.dtype], tuple[int | None, Statistics]] = {}
_MOST_PARAMETERS = 4096
_NOTHING: Statistics = {"count": 0, "nan": 0, "inf": 0, "zeros": 0, "digest": f"{0:016x}"}


class Native(NamedTuple):
    """The native engine, and the numbers it has for dtypes."""

    engine: ModuleType
    elements: dict[torch.dtype, int]


@functools.cache
def native() -> Native | None:
    """Return what measures elements natively, None if it is not built."""
    engine = wanted().module
    if engine is None:
        return None
    return Native(engine, {getattr(torch, name): n for name, n in engine.elements().items()})


def statistics(tensor: Tensor, digest: bool = True) -> Statistics:
    """Compute minimum, maximum, mean, deviation, norm, and counts of NaN, Inf and zeros.

    The tensor is an ordinary strided one, whose elements are what its memory holds.
    """
    found = native()
    element = None if found is None else found.elements.get(tensor.dtype)
    if found is not None and element is not None and tensor.is_cpu:
        measured: Statistics = found.engine.measure_view(
            tensor.data_ptr(), element, tensor.shape, tensor.stride(), digest
        )
        return measured
    if not digest and not tensor.is_contiguous():
        # Without a digest the order does not matter, and the order of the memory needs no copy.
        tensor = tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
    flat = tensor.contiguous().cpu()
    return statistics_of_bytes(memory_of(flat), tensor.dtype, digest)


def statistics_of_bytes(
    data: Any, dtype: torch.dtype, digest: bool = True, source: Numbers | None = None
) -> Statistics:
    """Compute the statistics of elements in row-major order from their bytes.

    With `source`, copy the bytes from there into `data` in the same pass.
    """
    found = native()
    element = None if found is None else found.elements.get(dtype)
    if found is None or element is None:
        return numpy_statistics(data, dtype, digest, source)
    measured: Statistics = found.engine.measure_bytes(data, element, digest, source)
    return measured


def numpy_statistics(
    data: Any, dtype: torch.dtype, digest: bool = True, source: Numbers | None = None
) -> Statistics:
    """Compute what `statistics_of_bytes` does, without the native engine."""
    if not len(data):
        return {**_NOTHING}
    plain = _AS_THEY_ARE.get(dtype)
    if plain is None:
        if source is not None:
            data[:] = source
        found = moments(_floats(data, dtype), dtype.is_complex)
        if digest:
            found["digest"] = f"{checksum(data):016x}"
    else:
        # Copy, digest and statistics are made block by block, while the block is in the cache.
        running = RunningChecksum()
        look = running.add if digest else None
        fill = None if source is None else _filling(source.view(plain))
        found = moments(np.frombuffer(data, plain), dtype.is_complex, look, fill)
        if digest:
            found["digest"] = f"{running.result():016x}"
    found["count"] = len(data) // dtype.itemsize
    return found


def statistics_of_parameter(tensor: Tensor, version: int | None) -> Statistics:
    """Compute the statistics of a plain tensor that an earlier recording may have seen unchanged.

    If address and version are the same the digest decides, as a write to `parameter.data` raises
    no version; computing the digest alone is half the work.
    """
    data = memory_of(tensor)
    key = (tensor.data_ptr(), len(data), tensor.dtype)
    known = _parameters.get(key)
    if known is not None and known[0] == version and known[1]["digest"] == f"{checksum(data):016x}":
        return {**known[1]}
    found = statistics_of_bytes(data, tensor.dtype)
    if len(_parameters) >= _MOST_PARAMETERS:
        _parameters.clear()
    _parameters[key] = (version, found)
    return {**found}


def digest_of(tensor: Tensor) -> str:
    """Return a checksum of the elements: equal for equal content, whatever the memory layout."""
    # A dispatch mode of the program would see `contiguous` and `cpu`, also where they do nothing.
    as_it_is = tensor.is_cpu and tensor.is_contiguous()
    flat = tensor if as_it_is else tensor.contiguous().cpu()
    return f"{checksum(memory_of(flat)):016x}"


def memory_of(tensor: Tensor) -> Numbers:
    """Return the bytes of a contiguous tensor in memory; use them only while the tensor lives.

    `Tensor.numpy()` would forbid resizing that memory ever after.
    """
    size = tensor.numel() * tensor.element_size()
    if not size:
        return np.empty(0, _BYTES)
    memory: Any = (ctypes.c_ubyte * size).from_address(tensor.data_ptr())
    return np.frombuffer(memory, _BYTES)


def _filling(source: Numbers) -> Callable[[Numbers], None]:
    """Return a function that fills the blocks it is given with the source's numbers, in order."""
    at = 0

    def fill(block: Numbers) -> None:
        nonlocal at
        block[:] = source[at : at + len(block)]
        at += len(block)

    return fill


def numbers_of_bytes(data: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Numbers:
    """Return elements in row-major order as NumPy; complex ones with an axis for their parts."""
    plain = _AS_THEY_ARE.get(dtype)
    flat = _floats(data, dtype) if plain is None else np.frombuffer(data, plain)
    return flat.reshape((*shape, 2) if dtype.is_complex else shape)


def _floats(data: Any, dtype: torch.dtype) -> Numbers:
    """Return the elements as floats, whatever their dtype."""
    integral = _INTEGRAL.get(dtype)
    if integral is not None:
        return np.frombuffer(data, integral).astype(np.float64)
    raw = np.frombuffer(data, _BYTES)
    with unobserved(), without_modes():
        # torch warns of memory that is read-only.
        elements = torch.from_numpy(raw if raw.flags.writeable else raw.copy())
        if dtype.is_complex:
            dtype = torch.float16
        floats: Numbers = elements.view(dtype).to(torch.float32).numpy()
    return floats

"""Statistics and digest of a tensor's elements, in as few passes over them as it takes.

In comes a live tensor, or the bytes of a copy of one; out goes a dict. A live tensor is to be
looked at where autograd and dispatch modes are off; for a copy any thread will do.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clew.events.digest import RunningChecksum, checksum
from clew.events.statistics import Numbers, Statistics, moments
from clew.torch_compat import unobserved, without_modes

_BYTES = np.dtype(np.uint8)
# What statistics are taken of as it is: of complex numbers the parts, one after the other.
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
# Statistics of parameters with their versions, by address, bytes and dtype. No reference to any
# tensor: a weak one would already keep torch from swapping it.
_parameters: dict[tuple[int, int, torch.dtype], tuple[int | None, Statistics]] = {}
_MOST_PARAMETERS = 4096
_NOTHING: Statistics = {"count": 0, "nan": 0, "inf": 0, "zeros": 0, "digest": f"{0:016x}"}


def statistics(tensor: Tensor, digest: bool = True) -> Statistics:
    """Minimum, maximum, mean, deviation, norm, and counts of NaN, Inf and zeros."""
    if not digest and not tensor.is_contiguous():
        # Without a digest the order does not matter: that of the memory takes no copy.
        tensor = tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
    flat = tensor.contiguous().cpu()
    return statistics_of_bytes(memory_of(flat), tensor.dtype, digest)


def statistics_of_bytes(
    data: Any, dtype: torch.dtype, digest: bool = True, source: Numbers | None = None
) -> Statistics:
    """The same of elements in row-major order, from their bytes.

    With `source` the bytes come from there on the way.
    """
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
        # Numbers and bytes are the same: all is had of what is in the cache.
        running = RunningChecksum()
        look = running.add if digest else None
        fill = None if source is None else _filling(source.view(plain))
        found = moments(np.frombuffer(data, plain), dtype.is_complex, look, fill)
        if digest:
            found["digest"] = f"{running.result():016x}"
    found["count"] = len(data) // dtype.itemsize
    return found


def statistics_of_parameter(tensor: Tensor, version: int | None) -> Statistics:
    """Statistics of a plain tensor that is likely to be as it was in an earlier recording.

    If place and version are the same the digest decides, as `parameter.data` can be written to
    without a new version; to take that alone is half the work.
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
    """A checksum of the elements: equal for equal content, whatever the memory layout."""
    flat = tensor.contiguous().cpu()
    return f"{checksum(memory_of(flat)):016x}"


def memory_of(tensor: Tensor) -> Numbers:
    """The bytes of a contiguous tensor in memory, to be used while the tensor lives.

    `Tensor.numpy()` would forbid to resize that memory ever after.
    """
    size = tensor.numel() * tensor.element_size()
    if not size:
        return np.empty(0, _BYTES)
    memory: Any = (ctypes.c_ubyte * size).from_address(tensor.data_ptr())
    return np.frombuffer(memory, _BYTES)


def _filling(source: Numbers) -> Callable[[Numbers], None]:
    """Puts numbers of a source, in order, into the pieces it is given."""
    at = 0

    def fill(block: Numbers) -> None:
        nonlocal at
        block[:] = source[at : at + len(block)]
        at += len(block)

    return fill


def _floats(data: Any, dtype: torch.dtype) -> Numbers:
    """Elements as floats, whatever they are."""
    integral = _INTEGRAL.get(dtype)
    if integral is not None:
        return np.frombuffer(data, integral).astype(np.float64)
    raw = np.frombuffer(data, _BYTES)
    with unobserved(), without_modes():
        # torch warns of memory that nobody may write to.
        elements = torch.from_numpy(raw if raw.flags.writeable else raw.copy())
        if dtype.is_complex:
            dtype = torch.float16
        floats: Numbers = elements.view(dtype).to(torch.float32).numpy()
    return floats

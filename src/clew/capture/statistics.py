"""Statistics and digest of a tensor's elements, in as few passes over them as it takes.

In comes a live tensor, or the bytes of a copy of one; out goes a dict. A live tensor is to be
looked at where autograd and dispatch modes are off; for a copy any thread will do.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clew.capture.torch_compat import unobserved, without_modes
from clew.events.digest import RunningChecksum, checksum
from clew.events.statistics import Numbers, Statistics, moments

_INTEGRAL = frozenset(
    {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
     torch.uint16, torch.uint32, torch.uint64}
)  # fmt: skip
# What statistics are taken of as it is.
_FLAT = (torch.float32, torch.float64)
_AS_THEY_ARE = (*_FLAT, torch.complex64, torch.complex128)
_DTYPES = {
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.uint8: np.dtype(np.uint8),
}


def statistics(tensor: Tensor, digest: bool = True) -> Statistics:
    """Minimum, maximum, mean, deviation, norm, and counts of NaN, Inf and zeros."""
    count = tensor.numel()
    if not count:
        return {**_NOTHING}
    dtype = tensor.dtype
    if digest and dtype in _FLAT:
        # The numbers are the elements themselves: both are had of what is in the cache.
        return {"count": count, **_with_digest(_flat(tensor), in_pairs=False)}
    numbers = torch.view_as_real(tensor.contiguous()) if dtype.is_complex else tensor
    found = {"count": count, **moments(_in_memory_order(numbers, tensor), dtype.is_complex)}
    if digest:
        found["digest"] = digest_of(tensor)
    return found


def statistics_of_copy(data: Any, dtype: torch.dtype) -> Statistics:
    """The same of a copy, from its bytes in row-major order."""
    if not len(data):
        return {**_NOTHING}
    count, numbers = len(data) // dtype.itemsize, _floats(data, dtype)
    if dtype in _AS_THEY_ARE:
        return {"count": count, **_with_digest(numbers, dtype.is_complex)}
    found = moments(numbers, dtype.is_complex)
    return {"count": count, **found, "digest": f"{checksum(data):016x}"}


def _with_digest(numbers: Numbers, in_pairs: bool) -> Statistics:
    running = RunningChecksum()
    found = moments(numbers, in_pairs, running.add)
    return {**found, "digest": f"{running.result():016x}"}


_NOTHING: Statistics = {"count": 0, "nan": 0, "inf": 0, "zeros": 0, "digest": f"{0:016x}"}


def _floats(data: Any, dtype: torch.dtype) -> Numbers:
    """The elements of a copy as floats, complex ones as pairs."""
    name = str(dtype).removeprefix("torch.")
    if name in ("float32", "float64"):
        return np.frombuffer(data, name)
    if name in ("complex64", "complex128"):
        return np.frombuffer(data, np.float32 if name == "complex64" else np.float64)
    if dtype in _INTEGRAL:
        return np.frombuffer(data, name).astype(np.float64)
    if name in ("float16", "complex32"):
        return np.frombuffer(data, np.float16).astype(np.float32)
    if name == "bfloat16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    with unobserved(), without_modes():
        raw = torch.from_numpy(np.frombuffer(data, np.uint8).copy())
        floats: Numbers = raw.view(dtype).to(torch.float32).numpy()
    return floats


def _in_memory_order(tensor: Tensor, owner: Tensor) -> Numbers:
    """All elements as a flat float array, in any order, to be used while `owner` lives."""
    if not tensor.is_contiguous():
        # Transposed views of dense memory are flat in another order of their axes.
        order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
        tensor = tensor.permute(order).contiguous()
    flat = tensor.reshape(-1).cpu()
    if flat.dtype in _INTEGRAL:
        flat = flat.to(torch.float64)
    elif flat.dtype not in _FLAT:
        flat = flat.to(torch.float32)
    return _array(flat, owner)


def _flat(tensor: Tensor) -> Numbers:
    """The elements in row-major order, to be used while the tensor lives."""
    if tensor.is_contiguous() and tensor.is_cpu:
        return _memory(tensor)
    flat: Numbers = tensor.contiguous().cpu().numpy().reshape(-1)
    return flat


def digest_of(tensor: Tensor) -> str:
    """A checksum of the elements: equal for equal content, whatever the memory layout."""
    flat = tensor.contiguous().reshape(-1)
    # One element may have any stride and still count as contiguous.
    flat = flat.as_strided((flat.numel(),), (1,)).view(torch.uint8).cpu()
    return f"{checksum(_array(flat, tensor)):016x}"


def _array(flat: Tensor, owner: Tensor) -> Numbers:
    """The memory of a flat tensor as an array, to be used while `owner` lives."""
    if flat.untyped_storage().data_ptr() != owner.untyped_storage().data_ptr():
        copied: Numbers = flat.numpy()
        return copied
    return _memory(flat)


def _memory(tensor: Tensor) -> Numbers:
    """The memory of a contiguous tensor as a flat array, to be used while the tensor lives.

    `Tensor.numpy()` forbids to resize that memory ever after, so it is only for copies of ours.
    """
    dtype = _DTYPES[tensor.dtype]
    size = tensor.numel() * dtype.itemsize
    memory: Any = (ctypes.c_ubyte * size).from_address(tensor.data_ptr())
    return np.frombuffer(memory, dtype)

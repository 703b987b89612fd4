"""Describe an ordinary tensor fast: its facts, and the few numbers that a line of text shows.

Comes in: a live tensor. Goes out: a `ValueSummary`, or None for any tensor that `keep.keeper` has
to read. Reads memory and runs no op, so that neither autograd nor a mode sees it. The statistics of
the last few tensors are remembered, under a checksum of their elements.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch
from torch import Tensor, no_grad

import clew.keep.keeper  # noqa: F401 - reads the tensors that are not ordinary
from clew.events.digest import checksum
from clew.events.statistics import extremes
from clew.events.watch_events import TENSOR, ValueSummary
from clew.keep import value_summaries
from clew.keep.identity import PLAIN, version_of
from clew.keep.snapshots import is_dense
from clew.keep.tensor_statistics import digest_of
from clew.keep.value_summaries import Whole
from clew.torch_compat import is_transformed, is_zero_tensor, unobserved, without_modes

# NumPy's dtype, its name (NumPy builds the string anew each time), and its size in bytes.
_FLOATS: dict[torch.dtype, tuple[np.dtype[Any], str, int]] = {
    torch.float32: (np.dtype(np.float32), "float32", 4),
    torch.float64: (np.dtype(np.float64), "float64", 8),
}
_REMEMBERED = 64

# checksum of the elements, dtype, shape and stride -> statistics, and whether they are complete
_known: dict[tuple[Any, ...], tuple[dict[str, Any] | None, bool]] = {}
_NOTHING = (None, False)


def fast_summary(
    tensor: Any, whole: Whole | None = None, digest: bool = False
) -> ValueSummary | None:
    """Describe an ordinary float tensor with the numbers that a line of text shows.

    With `whole`, describe it with all statistics: remembered ones, else those that `whole`
    computes. A contiguous tensor always gets a digest, any other only with `digest`.
    """
    if type(tensor) not in PLAIN:
        return None
    with unobserved():
        count, kind = tensor.numel(), _FLOATS.get(tensor.dtype)
        if kind is None or count <= value_summaries.FEW or not _is_ordinary(tensor):
            return None
        is_contiguous = tensor.is_contiguous()
        dtype, name, size = kind
        # The elements fill one stretch of memory, in any order. The program may have freed it.
        end = (tensor.storage_offset() + count) * size
        if not (is_contiguous or is_dense(tensor)) or end > tensor.untyped_storage().nbytes():
            return None
        shape, stride, address = tuple(tensor.shape), tensor.stride(), tensor.data_ptr()
        data: Any = (ctypes.c_ubyte * (count * size)).from_address(address)
        # A checksum, as not everything that writes to memory raises the version.
        key = (checksum(data), name, shape, stride)
        stats, is_whole = _known.get(key, _NOTHING)
        if stats is None or (whole is not None and not is_whole):
            stats = whole() if whole else extremes(np.frombuffer(data, dtype))
            if stats is None:
                return None
            stats["count"] = count
            if is_contiguous:
                stats["digest"] = f"{key[0]:016x}"
            if len(_known) >= _REMEMBERED:
                _known.pop(next(iter(_known)), None)
            _known[key] = (stats, whole is not None)
        if digest and "digest" not in stats:
            with no_grad(), without_modes():
                stats["digest"] = digest_of(tensor)
        # By place, as this is made for every line that is told.
        return ValueSummary(
            TENSOR, type(tensor).__name__, name, shape, "cpu", "", not is_contiguous,
            tensor.requires_grad, stats, None, (), None, (id(tensor), version_of(tensor), address),
        )  # fmt: skip


def _is_ordinary(tensor: Tensor) -> bool:
    """Return whether a tensor's elements can be read from this machine's memory as they are."""
    return (
        tensor.layout is torch.strided
        and tensor.is_cpu
        and not (tensor.is_nested or tensor.is_neg())
        and not (is_transformed(tensor) or is_zero_tensor(tensor))
    )


value_summaries.set_fast_summary(fast_summary)

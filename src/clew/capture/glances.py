"""A quick look at an ordinary tensor: its facts, and the few numbers that a line of text shows.

In comes a live tensor, out goes a `Seen`; None for anything that takes more care, which
`capture.values` has. Reads memory, runs no op: nothing here is seen by autograd or a mode. The
numbers of the last few tensors are remembered, by what their elements are.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch
from torch import Tensor

import clew.capture.values  # noqa: F401 - which knows all that is not ordinary
from clew.capture import seen
from clew.capture.seen import Whole
from clew.capture.snapshots import is_dense
from clew.capture.tensors import PLAIN
from clew.capture.torch_compat import has_memory, is_transformed, unobserved
from clew.events.digest import checksum
from clew.events.statistics import extremes
from clew.events.watched import TENSOR, Seen

# NumPy's dtype, and its name, which NumPy makes anew each time it is asked.
_FLOATS: dict[torch.dtype, tuple[np.dtype[Any], str]] = {
    torch.float32: (np.dtype(np.float32), "float32"),
    torch.float64: (np.dtype(np.float64), "float64"),
}
_REMEMBERED = 64

# checksum of the elements, dtype, shape and stride -> statistics, and whether all of them
_known: dict[tuple[Any, ...], tuple[dict[str, Any], bool]] = {}


def glance(tensor: Tensor, whole: Whole | None = None) -> Seen | None:
    """What an ordinary tensor of floats looks like, with the numbers that a line of text shows.

    With `whole`, with all statistics, which it takes unless they are remembered.
    """
    with unobserved():
        if not _is_ordinary(tensor):
            return None
        dtype, name = _FLOATS[tensor.dtype]
        count, address = tensor.numel(), tensor.data_ptr()
        data: Any = (ctypes.c_ubyte * (count * dtype.itemsize)).from_address(address)
        shape, stride = tuple(tensor.shape), tensor.stride()
        # Their own elements tell: not all that writes to memory counts versions.
        key = (checksum(data), dtype, shape, stride)
        stats, is_whole = _known.get(key, (None, False))
        if stats is None or (whole is not None and not is_whole):
            stats = whole() if whole else {"count": count, **extremes(np.frombuffer(data, dtype))}
            if stats is None:
                return None
            if len(_known) >= _REMEMBERED:
                _known.pop(next(iter(_known)), None)
            _known[key] = (stats, whole is not None)
        version = None if tensor.is_inference() else tensor._version
        return Seen(
            TENSOR, type(tensor).__name__, name, shape, "cpu",
            strided=not tensor.is_contiguous(), grad=tensor.requires_grad,
            stats=stats, memory=(id(tensor), version, address),
        )  # fmt: skip


def _is_ordinary(tensor: Tensor) -> bool:
    """Whether a tensor has more than a few floats, which fill a stretch of memory in any order."""
    if type(tensor) not in PLAIN or tensor.layout is not torch.strided or not tensor.is_cpu:
        return False
    if tensor.is_nested or tensor.is_neg() or is_transformed(tensor):
        return False
    if tensor.dtype not in _FLOATS or tensor.numel() <= seen.FEW:
        return False
    return (tensor.is_contiguous() or is_dense(tensor)) and has_memory(tensor)


seen.learn_glance(glance)

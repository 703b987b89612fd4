"""A quick look at an ordinary tensor: its facts, and the few numbers that a line of text shows.

In comes a live tensor, out goes a `Seen`; None for anything that takes more care, which
`capture.values` has. Reads memory, runs no op: nothing here is seen by autograd or a mode. The
last few tensors are remembered for as long as they live and stay as they are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any
from weakref import KeyedRef

import numpy as np
import torch
from torch import Tensor

import clew.capture.values  # noqa: F401 - which knows all that is not ordinary
from clew.capture import seen
from clew.capture.seen import Whole
from clew.capture.snapshots import is_dense
from clew.capture.tensors import PLAIN
from clew.capture.torch_compat import is_transformed, on_swap, unobserved
from clew.events.statistics import extremes
from clew.events.watched import TENSOR, Seen

_FLOATS: dict[torch.dtype, np.dtype[Any]] = {
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
}
_REMEMBERED = 16
_SAMPLED = 16

# id of a tensor -> the tensor, what tells its versions apart, what it looked like, and whether
# that is with all statistics
_known: dict[int, tuple[KeyedRef[int, Tensor], Any, Seen, bool]] = {}
_undo: list[Callable[[], None]] = []


def glance(tensor: Tensor, whole: Whole | None = None) -> Seen | None:
    """What an ordinary tensor of floats looks like, with the numbers that a line of text shows.

    With `whole`, with all statistics, which it takes unless they are remembered.
    """
    with unobserved():
        known = _known.get(id(tensor))
        if known is not None and (known[0]() is not tensor or known[1][0] != tensor.data_ptr()):
            known = None
        if known is None and not _is_ordinary(tensor):
            return None
        dtype, count, address = _FLOATS[tensor.dtype], tensor.numel(), tensor.data_ptr()
        data: Any = (ctypes.c_ubyte * (count * dtype.itemsize)).from_address(address)
        elements = np.frombuffer(data, dtype)
        # Some elements too, as not all that writes to memory counts versions.
        sample = elements[:: count // _SAMPLED + 1]
        # Those of inference mode count no versions.
        version = None if tensor.is_inference() else tensor._version
        grad = tensor.requires_grad
        state = (address, version, tensor.stride(), grad)
        if known is not None and known[1] == (*state, sample.tobytes()) and (not whole or known[3]):
            return known[2]
        stats = whole() if whole else {"count": count, **extremes(elements)}
        if stats is None:
            return None
        found = Seen(
            TENSOR, type(tensor).__name__, dtype.name, tuple(tensor.shape), "cpu",
            strided=not tensor.is_contiguous(), grad=grad,
            stats=stats, memory=(id(tensor), version, address),
        )  # fmt: skip
        if version is not None and tensor.untyped_storage().resizable():  # else nothing counts
            _remember(tensor, (*state, sample.tobytes()), found, whole is not None)
        return found


def _is_ordinary(tensor: Tensor) -> bool:
    """Whether a tensor has more than a few floats, which fill a stretch of memory in any order."""
    if type(tensor) not in PLAIN or tensor.layout is not torch.strided or not tensor.is_cpu:
        return False
    if tensor.is_nested or tensor.is_neg() or is_transformed(tensor):
        return False
    if tensor.dtype not in _FLOATS or tensor.numel() <= seen.FEW:
        return False
    if not (tensor.is_contiguous() or is_dense(tensor)):
        return False
    end = (tensor.storage_offset() + tensor.numel()) * tensor.element_size()
    return end <= tensor.untyped_storage().nbytes()


def _remember(tensor: Tensor, state: Any, found: Seen, is_whole: bool) -> None:
    if len(_known) >= _REMEMBERED:
        _known.pop(next(iter(_known)), None)
    _known[id(tensor)] = (KeyedRef(tensor, _gone, id(tensor)), state, found, is_whole)
    if not _undo:
        # Tensors that something refers to weakly cannot be swapped.
        _undo.append(on_swap(lambda swapped: _forget(id(swapped))))


def _gone(reference: KeyedRef[int, Tensor]) -> None:
    _forget(reference.key)


def _forget(key: int) -> None:
    _known.pop(key, None)
    while _undo and not _known:
        _undo.pop()()


seen.learn_glance(glance)

"""A quick look at an ordinary tensor: its facts, and the few numbers that a line of text shows.

In comes a live tensor, out goes a `Seen`; None for anything that takes more care, which
`keep.keeper` has. Reads memory, runs no op: nothing here is seen by autograd or a mode. The
numbers of the last few tensors are remembered, by what their elements are.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch
from torch import Tensor, no_grad

import clew.keep.keeper  # noqa: F401 - which knows all that is not ordinary
from clew.events.digest import checksum
from clew.events.statistics import extremes
from clew.events.watched import TENSOR, Seen
from clew.keep import seen
from clew.keep.identity import PLAIN
from clew.keep.seen import Whole
from clew.keep.snapshots import is_dense
from clew.keep.statistics import digest_of
from clew.torch_compat import is_transformed, is_zero_tensor, unobserved, without_modes

# NumPy's dtype, its name, which NumPy makes anew each time it is asked, and bytes.
_FLOATS: dict[torch.dtype, tuple[np.dtype[Any], str, int]] = {
    torch.float32: (np.dtype(np.float32), "float32", 4),
    torch.float64: (np.dtype(np.float64), "float64", 8),
}
_REMEMBERED = 64

# checksum of the elements, dtype, shape and stride -> statistics, and whether all of them
_known: dict[tuple[Any, ...], tuple[dict[str, Any] | None, bool]] = {}
_NOTHING = (None, False)


def glance(tensor: Any, whole: Whole | None = None, digest: bool = False) -> Seen | None:
    """What an ordinary tensor of floats looks like, with the numbers that a line of text shows.

    With `whole`, with all statistics, which it takes unless they are remembered. Those of a
    contiguous tensor have a digest, of any other only if it is asked for.
    """
    if type(tensor) not in PLAIN:
        return None
    with unobserved():
        count, kind = tensor.numel(), _FLOATS.get(tensor.dtype)
        if kind is None or count <= seen.FEW or not _is_ordinary(tensor):
            return None
        is_contiguous = tensor.is_contiguous()
        dtype, name, size = kind
        # In whatever order, the elements fill a stretch of memory, which may have been given back.
        end = (tensor.storage_offset() + count) * size
        if not (is_contiguous or is_dense(tensor)) or end > tensor.untyped_storage().nbytes():
            return None
        shape, stride, address = tuple(tensor.shape), tensor.stride(), tensor.data_ptr()
        data: Any = (ctypes.c_ubyte * (count * size)).from_address(address)
        # Their own elements tell: not all that writes to memory counts versions.
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
        version = None if tensor.is_inference() else tensor._version
        # By place, as this is made for every line that is told.
        return Seen(
            TENSOR, type(tensor).__name__, name, shape, "cpu", "", not is_contiguous,
            tensor.requires_grad, stats, None, (), None, (id(tensor), version, address),
        )  # fmt: skip


def _is_ordinary(tensor: Tensor) -> bool:
    """Whether a tensor's elements are what is in the memory of this machine."""
    return (
        tensor.layout is torch.strided
        and tensor.is_cpu
        and not (tensor.is_nested or tensor.is_neg())
        and not (is_transformed(tensor) or is_zero_tensor(tensor))
    )


seen.learn_glance(glance)

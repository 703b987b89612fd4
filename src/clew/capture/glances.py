"""A quick look at an ordinary tensor: its facts, and the few numbers that a line of text shows.

In comes a live tensor, out go a `Look` and statistics; None for anything that takes more care,
which `capture.values` has. Reads memory, runs no op: nothing here is seen by autograd or a mode.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clew.capture import seen
from clew.capture.changes import Look
from clew.capture.snapshots import is_plain
from clew.capture.tensors import version_of
from clew.capture.torch_compat import unobserved
from clew.events.statistics import Statistics, extremes

_FLOATS: dict[torch.dtype, np.dtype[Any]] = {
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
}


def glance(tensor: Tensor, numbers: bool) -> tuple[Look, Statistics | None] | None:
    """What an ordinary tensor of floats looks like; its content is not compared to anything."""
    with unobserved():
        dtype = _FLOATS.get(tensor.dtype)
        if dtype is None or not is_plain(tensor):
            return None
        count, address = tensor.numel(), tensor.data_ptr()
        memory = (id(tensor), version_of(tensor), address)
        facts = (tensor.shape, tensor.dtype, "cpu", tensor.stride(), tensor.requires_grad)
        look = Look("Tensor", facts, memory, memory)
        if not numbers or not count:
            return look, ({"count": 0, "nan": 0, "inf": 0} if numbers else None)
        data: Any = (ctypes.c_ubyte * (count * dtype.itemsize)).from_address(address)
        return look, {"count": count, **extremes(np.frombuffer(data, dtype))}


seen.learn_glance(glance)

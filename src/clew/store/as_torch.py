"""A stored payload back into a torch tensor. The one file of the store that imports torch."""

from __future__ import annotations

from typing import Any

from clew.errors import MissingDependency
from clew.events.records import Payload


def to_tensor(payload: Payload) -> Any:
    """A payload as a tensor of its own memory."""
    try:
        import torch
    except ImportError as missing:
        raise MissingDependency("Value.tensor()", "torch", "clew[torch]") from missing
    dtype = getattr(torch, payload.dtype)
    if not len(payload.data):
        return torch.empty(payload.shape, dtype=dtype)
    raw = torch.frombuffer(bytearray(payload.data), dtype=torch.uint8)
    return raw.view(dtype).reshape(payload.shape)

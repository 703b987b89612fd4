"""A stored payload back into a torch tensor. The one file of the store that imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from clew.errors import MissingDependency
from clew.events.records import PARTS, Payload, unpack


def to_tensor(payload: Payload) -> Any:
    """A payload as a tensor of its own memory."""
    try:
        import torch
    except ImportError as missing:
        raise MissingDependency("Value.tensor()", "torch", "clew[torch]") from missing
    if payload.dtype == PARTS:
        return _from_parts(payload, torch)
    dtype = getattr(torch, payload.dtype)
    if not len(payload.data):
        return torch.empty(payload.shape, dtype=dtype)
    raw = torch.frombuffer(bytearray(payload.data), dtype=torch.uint8)
    return raw.view(dtype).reshape(payload.shape)


def _from_parts(payload: Payload, torch: Any) -> Any:
    form, facts, packed = unpack(payload)
    parts = {name: to_tensor(part) for name, part in packed.items()}
    if form == "sparse_coo":
        return torch.sparse_coo_tensor(parts["indices"], parts["values"], payload.shape)
    if form != "quantized":
        rows, columns, values = parts.values()
        return torch.sparse_compressed_tensor(
            rows, columns, values, payload.shape, layout=getattr(torch, form)
        )
    integers = parts["integers"]
    if "scale" in facts:
        return torch._make_per_tensor_quantized_tensor(
            integers, facts["scale"], facts["zero_point"]
        )
    return torch._make_per_channel_quantized_tensor(
        integers, parts["scales"], parts["zero_points"], facts["axis"]
    )


def save_tensors(tensors: dict[str, Any], target: Path) -> None:
    """Write a dict of tensors the way `torch.load(target, weights_only=True)` reads it."""
    try:
        import torch
    except ImportError as missing:
        raise MissingDependency("the .pt export", "torch", "clew[torch]") from missing
    # An open file: given a name, torch refuses some, such as `.hidden`.
    with open(target, "wb") as file:
        torch.save(tensors, file)

"""A stored payload back into a torch tensor, and tensors to a `.pt` file.

The one file of the store that imports torch: reached by `store.to_tensor` and `store.save_tensors`,
which load it when they are first asked for.
"""

from __future__ import annotations

from pathlib import Path

import torch

from clew.errors import ClewError
from clew.events.vocabulary import PARTS, Payload
from clew.store.format.payload_elements import check_filled
from clew.store.format.payload_parts import SPARSE, unpacked
from clew.torch_compat import quantized, quantized_by_channel


def to_tensor(payload: Payload) -> torch.Tensor:
    """Return a payload as a tensor with its own memory."""
    if payload.dtype == PARTS:
        return _from_parts(payload)
    dtype = getattr(torch, payload.dtype, None) if payload.dtype != "int" else None
    if not isinstance(dtype, torch.dtype):
        # "int" is a Python integer too long for any dtype, stored as text.
        raise ClewError(f"torch has no dtype {payload.dtype[:50]!r}; Value.item() gives the value")
    check_filled(payload.shape, dtype.itemsize, len(payload.data))
    if not len(payload.data):
        return torch.empty(payload.shape, dtype=dtype)
    raw = torch.frombuffer(bytearray(payload.data), dtype=torch.uint8)
    return raw.view(dtype).reshape(payload.shape)


def _from_parts(payload: Payload) -> torch.Tensor:
    form, facts, packed = unpacked(payload)
    parts = {name: to_tensor(part) for name, part in packed.items()}
    if form == "sparse_coo":
        return torch.sparse_coo_tensor(
            parts["indices"], parts["values"], payload.shape, check_invariants=True
        )
    if form in SPARSE:
        compressed, plain, values = (parts[name] for name in SPARSE[form])
        return torch.sparse_compressed_tensor(
            compressed,
            plain,
            values,
            payload.shape,
            layout=getattr(torch, form),
            check_invariants=True,
        )
    integers = parts["integers"]
    if tuple(integers.shape) != tuple(payload.shape):
        raise ValueError("its integers do not fill its shape")
    if "scale" in facts:
        return quantized(integers, facts["scale"], facts["zero_point"])
    axis = facts["axis"]
    channels = (integers.shape[axis],)
    if parts["scales"].shape != channels or parts["zero_points"].shape != channels:
        raise ValueError("its scales do not fit its channels")
    return quantized_by_channel(integers, parts["scales"], parts["zero_points"], axis)


def save_tensors(tensors: object, target: Path) -> None:
    """Write a tensor, or several in a dict, for `torch.load(target, weights_only=True)` to read."""
    # An open file: torch refuses some file names, such as `.hidden`.
    with open(target, "wb") as file:
        torch.save(tensors, file)

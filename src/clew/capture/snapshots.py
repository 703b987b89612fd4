"""Copies of tensors at a moment: their own elements, in row-major order.

In comes a live tensor, out goes a `Snapshot`, or the payload of a tensor made of several arrays.
A snapshot belongs to nobody else, so that its statistics can wait for another thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from clew.capture.statistics import statistics
from clew.capture.torch_compat import is_transformed, unobserved, without_modes
from clew.events.records import Payload, pack

# Compressed sparse layouts, with the names of their two index parts.
COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


class Snapshot:
    """The elements of a tensor as they were; statistics are taken once, when they are asked for."""

    def __init__(self, elements: Tensor) -> None:
        copy = torch.empty(elements.shape, dtype=elements.dtype, device="cpu")
        self._copy = copy.copy_(elements)
        self._data = copy.reshape(-1).view(torch.uint8).numpy() if copy.numel() else b""
        self._stats: dict[str, Any] | None = None

    @property
    def stats(self) -> dict[str, Any]:
        """Statistics of the elements; they are of the very bytes that are kept."""
        if self._stats is None:
            with unobserved(), torch.no_grad(), without_modes(), np.errstate(all="ignore"):
                self._stats = statistics(self._copy)
        return self._stats

    def payload(self, shape: tuple[int, ...]) -> Payload:
        """The data of a tensor with these elements in a shape."""
        known = None
        if self._stats is not None and len(self._data):
            known = int(self._stats["digest"], 16)
        return Payload(str(self._copy.dtype).replace("torch.", ""), shape, self._data, known)


def is_dense(tensor: Tensor) -> bool:
    """Whether a tensor's elements fill a stretch of memory, each once."""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return False
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def elements_of(tensor: Tensor) -> Tensor | None:
    """The elements of a tensor as an ordinary strided one, None if it has none to copy.

    Those of a sparse tensor are its stored values, those of a quantised one the numbers it means.
    """
    local = getattr(tensor, "_local_tensor", tensor)
    if local.device.type == "meta" or local.is_nested or is_transformed(local):
        return None
    if type(local) not in (Tensor, torch.nn.Parameter):
        return None
    if local.layout is torch.sparse_coo:
        local = local._values()
    elif local.layout in COMPRESSED:
        local = local.values()
    elif local.is_quantized:
        local = local.dequantize()
    elif local.layout is not torch.strided:
        local = local.to_dense()
    return local.detach().resolve_conj().resolve_neg()


def parts_of(tensor: Tensor, elements: Tensor) -> Payload | None:
    """The data of a tensor made of several arrays (sparse, quantised), None for any other."""
    local = getattr(tensor, "_local_tensor", tensor)
    parts: dict[str, Tensor]
    facts: dict[str, Any] = {}
    if local.layout is torch.sparse_coo:
        parts = {"indices": local._indices(), "values": elements}
    elif local.layout in COMPRESSED:
        rows, columns = COMPRESSED[local.layout]
        parts = {rows: getattr(local, rows)(), columns: getattr(local, columns)(),
                 "values": elements}  # fmt: skip
    elif local.is_quantized and local.qscheme() is torch.per_tensor_affine:
        parts = {"integers": local.int_repr()}
        facts = {"scale": local.q_scale(), "zero_point": local.q_zero_point()}
    elif local.is_quantized:
        parts = {"integers": local.int_repr(), "scales": local.q_per_channel_scales(),
                 "zero_points": local.q_per_channel_zero_points()}  # fmt: skip
        facts = {"axis": local.q_per_channel_axis()}
    else:
        return None
    form = "quantized" if local.is_quantized else str(local.layout).replace("torch.", "")
    facts["dtype"] = str(local.dtype).replace("torch.", "")
    copies = {name: Snapshot(part).payload(tuple(part.shape)) for name, part in parts.items()}
    return pack(form, tuple(local.shape), facts, copies)

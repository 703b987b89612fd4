"""Copy tensors at a moment: the elements of each, in row-major order.

Comes in: a live tensor. Goes out: a `Snapshot`, or the payload of a tensor made of several arrays.
Nobody else can write to a snapshot, so another thread can compute its statistics later.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clew.events.statistics import Numbers, Statistics
from clew.events.vocabulary import Payload, pack
from clew.keep.device_statistics import done_after
from clew.keep.fingerprints import fingerprint_of_bytes
from clew.keep.tensor_statistics import memory_of, statistics_of_bytes
from clew.torch_compat import has_memory, is_transformed, is_zero_tensor, local_part, sparse_parts

# Compressed sparse layouts, with the names of their two index parts.
COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


# Contiguous tensors of at most so many bytes are copied in one call, into a `bytes` object.
SMALL = 64 << 10


class Snapshot:
    """A copy of a tensor's elements; its statistics are computed once, when first asked for.

    `arrived` returns when the data is there, for one that an accelerator is still copying.
    """

    __slots__ = ("_arrived", "_bytes", "_dtype", "_stats")

    def __init__(
        self,
        data: Any,
        dtype: torch.dtype,
        stats: Statistics | None = None,
        arrived: Callable[[], None] | None = None,
    ) -> None:
        self._bytes = data
        self._dtype = dtype
        self._stats = stats
        self._arrived = arrived

    @property
    def _data(self) -> Any:
        if self._arrived is not None:
            self._arrived()
            self._arrived = None
        return self._bytes

    @property
    def stats(self) -> Statistics:
        """Return the statistics of exactly the bytes that are kept."""
        if self._stats is None:
            self._stats = statistics_of_bytes(self._data, self._dtype)
        return self._stats

    def fingerprint(self, shape: tuple[int, ...]) -> bytes:
        """Return the fingerprint of a tensor with these elements and this shape."""
        return fingerprint_of_bytes(self._data, self._dtype, shape)

    def holds(self, data: Numbers) -> bool:
        """Return whether the copied elements equal these bytes."""
        return np.array_equal(np.frombuffer(self._data, np.uint8), data)

    def payload(self, shape: tuple[int, ...]) -> Payload:
        """Return the data of a tensor with these elements and this shape."""
        known = None
        if self._stats is not None and len(self._data):
            known = int(str(self._stats["digest"]), 16)
        return Payload(str(self._dtype).removeprefix("torch."), shape, self._data, known)


def fresh(size: int) -> Numbers:
    """Allocate memory for a copy with NumPy, which uses large pages where it can: much faster."""
    return np.empty(size, dtype=np.uint8)


def snapshot(elements: Tensor, take: Callable[[int], Numbers] = fresh) -> Snapshot:
    """Copy an ordinary tensor's elements; call it where autograd and modes are off."""
    if elements.is_cpu:
        return Snapshot(bytes_of(elements, take), elements.dtype)
    return device_snapshot(elements)


def device_snapshot(elements: Tensor) -> Snapshot:
    """Copy an ordinary tensor on an accelerator without waiting until that is done."""
    copy = elements.contiguous().view(-1).view(torch.uint8).to("cpu", non_blocking=True)
    return Snapshot(copy.numpy(), elements.dtype, arrived=done_after(elements.device))


def bytes_of(elements: Tensor, take: Callable[[int], Numbers] = fresh) -> Any:
    """Return a copy of an ordinary tensor's elements; call it where autograd and modes are off."""
    size = elements.numel() * elements.element_size()
    if not size:
        return b""
    data = take(size)
    torch.from_numpy(data).view(elements.dtype).view(elements.shape).copy_(elements)
    return data


def plain_snapshot(tensor: Tensor, size: int, take: Callable[[int], Numbers]) -> Snapshot:
    """Copy a tensor for which `is_plain` holds, without torch."""
    if size <= SMALL:
        return Snapshot(ctypes.string_at(tensor.data_ptr(), size), tensor.dtype)
    data = take(size)
    ctypes.memmove(data.ctypes.data, tensor.data_ptr(), size)
    return Snapshot(data, tensor.dtype)


def counted_snapshot(tensor: Tensor, size: int, take: Callable[[int], Numbers]) -> Snapshot:
    """Copy a plain tensor and compute its statistics in one pass, while it is in the cache."""
    data = take(size)
    stats = statistics_of_bytes(data, tensor.dtype, source=memory_of(tensor))
    return Snapshot(data, tensor.dtype, stats)


def is_plain(tensor: Tensor) -> bool:
    """Return whether the elements of a tensor are the bytes from its `data_ptr` on."""
    return (
        type(tensor) in (Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and tensor.is_cpu
        and not (tensor.is_nested or tensor.is_quantized or is_transformed(tensor))
        and tensor.is_contiguous()
        and not (tensor.is_conj() or tensor.is_neg())
        and has_memory(tensor)
    )


def is_dense(tensor: Tensor) -> bool:
    """Return whether a tensor's elements fill a stretch of memory, each once."""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return False
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def elements_of(tensor: Tensor) -> Tensor | None:
    """Return the elements of a tensor as an ordinary strided one, None if it has none to copy.

    For a sparse tensor these are its stored values, summed where an index occurs more than once;
    for a quantised one the dequantised numbers.
    """
    local = local_part(tensor)
    if local.device.type == "meta" or local.is_nested or is_transformed(local):
        return None
    if type(local) not in (Tensor, torch.nn.Parameter):
        return None
    if local.layout is torch.sparse_coo:
        local = sparse_parts(local if local.is_coalesced() else local.coalesce())[1]
    elif local.layout in COMPRESSED:
        local = local.values()
    elif local.is_quantized:
        local = local.dequantize()
    elif local.layout is not torch.strided:
        local = local.to_dense()
    elif is_zero_tensor(local):
        local = torch.zeros(local.shape, dtype=local.dtype)
    elif not has_memory(local):
        return None
    return local.detach().resolve_conj().resolve_neg()


def parts_of(tensor: Tensor, elements: Tensor) -> Payload | None:
    """Return the data of a tensor made of several arrays (sparse, quantised), else None."""
    local = local_part(tensor)
    parts: dict[str, Tensor]
    facts: dict[str, Any] = {}
    if local.layout is torch.sparse_coo:
        # As they are: added up only where one looks at the numbers.
        indices, values = sparse_parts(local)
        parts = {"indices": indices, "values": values.resolve_conj()}
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
    copies = {name: snapshot(part).payload(tuple(part.shape)) for name, part in parts.items()}
    return pack(form, tuple(local.shape), facts, copies)

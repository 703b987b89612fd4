"""What is kept of a tensor beyond its facts: statistics, a digest, the data itself.

In comes a live tensor, out goes a `Kept`. The snapshot is a copy made at that moment, of the
tensor's own elements. Nothing computed here is seen by autograd, by a dispatch mode or by the
random number generators.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clew.address import Address, matches, matches_op
from clew.capture import changes
from clew.capture.budget import Budget
from clew.capture.changes import Look, content_hash
from clew.capture.tensors import PLAIN, odd_facts, version_of
from clew.capture.torch_compat import is_transformed, local_part, unobserved, without_modes
from clew.events.digest import checksum
from clew.events.model import Gap
from clew.events.records import Kept, Payload, Token, pack
from clew.events.statistics import Stats, moments

_INTEGRAL = frozenset(
    {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
     torch.uint16, torch.uint32, torch.uint64}
)  # fmt: skip


# Compressed sparse layouts, with the names of their two index parts.
COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"),
    torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_bsc: ("ccol_indices", "row_indices"),
}


_REMEMBERED = 4096
# Elements of which statistics cost more in calls than in arithmetic.
_FEW = 1 << 16
_CPU = torch.device("cpu")


class Keeper:
    """Decides what is kept of each tensor version, and keeps it."""

    def __init__(
        self,
        values: str,
        capture: list[Address],
        budget: Budget,
        on_gap: Callable[[Gap], Any],
        kept: list[Any],
    ) -> None:
        self._kept = kept
        self._budget = budget
        plain = [a for a in capture if a.role in (None, "in", "out")]
        self.modules = [a for a in plain if a.kind == "path"]
        self.ops = [a for a in plain if a.kind == "op"]
        self.matched: set[str] = set()
        self.is_asked = bool(self.modules or self.ops)
        self._full = values == "full"
        self._stats = values in ("stats", "full")
        self._on_gap = on_gap
        # Ids of tokens kept in full since the last hand-over.
        self._in_full: set[int] = set()
        # id of a token -> (token, elements, statistics, contiguous), for views to come
        self._taken: dict[int, tuple[Any, int, Any, bool]] = {}
        self._wanted_ops: dict[int, frozenset[str]] = {}

    def __call__(self, token: Token, tensor: Tensor, base: Any) -> None:
        """Keep what `values` asks for of a new tensor version, which may be a view of `base`."""
        if not self._stats:
            return
        known = None if self._full or base is None else self._taken.get(id(base))
        if known is not None and known[1] == tensor.numel() and _is_dense(tensor):
            # The same elements in another shape or order.
            stats = dict(known[2])
            if not (known[3] and tensor.is_contiguous()):
                stats.pop("digest", None)
            self._kept.append((token, Kept(stats, None)))
        else:
            self.keep(token, tensor, self._full)

    def keep(self, token: Token, tensor: Tensor, full: bool) -> None:
        """Keep statistics and, with `full`, the data."""
        if full:
            if id(token) in self._in_full:
                return
            self._in_full.add(id(token))
        try:
            with unobserved(), torch.no_grad(), without_modes():
                elements = _elements(tensor)
                if elements is None:
                    self._not_kept(tensor, "it has no elements of its own that could be copied")
                    return
                if self._budget.is_over():
                    return
                size = elements.numel() * elements.element_size()
                room = full and self._budget.has_room(elements.numel(), size)
                kept = _kept(tensor, elements, room)
                self._remember(token, tensor, kept)
            self._kept.append((token, kept))
        except Exception as fault:
            self._not_kept(tensor, f"{type(fault).__name__}: {fault}")

    def _remember(self, token: Token, tensor: Tensor, kept: Kept) -> None:
        """Have the statistics at hand for views of the same elements."""
        if len(self._taken) > _REMEMBERED:
            self._taken.clear()
        if kept.stats is not None and _is_dense(tensor):
            self._taken[id(token)] = (token, tensor.numel(), kept.stats, tensor.is_contiguous())

    def forget(self) -> None:
        """Tokens handed over may be gone after this, and their ids used again."""
        self._in_full.clear()

    def module_roles(self, paths: list[str], call: int) -> frozenset[str]:
        """Which sides of a module call are captured: `in`, `out`."""
        found = [
            address
            for address in self.modules
            if address.call in (None, call) and any(matches(address.path, p) for p in paths)
        ]
        self.matched.update(address.text for address in found)
        return frozenset(address.role or "out" for address in found)

    def op_roles(self, func: Any) -> frozenset[str]:
        """Which sides of an op are captured."""
        roles = self._wanted_ops.get(id(func))
        if roles is None:
            found = [a for a in self.ops if matches_op(a.path, str(func))]
            self.matched.update(address.text for address in found)
            roles = self._wanted_ops[id(func)] = frozenset(a.role or "out" for a in found)
        return roles

    def _not_kept(self, tensor: Tensor, why: str) -> None:
        what = f"values of {type(tensor).__name__} ({tensor.layout}, {tensor.dtype})"
        self._on_gap(Gap(what.replace("torch.", ""), "", why, "only their metadata is recorded"))


def payload_of(tensor: Tensor) -> Payload | None:
    """A copy of the data of a tensor, None if it has none of its own."""
    with unobserved(), torch.no_grad(), without_modes():
        elements = _elements(tensor)
        if elements is None:
            return None
        return _parts(tensor, elements) or as_payload(snapshot(elements))


def _is_dense(tensor: Tensor) -> bool:
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


def _elements(tensor: Tensor) -> Tensor | None:
    """The elements of a tensor as an ordinary strided one, None if it has none to copy.

    Those of a sparse tensor are its stored values, those of a quantised one the numbers it means.
    """
    local = local_part(tensor)
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


def _kept(tensor: Tensor, elements: Tensor, full: bool) -> Kept:
    if not full:
        return Kept(statistics(elements), None)
    payload = _parts(tensor, elements)
    if payload is not None:
        return Kept(statistics(elements), payload)
    copy = snapshot(elements)
    payload = as_payload(copy)
    if copy.numel() <= _FEW:
        # Their statistics can wait until the copy is stored or read.
        return Kept(None, payload)
    # Of the copy, so that both are of the same moment, and read from the device once.
    stats = statistics(copy)
    return Kept(stats, payload._replace(checksum=int(str(stats["digest"]), 16)))


def _parts(tensor: Tensor, elements: Tensor) -> Payload | None:
    """The data of a tensor made of several arrays (sparse, quantised), None for any other."""
    local = local_part(tensor)
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
    copies = {name: as_payload(snapshot(part)) for name, part in parts.items()}
    return pack(form, tuple(local.shape), facts, copies)


def snapshot(tensor: Tensor) -> Tensor:
    """A copy of the tensor's own elements, in row-major order."""
    if tensor.device == _CPU:
        copied = tensor.contiguous()
        return tensor.clone() if copied is tensor else copied
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device=_CPU)
    return copy.copy_(tensor)


def as_payload(copy: Tensor) -> Payload:
    """The bytes of a snapshot."""
    data = copy.reshape(-1).view(torch.uint8).numpy() if copy.numel() else b""
    return Payload(_dtype_name(copy.dtype), tuple(copy.shape), data)


@functools.cache
def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).replace("torch.", "")


def statistics(tensor: Tensor) -> Stats:
    """Minimum, maximum, mean, deviation, norm, and counts of NaN, Inf and zeros."""
    count = tensor.numel()
    found: Stats = {"count": count, "nan": 0, "inf": 0, "zeros": 0}
    if count:
        with np.errstate(all="ignore"):
            found.update(_moments(tensor))
    found["digest"] = _digest(tensor)
    return found


def _moments(tensor: Tensor) -> Stats:
    if tensor.dtype.is_complex:
        zeros = tensor.numel() - int(torch.count_nonzero(tensor))
        numbers = _in_memory_order(torch.view_as_real(tensor.contiguous()), tensor)
    else:
        numbers = _in_memory_order(tensor, tensor)
        zeros = int(np.count_nonzero(numbers == 0))
    return moments(numbers, zeros, _mean_and_norm)


def _mean_and_norm(numbers: np.ndarray[Any, Any]) -> tuple[float, float]:
    tensor = torch.from_numpy(numbers if numbers.flags.writeable else numbers.copy())
    squares = float(torch.dot(tensor, tensor))
    mean = float(tensor.sum()) / len(numbers)
    if not np.isfinite(squares) or not np.isfinite(mean):
        # Too large for the element type's own arithmetic.
        scale = float(np.abs(numbers).max())
        wide = numbers.astype(np.float64) / scale
        return float(wide.mean()) * scale, float(np.linalg.norm(wide)) * scale
    return mean, squares**0.5


def _in_memory_order(tensor: Tensor, owner: Tensor) -> np.ndarray[Any, Any]:
    """All elements as a flat float array, in any order, to be used while `owner` lives."""
    if not tensor.is_contiguous():
        # Transposed views of dense memory are flat in another order of their axes.
        order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
        tensor = tensor.permute(order).contiguous()
    flat = tensor.reshape(-1).cpu()
    if flat.dtype in _INTEGRAL:
        flat = flat.to(torch.float64)
    elif flat.dtype not in (torch.float32, torch.float64):
        flat = flat.to(torch.float32)
    return _array(flat, owner)


def _digest(tensor: Tensor) -> str:
    """A checksum of the elements: equal for equal content, whatever the memory layout."""
    if not tensor.numel():
        return f"{0:016x}"
    flat = tensor.contiguous().reshape(-1)
    # One element may have any stride and still count as contiguous.
    flat = flat.as_strided((flat.numel(),), (1,)).view(torch.uint8).cpu()
    return f"{checksum(_array(flat, tensor)):016x}"


# Bytes of which a hash costs less than to ask whether it is needed.
_FEW_BYTES = 1 << 16


def look_at(tensor: Tensor) -> Look:
    """A tensor as it is now: by its elements if they are few, or if no version tells of writes."""
    with unobserved(), without_modes():
        version = version_of(tensor)
        if type(tensor) in PLAIN and tensor.layout is torch.strided and tensor.device == _CPU:
            facts = (
                tuple(tensor.shape),
                tensor.dtype,
                "cpu",
                tensor.stride(),
                tensor.requires_grad,
            )
            memory = (id(tensor), version, tensor.data_ptr())
            size = tensor.numel() * tensor.element_size()
            if size <= _FEW_BYTES or version is None or not tensor.untyped_storage().resizable():
                return Look("Tensor", facts, memory, _content(tensor, size))
            return Look("Tensor", facts, memory, memory)
        shape, stride, device, extra = odd_facts(tensor)
        facts = (tuple(shape), tensor.dtype, str(device), (stride, *extra), tensor.requires_grad)
        memory = (id(tensor), version, 0)
        return Look(type(tensor).__name__, facts, memory, memory)


def _content(tensor: Tensor, size: int) -> int:
    """A hash of the elements of a tensor in memory."""
    with torch.no_grad():
        flat = tensor if tensor.is_contiguous() else tensor.contiguous()
    data = (ctypes.c_ubyte * size).from_address(flat.data_ptr()) if size else b""
    return content_hash(data)


changes.learn(look_at)


def _array(flat: Tensor, owner: Tensor) -> np.ndarray[Any, Any]:
    """The memory of a flat tensor as an array, to be used while `owner` lives.

    `Tensor.numpy()` forbids to resize that memory ever after, so it is only for copies of ours.
    """
    if flat.untyped_storage().data_ptr() != owner.untyped_storage().data_ptr():
        copied: np.ndarray[Any, Any] = flat.numpy()
        return copied
    size = flat.numel() * flat.element_size()
    memory: Any = (ctypes.c_ubyte * size).from_address(flat.data_ptr())
    return np.frombuffer(memory, dtype=str(flat.dtype).replace("torch.", ""))

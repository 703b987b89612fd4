"""What is kept of a tensor beyond its facts: statistics, a digest, the data itself.

In comes a live tensor, out goes a `Kept`. The snapshot is a copy made at that moment, of the
tensor's own elements. Nothing computed here is seen by autograd, by a dispatch mode or by the
random number generators.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clew.address import Address, matches, matches_op
from clew.capture.torch_compat import is_transformed, unobserved, without_modes
from clew.events.digest import checksum
from clew.events.model import Gap
from clew.events.records import Kept, Payload, Token, pack
from clew.events.settings import Limits

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
# Data handed to the sink at a time: what waits in memory is a few times this, however large or
# many the tensors of a step are.
_BATCH_BYTES = 32 << 20


class Keeper:
    """Decides what is kept of each tensor version, and keeps it."""

    def __init__(
        self,
        values: str,
        capture: list[Address],
        limits: Limits,
        on_gap: Callable[[Gap], Any],
    ) -> None:
        self.kept: list[Any] = []
        # Bytes of data in there.
        self.pending_bytes = 0
        self._limits = limits
        self._bytes = 0
        self._count = 0
        self._until = None if limits.seconds is None else time.monotonic() + limits.seconds
        plain = [a for a in capture if a.role in (None, "in", "out")]
        self.modules = [a for a in plain if a.kind == "path"]
        self.ops = [a for a in plain if a.kind == "op"]
        for address in capture:
            if address not in self.modules and address not in self.ops:
                on_gap(Gap("an address to capture", address.text,
                           "only inputs and outputs of modules and ops can be captured",
                           "name a module or op:..., with :in or :out"))  # fmt: skip
        self._matched: set[str] = set()
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
            self.kept.append((token, Kept(stats, None)))
        else:
            self.keep(token, tensor, self._full)

    def keep(self, token: Token, tensor: Tensor, full: bool) -> None:
        """Keep statistics and, with `full`, the data."""
        if full:
            if id(token) in self._in_full:
                return
            self._in_full.add(id(token))
        try:
            with unobserved(), torch.no_grad(), without_modes(), np.errstate(all="ignore"):
                elements = _elements(tensor)
                if elements is None:
                    self._not_kept(tensor, "it has no elements of its own that could be copied")
                    return
                if self._is_over():
                    return
                kept = self._kept(tensor, elements, full and self._has_room(elements))
                self._remember(token, tensor, kept)
            self.kept.append((token, kept))
        except Exception as fault:
            self._not_kept(tensor, f"{type(fault).__name__}: {fault}")

    def _kept(self, tensor: Tensor, elements: Tensor, full: bool) -> Kept:
        if not full:
            return Kept(statistics(elements), None)
        payload = _parts(tensor, elements)
        if payload is not None:
            stats = statistics(elements)
        else:
            # Of the copy, so that both are of the same moment, and read from the device once.
            copy = snapshot(elements)
            stats = statistics(copy)
            payload = as_payload(copy)
            if copy.numel():
                payload = payload._replace(checksum=int(str(stats["digest"]), 16))
        self.pending_bytes += len(payload.data)
        return Kept(stats, payload)

    @property
    def is_full(self) -> bool:
        """Whether so much data has gathered that it should be handed over."""
        return self.pending_bytes >= _BATCH_BYTES

    def _remember(self, token: Token, tensor: Tensor, kept: Kept) -> None:
        """Have the statistics at hand for views of the same elements."""
        if len(self._taken) > _REMEMBERED:
            self._taken.clear()
        if _is_dense(tensor):
            self._taken[id(token)] = (token, tensor.numel(), kept.stats, tensor.is_contiguous())

    def take(self) -> list[Any]:
        """Hand over what was kept; tokens may be gone after this, and their ids used again."""
        kept = self.kept[:]
        del self.kept[: len(kept)]
        self._in_full.clear()
        self.pending_bytes = 0
        return kept

    def module_roles(self, paths: list[str], call: int) -> frozenset[str]:
        """Which sides of a module call are captured: `in`, `out`."""
        found = [
            address
            for address in self.modules
            if address.call in (None, call) and any(matches(address.path, p) for p in paths)
        ]
        self._matched.update(address.text for address in found)
        return frozenset(address.role or "out" for address in found)

    def unmatched(self) -> list[str]:
        """Addresses of what should have been captured and never ran."""
        return [a.text for a in (*self.modules, *self.ops) if a.text not in self._matched]

    def op_roles(self, func: Any) -> frozenset[str]:
        """Which sides of an op are captured."""
        roles = self._wanted_ops.get(id(func))
        if roles is None:
            found = [a for a in self.ops if matches_op(a.path, str(func))]
            self._matched.update(address.text for address in found)
            roles = self._wanted_ops[id(func)] = frozenset(a.role or "out" for a in found)
        return roles

    def _is_over(self) -> bool:
        """Whether the time for values is up."""
        over = self._until is not None and time.monotonic() > self._until
        if over:
            self._limited(f"{self._limits.seconds} seconds", "seconds")
        return over

    def _has_room(self, tensor: Tensor) -> bool:
        """Whether the data of a tensor is within the limits."""
        limits = self._limits
        self._count += 1
        if limits.elements is not None and tensor.numel() > limits.elements:
            self._limited(f"{limits.elements} elements a value", "elements")
            return False
        if limits.sample > 1 and self._count % limits.sample != 1:
            self._limited(f"one value in {limits.sample}", "sample")
            return False
        size = tensor.numel() * tensor.element_size()
        if limits.bytes is not None and self._bytes + size > limits.bytes:
            self._limited(f"{limits.bytes} bytes", "bytes")
            return False
        self._bytes += size
        return True

    def _limited(self, what: str, name: str) -> None:
        self._on_gap(
            Gap("the data of values", "", f"the limit of {what} was reached",
                f"raise it with clew.trace(limits=Limits({name}=...))")
        )  # fmt: skip

    def _not_kept(self, tensor: Tensor, why: str) -> None:
        what = f"values of {type(tensor).__name__} ({tensor.layout}, {tensor.dtype})"
        self._on_gap(Gap(what.replace("torch.", ""), "", why, "only their metadata is recorded"))


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


def _parts(tensor: Tensor, elements: Tensor) -> Payload | None:
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
    copies = {name: as_payload(snapshot(part)) for name, part in parts.items()}
    return pack(form, tuple(local.shape), facts, copies)


def snapshot(tensor: Tensor) -> Tensor:
    """A copy of the tensor's own elements, in row-major order."""
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    return copy.copy_(tensor.detach())


def as_payload(copy: Tensor) -> Payload:
    """The bytes of a snapshot."""
    data = copy.reshape(-1).view(torch.uint8).numpy() if copy.numel() else b""
    return Payload(str(copy.dtype).replace("torch.", ""), tuple(copy.shape), data)


def statistics(tensor: Tensor) -> dict[str, float | int | str]:
    """Minimum, maximum, mean, deviation, norm, and counts of NaN, Inf and zeros."""
    count = tensor.numel()
    found: dict[str, float | int | str] = {"count": count, "nan": 0, "inf": 0, "zeros": 0}
    if count:
        found.update(_moments(tensor))
    found["digest"] = _digest(tensor)
    return found


def _moments(tensor: Tensor) -> dict[str, float | int | str]:
    if tensor.dtype.is_complex:
        zeros = tensor.numel() - int(torch.count_nonzero(tensor))
        numbers = _in_memory_order(torch.view_as_real(tensor.contiguous()), tensor)
    else:
        numbers = _in_memory_order(tensor, tensor)
        zeros = int(np.count_nonzero(numbers == 0))
    low, high = float(numbers.min()), float(numbers.max())
    nan = inf = 0
    if not np.isfinite(low) or not np.isfinite(high):
        nan = int(np.count_nonzero(np.isnan(numbers)))
        inf = int(np.count_nonzero(np.isinf(numbers)))
        numbers = numbers[np.isfinite(numbers)]
        if not len(numbers):
            nothing = dict.fromkeys(("min", "max", "mean", "std", "norm"), float("nan"))
            return {**nothing, "nan": nan, "inf": inf, "zeros": zeros}
        low, high = float(numbers.min()), float(numbers.max())
    mean, norm = _mean_and_norm(numbers)
    variance = norm * norm / len(numbers) - mean * mean
    if variance < 1e-3 * mean * mean:
        # The difference of two large numbers: take the deviation from the mean itself.
        _, deviation = _mean_and_norm(numbers.astype(np.float64) - mean)
        variance = deviation * deviation / len(numbers)
    return {
        "min": low, "max": high, "mean": mean, "std": max(variance, 0.0) ** 0.5, "norm": norm,
        "nan": nan, "inf": inf, "zeros": zeros,
    }  # fmt: skip


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

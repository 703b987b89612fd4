"""What is kept of a tensor beyond its facts: statistics, a digest, the data itself.

In comes a live tensor, out goes a `Kept`. The snapshot is a copy made at that moment, of the
tensor's own elements. Nothing computed here is seen by autograd, by a dispatch mode or by the
random number generators.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from clew.address import Address, matches, matches_op
from clew.capture.torch_compat import is_transformed, without_modes
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
        self._limits = limits
        self._bytes = 0
        self._count = 0
        self._until = None if limits.seconds is None else time.monotonic() + limits.seconds
        self.modules = [a for a in capture if a.kind == "path"]
        self.ops = [a for a in capture if a.kind == "op"]
        self._full = values == "full"
        self._stats = values in ("stats", "full")
        self._on_gap = on_gap
        self._in_full: set[int] = set()
        self._wanted_ops: dict[int, frozenset[str]] = {}

    def __call__(self, token: Token, tensor: Tensor) -> None:
        """Keep what `values` asks for of a new tensor version."""
        if self._stats:
            self.keep(token, tensor, self._full)

    def keep(self, token: Token, tensor: Tensor, full: bool) -> None:
        """Keep statistics and, with `full`, the data."""
        if full:
            if id(token) in self._in_full:
                return
            self._in_full.add(id(token))
        try:
            with torch.no_grad(), without_modes():
                elements = _elements(tensor)
                if elements is None:
                    self._not_kept(tensor, "it has no elements of its own that could be copied")
                    return
                if self._is_over():
                    return
                full = full and self._has_room(elements)
                kept = Kept(statistics(elements), _payload(tensor, elements) if full else None)
            self.kept.append((token, kept))
        except Exception as fault:
            self._not_kept(tensor, f"{type(fault).__name__}: {fault}")

    def module_roles(self, paths: list[str], call: int) -> frozenset[str]:
        """Which sides of a module call are captured: `in`, `out`."""
        return frozenset(
            address.role or "out"
            for address in self.modules
            if address.call in (None, call) and any(matches(address.path, p) for p in paths)
        )

    def op_roles(self, func: Any) -> frozenset[str]:
        """Which sides of an op are captured."""
        roles = self._wanted_ops.get(id(func))
        if roles is None:
            name = str(func)
            roles = self._wanted_ops[id(func)] = frozenset(
                address.role or "out" for address in self.ops if matches_op(address.path, name)
            )
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


def _payload(tensor: Tensor, elements: Tensor) -> Payload:
    """A tensor's data: its elements, or the parts it is made of."""
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
        return snapshot(elements)
    form = "quantized" if local.is_quantized else str(local.layout).replace("torch.", "")
    facts["dtype"] = str(local.dtype).replace("torch.", "")
    return pack(form, tuple(local.shape), facts, {n: snapshot(p) for n, p in parts.items()})


def snapshot(tensor: Tensor) -> Payload:
    """A copy of the tensor's own elements, in row-major order."""
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    copy.copy_(tensor.detach())
    raw = copy.reshape(-1).view(torch.uint8).numpy() if copy.numel() else None
    data = b"" if raw is None else raw
    return Payload(str(tensor.dtype).replace("torch.", ""), tuple(tensor.shape), data)


def statistics(tensor: Tensor) -> dict[str, float | int | str]:
    """Minimum, maximum, mean, deviation, norm, and counts of NaN, Inf and zeros."""
    count = tensor.numel()
    digest = _digest(tensor)
    if not count:
        return {"count": 0, "nan": 0, "inf": 0, "zeros": 0, "digest": digest}
    if tensor.dtype.is_complex:
        zeros = count - int(torch.count_nonzero(tensor))
        real = torch.view_as_real(tensor)
    elif tensor.dtype in _INTEGRAL:
        real = tensor.to(torch.float64)
        zeros = count - int(torch.count_nonzero(real))
    else:
        wide = tensor.dtype in (torch.float32, torch.float64)
        real = tensor if wide else tensor.to(torch.float32)
        zeros = count - int(torch.count_nonzero(real))
    low, high = (float(x) for x in torch.aminmax(real))
    nan = inf = 0
    if not (low - low == 0.0 and high - high == 0.0):
        nan = int(torch.isnan(real).sum())
        inf = int(torch.isinf(real).sum())
        finite = real[torch.isfinite(real)]
        if finite.numel():
            low, high = (float(x) for x in torch.aminmax(finite))
        else:
            low = high = float("nan")
        real = finite
    total = real.numel()
    mean = float(real.sum(dtype=torch.float64)) / total if total else float("nan")
    norm = float(torch.linalg.vector_norm(real, dtype=torch.float64)) if total else 0.0
    variance = max(norm * norm / total - mean * mean, 0.0) if total else float("nan")
    return {
        "min": low, "max": high, "mean": mean, "std": variance**0.5, "norm": norm,
        "nan": nan, "inf": inf, "zeros": zeros, "count": count, "digest": digest,
    }  # fmt: skip


def _digest(tensor: Tensor) -> str:
    """A checksum of the elements: equal for equal content, whatever the memory layout."""
    raw: Any = (
        tensor.contiguous().reshape(-1).view(torch.uint8).cpu().numpy() if tensor.numel() else b""
    )
    return f"{zlib.crc32(raw):08x}"

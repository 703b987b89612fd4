"""What is kept of a tensor beyond its facts: statistics, a digest, the data itself.

In comes a live tensor, out goes a `Kept`, or a function that gives one: the copy is made at that
moment, its statistics are taken by whoever the records are handed to. Nothing computed here is
seen by autograd, by a dispatch mode or by the random number generators.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from clew.address import Address, matches, matches_op
from clew.capture.snapshots import (
    SMALL,
    Snapshot,
    elements_of,
    is_dense,
    is_plain,
    parts_of,
    small_snapshot,
    snapshot,
)
from clew.capture.statistics import statistics
from clew.capture.torch_compat import unobserved, without_modes
from clew.events.model import Gap
from clew.events.records import Kept, Token
from clew.events.settings import Limits

_REMEMBERED = 4096
# Data handed to the sink at a time: what waits in memory is a few times this, however large or
# many the tensors of a step are.
_BATCH_BYTES = 32 << 20


# What is not kept, by the limit that was reached.
_LIMITED = {
    "bytes": "the data of values",
    "elements": "the data of large values",
    "sample": "the data of most values",
    "seconds": "the data and statistics of values",
}


@dataclass(frozen=True, slots=True)
class Taken:
    """What was kept of a tensor version, for views of the same elements to come.

    The token is held so that no other gets its id.
    """

    token: Token
    elements: tuple[Any, ...]
    contiguous: bool
    stats: dict[str, Any] | None
    snapshot: Snapshot | None


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
        self._taken: dict[int, Taken] = {}
        self._wanted_ops: dict[int, frozenset[str]] = {}

    def __call__(self, token: Token, tensor: Tensor, base: Any) -> None:
        """Keep what `values` asks for of a new tensor version, which may be a view of `base`."""
        if not self._stats:
            return
        known = None if base is None else self._taken.get(id(base))
        if known is not None and (not is_dense(tensor) or known.elements != _elements(tensor)):
            known = None
        if known is None or self._full:
            self.keep(token, tensor, self._full, known)
            return
        # The same elements in another shape or order.
        stats = dict(known.stats or (known.snapshot.stats if known.snapshot else {}))
        if not (known.contiguous and tensor.is_contiguous()):
            stats.pop("digest", None)
        self.kept.append((token, Kept(stats, None)))

    def keep(self, token: Token, tensor: Tensor, full: bool, known: Taken | None = None) -> None:
        """Keep statistics and, with `full`, the data; `known` has the same elements."""
        if full:
            if id(token) in self._in_full:
                return
            self._in_full.add(id(token))
        try:
            with unobserved(), without_modes():
                if self._until is not None and self._is_over():
                    return
                if full and is_plain(tensor):
                    size = tensor.numel() * tensor.element_size()
                    if 0 < size <= SMALL:
                        full = self._has_room(tensor.numel(), size)
                        if full:
                            self._add(token, tensor, small_snapshot(tensor, size), size)
                            return
                with torch.no_grad():
                    self._keep(token, tensor, full, known)
        except Exception as fault:
            self._not_kept(tensor, f"{type(fault).__name__}: {fault}")

    def _keep(self, token: Token, tensor: Tensor, full: bool, known: Taken | None) -> None:
        elements = elements_of(tensor)
        if elements is None:
            self._not_kept(tensor, "it has no elements of its own that could be copied")
            return
        shared = known.snapshot if known is not None and known.contiguous else None
        if not tensor.is_contiguous():
            shared = None
        size = elements.numel() * elements.element_size()
        if not full or not self._has_room(elements.numel(), 0 if shared else size):
            stats = statistics(elements)
            self.kept.append((token, Kept(stats, None)))
            self._remember(token, tensor, stats, None)
            return
        parts = parts_of(tensor, elements)
        if parts is not None:
            self.kept.append((token, Kept(statistics(elements), parts)))
            self.pending_bytes += len(parts.data)
            return
        copy = shared or snapshot(elements)
        self._add(token, elements, copy, 0 if shared else size)
        self._remember(token, tensor, None, copy)

    def _add(self, token: Token, elements: Tensor, copy: Snapshot, size: int) -> None:
        self.pending_bytes += size
        self.kept.append((token, partial(self._finished, copy, tuple(elements.shape))))

    def _finished(self, copy: Snapshot, shape: tuple[int, ...]) -> Kept:
        """What is kept in full, with its statistics; runs on the thread that writes."""
        try:
            return Kept(copy.stats, copy.payload(shape))
        except Exception as fault:
            self._on_gap(Gap("statistics of values", "", f"{type(fault).__name__}: {fault}",
                             "their data is recorded"))  # fmt: skip
            return Kept(None, copy.payload(shape))

    @property
    def is_full(self) -> bool:
        """Whether so much data has gathered that it should be handed over."""
        return self.pending_bytes >= _BATCH_BYTES

    def _remember(self, token: Token, tensor: Tensor, stats: Any, copy: Snapshot | None) -> None:
        """Have what was kept at hand for views of the same elements."""
        if len(self._taken) > _REMEMBERED:
            self._taken.clear()
        if is_dense(tensor):
            contiguous = tensor.is_contiguous()
            self._taken[id(token)] = Taken(token, _elements(tensor), contiguous, stats, copy)

    def take(self) -> list[Any]:
        """Hand over what was kept; tokens may be gone after this, and their ids used again."""
        kept = self.kept[:]
        del self.kept[: len(kept)]
        self._in_full.clear()
        # The data goes with its batch.
        self._taken = {id(t.token): t for t in self._taken.values() if t.snapshot is None}
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

    def _has_room(self, elements: int, size: int) -> bool:
        """Whether the data of a tensor is within the limits."""
        limits = self._limits
        self._count += 1
        if limits.elements is not None and elements > limits.elements:
            self._limited(f"{limits.elements} elements a value", "elements")
            return False
        if limits.sample > 1 and self._count % limits.sample != 1:
            self._limited(f"one value in {limits.sample}", "sample")
            return False
        if limits.bytes is not None and self._bytes + size > limits.bytes:
            self._limited(f"{limits.bytes} bytes", "bytes")
            return False
        self._bytes += size
        return True

    def _limited(self, what: str, name: str) -> None:
        self._on_gap(
            Gap(_LIMITED[name], "", f"the limit of {what} was reached",
                f"raise it with clew.trace(limits=Limits({name}=...))")
        )  # fmt: skip

    def _not_kept(self, tensor: Tensor, why: str) -> None:
        what = f"values of {type(tensor).__name__} ({tensor.layout}, {tensor.dtype})"
        self._on_gap(Gap(what.replace("torch.", ""), "", why, "only their metadata is recorded"))


def _elements(tensor: Tensor) -> tuple[Any, ...]:
    """What tensors on the same memory have in common if they have the same elements."""
    return (
        tensor.numel(), tensor.dtype, tensor.data_ptr(), tensor.is_conj(), tensor.is_neg()
    )  # fmt: skip

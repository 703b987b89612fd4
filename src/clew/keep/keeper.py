"""Keep more of a tensor than its facts: statistics, a digest, the data itself.

Comes in: a live tensor. Goes out: a `Kept`, or a function that returns one: the data is copied at
once, the thread that takes the records computes the statistics of the copy. Autograd, dispatch
modes and the random number generators see nothing of what is computed here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from clew.address import Address, matches_field
from clew.events.digest import checksum
from clew.events.model import Gap
from clew.events.statistics import Statistics
from clew.events.vocabulary import KeepLevel, Kept
from clew.keep.budget import Budget
from clew.keep.buffers import Buffers
from clew.keep.changes import ValueState
from clew.keep.device_statistics import DeviceStatistics
from clew.keep.fingerprints import (
    DeviceFingerprints,
    fingerprint,
    fingerprint_of_bytes,
    fingerprint_of_parameter,
)
from clew.keep.identity import PLAIN, odd_facts, version_of
from clew.keep.nesting import tensors_in
from clew.keep.snapshots import (
    SMALL,
    Snapshot,
    counted_snapshot,
    elements_of,
    is_dense,
    is_plain,
    parts_of,
    plain_snapshot,
    snapshot,
)
from clew.keep.tensor_statistics import (
    digest_of,
    memory_of,
    statistics,
    statistics_of_bytes,
    statistics_of_parameter,
)
from clew.program_errors import pass_on
from clew.request.interest import Interest, NameOfModule
from clew.stream.records import Made, Token
from clew.torch_compat import (
    has_memory,
    is_transformed,
    set_grad_enabled,
    unobserved,
    without_modes,
)

_REMEMBERED = 4096
# Bytes of tensors that are faster to copy now, and to compute the statistics of with others later.
_SOON_COPIED = 16 << 10


class Taken(NamedTuple):
    """What was kept of a tensor version, for later views of the same elements.

    The token is held so that no other gets its id. `stats` is a function while an accelerator
    computes them. `in_order` says whether statistics and snapshot are of the elements in the order
    that the tensor has them in.
    """

    token: Token
    elements: tuple[Any, ...]
    contiguous: bool
    stats: Statistics | Callable[[], Statistics] | None
    snapshot: Snapshot | None
    in_order: bool = True
    # Whether its fingerprint was kept too.
    marked: bool = False

    def measured(self) -> Statistics:
        """Return the statistics, which are taken once."""
        stats = self.stats() if callable(self.stats) else self.stats
        if stats is None:
            stats = {} if self.snapshot is None else self.snapshot.stats
        if not self.in_order:
            # In another order they have another digest, and to read them in it takes a copy.
            stats = {name: found for name, found in stats.items() if name != "digest"}
        return stats


# A fingerprint, or a function that computes it when the records are stored.
Mark: TypeAlias = bytes | Callable[[], bytes] | None


class Keeper:
    """Decides how much to keep of each tensor version, and keeps it."""

    def __init__(
        self,
        values: str,
        interest: Interest,
        budget: Budget,
        on_gap: Callable[[Gap], Any],
        kept: list[Any],
    ) -> None:
        self._kept = kept
        self._budget = budget
        self.interest = interest
        self._ledger = interest.ledger
        self._level = KeepLevel[values.upper()]
        self._on_gap = on_gap
        # id of a token kept in full -> the token, and its `Made` until that is handed over
        self._in_full: dict[int, tuple[Token, Made | None]] = {}
        self._taken: dict[int, Taken] = {}
        self._buffers = Buffers()
        self._on_devices = DeviceStatistics()
        self._marks_on_devices = DeviceFingerprints()

    def __call__(self, token: Token, tensor: Tensor, base: Any) -> None:
        """Keep what the option `values` asks for of a new tensor version.

        The tensor may have the elements of `base`, as a view has.
        """
        if self._level is KeepLevel.META:
            return
        known = None if base is None else self._taken.get(id(base))
        # A sparse tensor has no memory to compare.
        if known is not None and (not is_dense(tensor) or known.elements != _elements(tensor)):
            known = None
        if known is not None and self._level is KeepLevel.STATS:
            self._keep_view(token, tensor, known)
            return
        self._keep(token, tensor, self._level, known, later=True)

    def keep(self, token: Token, tensor: Tensor, level: KeepLevel) -> Made | None:
        """Keep as much of a tensor version as the level says, unless it was kept before.

        Return what is kept of it, None if that was handed over already or there is nothing.
        """
        in_full = self._in_full.get(id(token))
        if in_full is not None:
            return in_full[1]
        have = self._taken.get(id(token))
        if level is KeepLevel.FULL:
            if have is not None and not _is_as_taken(tensor, have):
                have = None
        else:
            level = max(level, min(self._level, KeepLevel.FINGERPRINT))
            if have is not None and (have.marked or not _is_marked(level)):
                return partial(self._finished_view, have)
        return self._keep(token, tensor, level, have, later=False)

    def _keep(
        self, token: Token, tensor: Tensor, level: KeepLevel, known: Taken | None, later: bool
    ) -> Made | None:
        """Keep what the level says: statistics, the fingerprint, the data.

        `known` has the same elements. With `later`, the statistics may be computed when the records
        are handed over.
        """
        made = self._made(token, tensor, level, known, later)
        if made is not None:
            self._kept.append((token, made))
        if level is KeepLevel.FULL:
            if len(self._in_full) > _REMEMBERED:
                self._in_full.clear()
            self._in_full[id(token)] = (token, made)
        return made

    def _keep_view(self, token: Token, tensor: Tensor, known: Taken) -> None:
        """Keep the statistics of a new tensor version that has the elements of another."""
        try:
            with unobserved():
                if not self._budget.is_over():
                    if tensor.is_contiguous() and not known.contiguous:
                        self._keep(token, tensor, KeepLevel.STATS, known, later=False)
                    else:
                        made = self._of_view(token, tensor, known, KeepLevel.STATS)
                        self._kept.append((token, made))
        except Exception as fault:
            pass_on(fault)
            self._not_kept(tensor, f"{type(fault).__name__}: {fault}")

    def _made(
        self, token: Token, tensor: Tensor, level: KeepLevel, known: Taken | None, later: bool
    ) -> Made | None:
        made: Made | None = None
        try:
            with unobserved():
                if self._budget.is_over():
                    return None
                if is_plain(tensor):
                    return self._of_plain(token, tensor, level, known, later)
                grad = torch.is_grad_enabled()
                # Not `torch.no_grad()`: an interrupt inside its `__enter__` would leave grad off.
                try:
                    set_grad_enabled(False)
                    with without_modes():
                        if known is None or level is KeepLevel.FULL:
                            made = self._of(token, tensor, level, known)
                        else:
                            made = self._of_view(token, tensor, known, level)
                finally:
                    set_grad_enabled(grad)
        except Exception as fault:
            pass_on(fault)
            self._not_kept(tensor, f"{type(fault).__name__}: {fault}")
        return made

    def _of_plain(
        self, token: Token, tensor: Tensor, level: KeepLevel, known: Taken | None, later: bool
    ) -> Made:
        """Keep a tensor for which `is_plain` holds: its bytes can be read without torch."""
        full = level is KeepLevel.FULL
        count = tensor.numel()
        size = count * tensor.element_size()
        stats: Statistics | None = None
        copy = known.snapshot if full and known is not None and known.contiguous else None
        if full and self._budget.has_room(count, 0 if copy else size):
            copy = copy or self._copy(tensor, size)
            made: Made = partial(self._finished, copy, tuple(tensor.shape))
        elif known is not None:
            return self._of_view(token, tensor, known, level)
        elif later and 0 < size <= _SOON_COPIED:
            # Computing statistics between two ops would load their code into the cache each time.
            copy = plain_snapshot(tensor, size, self._buffers.take)
            self._budget.pending += size
            made = partial(self._finished, copy, None, self._mark(tensor, level, copy))
        else:
            if type(tensor) is torch.nn.Parameter:
                stats = statistics_of_parameter(tensor, version_of(tensor))
            else:
                stats = statistics_of_bytes(memory_of(tensor), tensor.dtype)
            copy = None
            made = Kept(stats, None, self._mark_now(tensor, level, stats))
        taken = Taken(token, _elements(tensor), True, stats, copy, marked=_is_marked(level))
        self._remember(token, taken)
        return made

    def _copy(self, tensor: Tensor, size: int) -> Snapshot:
        """Copy a plain tensor; compute its statistics as well if the writing thread is behind."""
        if size > SMALL and self._budget.is_behind():
            return counted_snapshot(tensor, size, self._buffers.take)
        return plain_snapshot(tensor, size, self._buffers.take)

    def _of(
        self, token: Token, tensor: Tensor, level: KeepLevel, known: Taken | None
    ) -> Made | None:
        """Keep any other tensor; return None if it has no elements to keep."""
        full = level is KeepLevel.FULL
        elements = elements_of(tensor)
        if elements is None:
            self._not_kept(tensor, "it has no elements of its own that could be copied")
            return None
        if elements.is_cuda and torch.cuda.is_current_stream_capturing():
            self._not_kept(tensor, "a CUDA graph is being captured, which would hold our ops too")
            return None
        shared = known.snapshot if known is not None and known.contiguous else None
        if shared is not None and not tensor.is_contiguous():
            shared = None
        size = elements.numel() * elements.element_size()
        stats: Statistics | Callable[[], Statistics] | None = None
        copy: Snapshot | None = None
        if not full or not self._budget.has_room(elements.numel(), 0 if shared else size):
            if elements.is_cpu:
                stats = statistics(elements)
                made: Made = Kept(stats, None, self._mark_now(elements, level))
            else:
                stats = self._on_devices.measure(elements)
                taken = Taken(token, (), True, stats, None)
                made = partial(self._finished_view, taken, self._mark(elements, level))
        else:
            parts = parts_of(tensor, elements)
            if parts is not None:
                return Kept(statistics(elements), parts)
            copy = shared or snapshot(elements, self._buffers.take)
            made = partial(self._finished, copy, tuple(elements.shape))
        if is_dense(tensor):
            contiguous = tensor.is_contiguous()
            marked = _is_marked(level)
            taken = Taken(token, _elements(tensor), contiguous, stats, copy, marked=marked)
            self._remember(token, taken)
        return made

    def _of_view(self, token: Token, tensor: Tensor, known: Taken, level: KeepLevel) -> Made:
        """Keep the statistics of elements that are known, in another shape or order."""
        contiguous = tensor.is_contiguous()
        if contiguous and not known.contiguous and tensor.is_cpu:
            stats = {**known.measured(), "digest": digest_of(tensor)}
            taken = Taken(token, known.elements, contiguous, stats, None)
        else:
            in_order = contiguous and known.in_order
            taken = Taken(token, known.elements, contiguous, known.stats, known.snapshot, in_order)
        self._remember(token, taken._replace(marked=_is_marked(level)))
        mark = self._mark(tensor, level, taken.snapshot if taken.in_order else None)
        return partial(self._finished_view, taken, mark)

    def _mark(self, tensor: Tensor, level: KeepLevel, copy: Snapshot | None = None) -> Mark:
        """Return the fingerprint of a tensor, if the level has it, or how to compute it later.

        `copy` has its elements, in the order that the tensor has them in.
        """
        if not _is_marked(level):
            return None
        if copy is not None:
            return partial(copy.fingerprint, tuple(tensor.shape))
        if tensor.is_cpu:
            return self._mark_now(tensor, level)
        elements = elements_of(tensor)
        return None if elements is None else self._marks_on_devices.measure(elements)

    def _mark_now(
        self, tensor: Tensor, level: KeepLevel, stats: Statistics | None = None
    ) -> bytes | None:
        """Return the fingerprint of a tensor in memory, None if the level has none.

        `stats` are given for a plain one.
        """
        if not _is_marked(level):
            return None
        if stats is not None and type(tensor) is torch.nn.Parameter:
            return fingerprint_of_parameter(tensor, stats.get("digest"))
        if is_plain(tensor):
            return fingerprint_of_bytes(memory_of(tensor), tensor.dtype, tuple(tensor.shape))
        elements = elements_of(tensor)
        return None if elements is None else fingerprint(elements)

    def _finished_view(self, taken: Taken, mark: Mark = None) -> Kept:
        """Return statistics that were or are being computed, when the records are stored."""
        try:
            return Kept(taken.measured(), None, mark() if callable(mark) else mark)
        except Exception as fault:
            self._statistics_failed(fault, "only their metadata is recorded")
            return Kept(None, None)

    def _finished(self, copy: Snapshot, shape: tuple[int, ...] | None, mark: Mark = None) -> Kept:
        """Return the statistics of a copy and, with a shape, its data.

        Runs on the thread that writes.
        """
        stats: Statistics | None = None
        found: bytes | None = None
        try:
            stats = copy.stats
            found = mark() if callable(mark) else mark
        except Exception as fault:
            left = "only their metadata is recorded" if shape is None else "their data is recorded"
            self._statistics_failed(fault, left)
        return Kept(stats, None if shape is None else copy.payload(shape), found)

    def _statistics_failed(self, fault: Exception, left: str) -> None:
        pass_on(fault)
        self._on_gap(Gap("statistics of values", "", f"{type(fault).__name__}: {fault}", left))

    def _remember(self, token: Token, taken: Taken) -> None:
        """Remember what was kept, for views of the same elements."""
        if len(self._taken) > _REMEMBERED:
            self._taken.clear()
        self._taken[id(token)] = taken

    def forget(self) -> None:
        """Drop the data that was handed over with its batch."""
        for key in list(self._in_full):  # a copy, as other threads keep values meanwhile
            kept = self._in_full.get(key)
            if kept is not None:
                self._in_full[key] = (kept[0], None)
        taken = list(self._taken.values())  # a copy, as other threads keep values meanwhile
        self._taken = {id(t.token): t for t in taken if t.snapshot is None}

    @property
    def remembered(self) -> int:
        """Return of how many tensor versions something is remembered."""
        return len(self._taken) + len(self._in_full)

    def forget_all_but(self, alive: set[int]) -> None:
        """Forget tensor versions that are gone; `alive` has the ids of the tokens of all others."""
        for known in (self._taken, self._in_full):
            for key in [key for key in list(known) if key not in alive]:
                known.pop(key, None)

    def keep_call(
        self, name: NameOfModule, call: int, side: str, value: Any, known: Callable[..., Token]
    ) -> None:
        """Keep what was asked for of a module call's `in` or `out`, of which `known` has tokens."""
        found = self.interest.of_module(name)
        for address in found.kept_inputs if side == "in" else found.kept_outputs:
            if address.call in (None, call):
                self._keep_inside(address, value, known)

    def keep_op(self, func: Any, side: str, value: Any, known: Callable[..., Token]) -> None:
        """Keep what was asked for of an op's `in` or `out`."""
        found = self.interest.of_op(func)
        for address in found.kept_inputs if side == "in" else found.kept_outputs:
            self._keep_inside(address, value, known)

    def _keep_inside(self, address: Address, value: Any, known: Callable[..., Token]) -> None:
        there = list(tensors_in(value))
        found = [t for path, t in there if not address.field or matches_field(address.field, path)]
        if found or not address.field:
            self._ledger.came.add(address.text)
        else:
            elsewhere = self._ledger.elsewhere.setdefault(address.text, set())
            elsewhere.update(path for path, _ in there)
        for tensor in found:
            self.keep(known(tensor), tensor, KeepLevel.FULL)

    def _not_kept(self, tensor: Tensor, why: str) -> None:
        what = f"values of {type(tensor).__name__} ({tensor.layout}, {tensor.dtype})"
        self._on_gap(Gap(what.replace("torch.", ""), "", why, "only their metadata is recorded"))


def _is_marked(level: KeepLevel) -> bool:
    """Return whether a level has fingerprints."""
    return level >= KeepLevel.FINGERPRINT


def _is_as_taken(tensor: Tensor, taken: Taken) -> bool:
    """Return whether the copy still equals the tensor: writes past torch raise no version."""
    with unobserved():
        copy = taken.snapshot
        return copy is not None and is_plain(tensor) and copy.holds(memory_of(tensor))


def _elements(tensor: Tensor) -> tuple[Any, ...]:
    """Return a key that is equal for tensors with the same elements on the same memory."""
    return (
        tensor.numel(), tensor.dtype, tensor.data_ptr(), tensor.is_conj(), tensor.is_neg()
    )  # fmt: skip


# Up to so many bytes, hashing the elements costs less than finding out whether it is needed.
_FEW_BYTES = 1 << 16


def tensor_state(tensor: Tensor) -> ValueState:
    """Return the state of a tensor: its elements if they are few or writes raise no version."""
    if type(tensor) in PLAIN:
        with unobserved():
            if (
                tensor.layout is torch.strided
                and tensor.is_cpu
                and not (tensor.is_nested or is_transformed(tensor))
            ):
                return _state_in_memory(tensor)
    with unobserved(), without_modes():
        shape, stride, device, extra = odd_facts(tensor)
        facts = (tuple(shape), tensor.dtype, str(device), (stride, *extra), tensor.requires_grad)
        memory = (id(tensor), version_of(tensor), 0)
        return ValueState(type(tensor).__name__, facts, memory, memory)


def _state_in_memory(tensor: Tensor) -> ValueState:
    facts = (tuple(tensor.shape), tensor.dtype, "cpu", tensor.stride(), tensor.requires_grad)
    version = version_of(tensor)
    memory = (id(tensor), version, tensor.data_ptr())
    size = tensor.nbytes
    if size > _FEW_BYTES and version is not None and tensor.untyped_storage().resizable():
        return ValueState("Tensor", facts, memory, memory)
    content = _content(tensor, size) if has_memory(tensor) else memory
    return ValueState("Tensor", facts, memory, content)


def _content(tensor: Tensor, size: int) -> int:
    """Return a hash of the elements of a tensor in memory."""
    flat = tensor
    if not tensor.is_contiguous():
        with torch.no_grad(), without_modes():
            flat = tensor.contiguous()
    data = (ctypes.c_ubyte * size).from_address(flat.data_ptr()) if size else b""
    return checksum(data)


def small_elements(tensor: Tensor, most: int) -> Any:
    """Return the elements of a tensor with at most `most` of them as nested lists, else None."""
    with unobserved(), torch.no_grad(), without_modes():
        elements = elements_of(tensor)
        if elements is None or elements.numel() > most:
            return None
        if elements.dtype.is_floating_point and elements.element_size() == 1:
            elements = elements.to(torch.float32)
        return elements.cpu().tolist()


def numbers(tensor: Tensor, digest: bool) -> Statistics | None:
    """Compute the statistics of a tensor as it is now; None if its elements cannot be read."""
    try:
        with unobserved(), torch.no_grad(), without_modes():
            elements = elements_of(tensor)
            return None if elements is None else statistics(elements, digest)
    except Exception as odd:  # a kind of tensor whose elements cannot be read
        pass_on(odd)
        return None

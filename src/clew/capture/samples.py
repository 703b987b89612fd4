"""Values on their way between ranks: facts and bytes, never pickles.

In comes a live value, out comes a `Sample` that holds a copy of it; samples go to bytes and back.
What a sample stands for is put together again by whoever knows how to read a payload.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from clew.capture import plain
from clew.capture.snapshots import Snapshot, elements_of, parts_of, snapshot
from clew.capture.structure import describe
from clew.capture.tensors import odd_facts
from clew.capture.torch_compat import unobserved, without_modes
from clew.events.records import GATHERED, SAVED, Extra, Kept, Label, Payload

# Makes a value of its payload: as a "tensor", an "array" or the Python "object" it was.
Restore: TypeAlias = Callable[[Payload, str], Any]


class Leaf(NamedTuple):
    """One tensor, array or number inside a value: its facts, and its data if there is some."""

    path: str
    shape: tuple[int, ...] | None
    stride: tuple[int, ...] | None
    dtype: str
    device: str
    extra: Extra
    payload: Payload | None

    def kept(self) -> Kept:
        """What is kept of it: the data and, where it is that of a tensor, statistics."""
        payload = self.payload
        dtype = getattr(torch, payload.dtype, None) if payload is not None else None
        if payload is None or not isinstance(dtype, torch.dtype):
            return Kept(None, payload)
        data = np.frombuffer(payload.data, np.uint8)
        return Kept(Snapshot(data, dtype).stats, payload)


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a series: what it is of, from which step and rank."""

    label: Label
    step: int
    rank: int | None
    leaves: tuple[Leaf, ...]

    @property
    def key(self) -> Label:
        """What all samples of one series share."""
        return replace(self.label, stage=SAVED, rank=None)

    def becomes(self, stage: str) -> Label:
        """The label of the event that the sample is recorded in."""
        return replace(self.label, kind=GATHERED, stage=stage, rank=self.rank)

    def value(self, restore: Restore) -> Any:
        """The value; what had several parts as a dict by their paths."""
        parts = {leaf.path: _restored(leaf, restore) for leaf in self.leaves}
        return parts[""] if list(parts) == [""] else parts


def leaves_of(value: Any) -> tuple[Leaf, ...]:
    """A copy of everything in a value, as it is now."""
    return tuple(
        leaf._replace(path=path) for path, leaf in _walk(describe(value, _tensor, 0, _plain), "")
    )


def to_bytes(samples: Iterable[Sample]) -> tuple[bytes, bytes]:
    """Samples as a head that says what there is, and their data."""
    listed, data = [], []
    for sample in samples:
        leaves = []
        for leaf in sample.leaves:
            *facts, payload = leaf
            size = None
            if payload is not None:
                content = bytes(payload.data)
                data.append(content)
                size = [payload.dtype, payload.shape, len(content)]
            leaves.append([*facts, size])
        listed.append([astuple(sample.label), sample.step, leaves])
    return json.dumps(listed).encode(), b"".join(data)


def from_bytes(head: bytes, data: bytes, rank: int) -> list[Sample]:
    """The samples a rank sent."""
    samples, position = [], 0
    for label, step, listed in json.loads(head):
        leaves = []
        for path, shape, stride, dtype, device, extra, kept in listed:
            payload = None
            if kept is not None:
                content = data[position : position + kept[2]]
                position += kept[2]
                payload = Payload(kept[0], tuple(kept[1]), content)
            layout, cls, placements, local = extra
            leaves.append(
                Leaf(path, _sizes(shape), _sizes(stride), dtype, device,
                     Extra(layout, cls, placements, _sizes(local)), payload)
            )  # fmt: skip
        samples.append(Sample(Label(*label), step, rank, tuple(leaves)))
    return samples


def _sizes(listed: list[int] | None) -> tuple[int, ...] | None:
    return None if listed is None else tuple(listed)


def _tensor(tensor: Any) -> Leaf:
    with unobserved():
        shape, stride, device, extra = odd_facts(tensor)
        dtype = str(tensor.dtype).replace("torch.", "")
    known = None if -1 in shape else tuple(shape)
    return Leaf("", known, stride, dtype, str(device or ""), extra, _payload(tensor))


def _payload(tensor: Any) -> Payload | None:
    """A copy of the data of a tensor, None if it has none of its own."""
    with unobserved(), torch.no_grad(), without_modes():
        elements = elements_of(tensor)
        if elements is None:
            return None
        whole = parts_of(tensor, elements)
        return snapshot(elements).payload(tuple(elements.shape)) if whole is None else whole


def _plain(value: Any) -> Leaf:
    shape, stride, dtype, device, extra = plain.facts_of(value)
    return Leaf("", tuple(shape), stride, dtype, device, extra, plain.payload_of(value))


def _walk(described: Any, path: str) -> Iterator[tuple[str, Leaf]]:
    if isinstance(described, Leaf):
        yield path, described
    elif isinstance(described, (list, dict)):
        items = described.items() if isinstance(described, dict) else enumerate(described)
        for key, item in items:
            yield from _walk(item, f"{path}.{key}" if path else str(key))


def _restored(leaf: Leaf, restore: Restore) -> Any:
    if leaf.payload is None:
        return None
    if not leaf.device:
        return restore(leaf.payload, "object")
    return restore(leaf.payload, "array" if leaf.extra.cls == "ndarray" else "tensor")

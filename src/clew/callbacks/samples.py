"""Copy values as facts and bytes, to send them between ranks.

Input: a live value. Output: a `Sample` that holds a copy of it. A `Restore` function makes the
value again from the payloads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from clew.events.columns import (
    COLUMN_NAMES,
    EVENT_COLUMNS,
    OUT,
    VALUE_COLUMNS,
    Leaf,
    Meta,
    Template,
)
from clew.events.columns import Tensor as TensorMark
from clew.events.vocabulary import GATHERED, PARTS, SAVED, Kept, Label, Payload
from clew.keep import python_values
from clew.keep.identity import odd_facts
from clew.keep.nesting import describe
from clew.keep.snapshots import (
    Snapshot,
    bytes_of,
    elements_of,
    is_plain,
    parts_of,
    snapshot,
)
from clew.stream.batch import Batch
from clew.stream.records import Extra
from clew.torch_compat import unobserved, without_modes

# Makes a value from its payload: a "tensor", an "array" or the Python "object" it was.
Restore: TypeAlias = Callable[[Payload, str], Any]

# The `Extra` of an ordinary tensor.
_PLAIN = Extra("strided", "Tensor", None, None)


class SampleLeaf(NamedTuple):
    """One tensor, array or number inside a value: its facts, and its data if there is some."""

    path: str
    shape: tuple[int, ...] | None
    stride: tuple[int, ...] | None
    dtype: str
    device: str
    extra: Extra
    payload: Payload | None

    def kept(self) -> Kept:
        """Return its data and, for a tensor, statistics."""
        payload = self.payload
        dtype = getattr(torch, payload.dtype, None) if payload is not None else None
        if payload is None or not isinstance(dtype, torch.dtype):
            return Kept(None, payload)
        data = np.frombuffer(payload.data, np.uint8)
        return Kept(Snapshot(data, dtype).stats, payload)


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a series: its label, step and rank.

    `ordinal` is 1 for the first step of the mode that is followed. It is a number, or an array of
    numbers for a value made from several steps.
    """

    label: Label
    step: int
    ordinal: Any
    rank: int | None
    leaves: tuple[SampleLeaf, ...]

    @property
    def key(self) -> Label:
        """Return the label that all samples of one series share."""
        return _series(self.label)

    @property
    def has_data(self) -> bool:
        """Return whether there is any data: a module has none, nor has a tensor on `meta`."""
        return any(leaf.payload is not None for leaf in self.leaves)

    def becomes(self, stage: str) -> Label:
        """Return the label of the event that the sample is recorded in."""
        return replace(self.label, kind=GATHERED, stage=stage, rank=self.rank)

    def value(self, restore: Restore) -> Any:
        """Return the value; one of several parts as a dict by their paths.

        If the sample was taken in this process, the value shares the sample's memory.
        """
        parts = {leaf.path: _restored(leaf, restore) for leaf in self.leaves}
        return parts[""] if list(parts) == [""] else parts


@functools.lru_cache(maxsize=4096)
def _series(label: Label) -> Label:
    return replace(label, stage=SAVED, rank=None)


def batch_of(samples: list[Sample]) -> Batch:
    """Make a batch of samples: an event for each, a value for each leaf."""
    labels: dict[Label, int] = {}
    templates: dict[tuple[str, ...], int] = {}
    metas: dict[Meta, int] = {}
    columns: dict[str, list[int]] = {name: [] for name in COLUMN_NAMES}
    kept: dict[int, Kept] = {}
    for number, sample in enumerate(samples):
        event = dict.fromkeys(EVENT_COLUMNS, -1)
        paths = tuple(leaf.path for leaf in sample.leaves)
        event |= {
            "id": number, "kind": GATHERED, "number": sample.step,
            "subject": labels.setdefault(sample.label, len(labels)),
            "template": templates.setdefault(paths, len(templates)),
            "first_ref": len(columns["refs"]),
        }  # fmt: skip
        for leaf in sample.leaves:
            meta = Meta(leaf.dtype, leaf.shape, leaf.stride, leaf.device, *leaf.extra)
            value = dict.fromkeys(VALUE_COLUMNS, -1)
            value |= {"version": 0, "grad": 0, "meta": metas.setdefault(meta, len(metas))}
            columns["refs"].append(len(columns["meta"]))
            if leaf.payload is not None:
                kept[len(columns["meta"])] = Kept(None, leaf.payload)
            for name in VALUE_COLUMNS:
                columns[name].append(value[name])
        for name in EVENT_COLUMNS:
            columns[name].append(event[name])
    written = [
        Template(tuple(Leaf(OUT, path, TensorMark) for path in paths)) for paths in templates
    ]
    tables: dict[str, list[Any]] = {
        "labels": list(labels),
        "templates": written,
        "metas": list(metas),
    }
    arrays = {name: np.array(column, np.int64) for name, column in columns.items()}
    return Batch(arrays, 0, tables, kept)


def samples_of(batch: Batch, ordinals: list[Any]) -> list[Sample]:
    """Return the samples that a batch was made from; `ordinals` are theirs."""
    columns = {name: column.tolist() for name, column in batch.columns.items()}
    ends = [*columns["first_ref"], len(columns["refs"])][1:]
    found = []
    for row, (first, end) in enumerate(zip(columns["first_ref"], ends, strict=True)):
        paths = [leaf.path for leaf in batch.tables["templates"][columns["template"][row]].leaves]
        leaves = []
        for path, value in zip(paths, columns["refs"][first:end], strict=True):
            meta: Meta = batch.tables["metas"][columns["meta"][value]]
            extra = Extra(meta.layout, meta.cls, meta.placements, meta.local_shape)
            payload = batch.kept[value].payload if value in batch.kept else None
            leaves.append(
                SampleLeaf(path, meta.shape, meta.stride, meta.dtype, meta.device, extra, payload)
            )
        label = batch.tables["labels"][columns["subject"][row]]
        found.append(Sample(label, columns["number"][row], ordinals[row], None, tuple(leaves)))
    return found


def leaves_of(value: Any) -> tuple[SampleLeaf, ...]:
    """Copy everything in a value, as it is now."""
    described = describe(value, _tensor, 0, _plain)
    if isinstance(described, SampleLeaf):
        return (described,)
    return tuple(leaf._replace(path=path) for path, leaf in _walk(described, ""))


def _tensor(tensor: Any) -> SampleLeaf:
    with unobserved(), without_modes():
        dtype = str(tensor.dtype).removeprefix("torch.")
        if is_plain(tensor):
            shape = tuple(tensor.shape)
            data = Payload(dtype, shape, bytes_of(tensor.detach()))
            return SampleLeaf("", shape, tensor.stride(), dtype, "cpu", _PLAIN, data)
        with torch.no_grad():
            shape, stride, device, extra = odd_facts(tensor)
            known = None if -1 in shape else tuple(shape)
            return SampleLeaf("", known, stride, dtype, str(device or ""), extra, _payload(tensor))


def _payload(tensor: Any) -> Payload | None:
    """Copy the data of a tensor; None if it has no elements to copy."""
    elements = elements_of(tensor)
    if elements is None:
        return None
    whole = parts_of(tensor, elements)
    return snapshot(elements).payload(tuple(elements.shape)) if whole is None else whole


def _plain(value: Any) -> SampleLeaf:
    shape, stride, dtype, device, extra = python_values.facts_of(value)
    return SampleLeaf(
        "", tuple(shape), stride, dtype, device, extra, python_values.payload_of(value)
    )


def _walk(described: Any, path: str) -> Iterator[tuple[str, SampleLeaf]]:
    if isinstance(described, SampleLeaf):
        yield path, described
    elif isinstance(described, (list, dict)):
        items = described.items() if isinstance(described, dict) else enumerate(described)
        for key, item in items:
            yield from _walk(item, f"{path}.{key}" if path else str(key))


def _restored(leaf: SampleLeaf, restore: Restore) -> Any:
    payload = leaf.payload
    if payload is None:
        return None
    if not leaf.device:
        return restore(payload, "object")
    if leaf.extra.cls == "ndarray":
        return restore(payload, "array")
    if isinstance(payload.data, np.ndarray) and payload.dtype != PARTS:
        # Nobody else references this copy, so it needs no further copy.
        dtype = getattr(torch, payload.dtype)
        return torch.from_numpy(payload.data).view(dtype).view(payload.shape)
    return restore(payload, "tensor")

"""Layout that HDF5 and Zarr exports share: a group per address, arrays in it.

    <address>/values     one row per value, in the order of `Trace.series`
    <address>/steps, ranks, calls      of each value; rank -1 if it was made from several ranks;
                                       modules, dtypes where they differ
    <address>/lengths, ndims   true shapes, where shapes differ and `values` is padded with zeros
    <address>/values/0, 1, …   one array per value instead, where they are stored apart
    <address>/values/0/indices, values, …   the arrays of a sparse or quantised value, as recorded;
                                       attributes `form`, `shape`, `clew_dtype`, `scale` …

Input: values by address, and an object that makes groups and arrays. Knows neither library.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from clew.errors import ClewError
from clew.store.format.payload_parts import Parts
from clew.views.export.dtypes import Array, Asked, DType, Dtypes, cast, common
from clew.views.export.formats import Contents
from clew.views.export.kept_values import KeptSeries, KeptValue

# Values of several shapes: padded if that wastes little, always padded, always one array each.
RAGGED = ("auto", "pad", "apart")
FORMAT = "clew-values"
VERSION = 1
# Padding may make the data at most this many times larger, unless the user asks for it.
_MOST_PADDING = 4
# The limit if the user asks for padding, unless the padded data is still small.
_MOST_ASKED_PADDING = 64
_MUCH = 1 << 24
# Rows are written and compressed in blocks of about this size.
_BLOCK = 1 << 20

Shape = tuple[int, ...]


class Arrays(Protocol):
    """A file of groups and arrays that is being written."""

    def group(self, above: Any, name: str, attributes: dict[str, object]) -> Any:
        """Make a group inside another, or at the top for None."""

    def array(
        self, group: object, name: str, shape: Shape, dtype: DType, chunks: Shape, clew_dtype: str
    ) -> Any:
        """Make an array that is zero wherever no slice fills it."""

    def check(self, dtype: DType) -> None:
        """Raise ClewError if the file has no such dtype."""

    def texts(self, group: Any, name: str, texts: list[str]) -> None:
        """Write a list of strings."""

    def remove(self, name: str) -> None:
        """Remove a group of the file with all that is in it."""

    def safe(self, name: str) -> str:
        """Return the name in a form that the file takes as the name of one group."""


class Unreadable(ClewError):
    """Data that turned out to be damaged, or not what its description says."""


@dataclass(frozen=True, slots=True)
class Described:
    """A value with the dtype and shape that its data has, which need not have been read.

    The dtype is None for a value in parts: sparse or quantised.
    """

    value: KeptValue
    recorded: str
    dtype: DType | None
    shape: Shape

    @property
    def nbytes(self) -> int:
        """Return how many bytes the array has according to its description; 0 for one in parts."""
        return 0 if self.dtype is None else math.prod(self.shape) * self.dtype.itemsize

    def array(self) -> Array:
        """Read the data, and check that it has the described shape."""
        try:
            array = self.value.array()
        except ClewError as broken:
            raise Unreadable(str(broken)) from broken
        if array.shape != self.shape:
            raise Unreadable(f"its data has the shape {list(array.shape)}, not {list(self.shape)}")
        return array

    def parts(self) -> Parts:
        """Read the arrays that the value is made of."""
        try:
            return self.value.parts()
        except ClewError as broken:
            raise Unreadable(str(broken)) from broken

    def read(self) -> Array | Parts:
        """Read the data: one array, or several parts."""
        return self.parts() if self.dtype is None else self.array()


def write_series(arrays: Arrays, series: KeptSeries, dtype: Asked, ragged: str) -> Contents:
    """Write every address; what cannot be read is left out and listed in the result.

    Arrays are laid out by the dtypes and shapes that the trace states. Each value is then read
    once, while it is written. If a value turns out to be damaged, all values of that address are
    read first, and those that can be read are laid out again.
    """
    if ragged not in RAGGED:
        raise ClewError(f"ragged={ragged!r} is not one of {', '.join(map(repr, RAGGED))}")
    dtypes = Dtypes(dtype)
    left_out: list[str] = []
    names: set[str] = set()
    written = 0
    for address, values in series.items():
        items = _described(arrays, address, values, dtypes, left_out)
        if not items:
            continue
        name = unused(arrays.safe(address or "(root)"), names)
        try:
            _write_address(arrays, name, address, items, ragged, dtypes)
        except Unreadable:
            arrays.remove(name)
            items = _readable(address, items, left_out)
            if items:
                _write_address(arrays, name, address, items, ragged, dtypes)
            else:
                names.remove(name)
        written += len(items)
    return Contents(written, "value", len(names), tuple(left_out))


def _described(
    arrays: Arrays, address: str, values: list[KeptValue], dtypes: Dtypes, left_out: list[str]
) -> list[Described]:
    """Return the values whose descriptions are sound; no data is read."""
    found = []
    for value in values:
        try:
            recorded = value.dtype
            array_dtype, shape = value.described()
            dtype = None if array_dtype is None else dtypes.of(recorded, array_dtype)
            if dtype is not None:
                arrays.check(dtype)
            found.append(Described(value, recorded, dtype, shape))
        except ClewError as refused:
            left_out.append(_left_out(address, value, refused))
    return found


def _readable(address: str, items: list[Described], left_out: list[str]) -> list[Described]:
    """Return the values whose data is sound, by reading all of it."""
    found = []
    for item in items:
        try:
            item.read()
            found.append(item)
        except Unreadable as broken:
            left_out.append(_left_out(address, item.value, broken))
    return found


def _left_out(address: str, value: KeptValue, why: Exception) -> str:
    return f"{address}, rank {value.rank}, call {value.call}: {why}"


def unused(name: str, taken: set[str]) -> str:
    """Return the name, with a number if another address has the same name after escaping."""
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}~{number}"
    taken.add(free)
    return free


def _write_address(
    arrays: Arrays,
    name: str,
    address: str,
    items: list[Described],
    ragged: str,
    dtypes: Dtypes,
) -> None:
    shapes = {item.shape for item in items}
    known = [item.dtype for item in items if item.dtype is not None]
    dtype = common(known) if len(known) == len(items) else None
    apart = dtype is None or (len(shapes) > 1 and not _padded(items, ragged, address))
    attributes: dict[str, object] = {"address": address}
    if apart or len(shapes) > 1:
        attributes["ragged"] = "apart" if apart else "pad"
    group = arrays.group(None, name, attributes)
    for column, numbers in {
        "steps": [item.value.step for item in items],
        "ranks": [item.value.rank for item in items],
        "calls": [item.value.call for item in items],
    }.items():
        _write_small(arrays, group, column, numbers)
    modules = [item.value.module for item in items]
    if any(module != modules[0] for module in modules):
        arrays.texts(group, "modules", [module or "" for module in modules])
    recorded = sorted({item.recorded for item in items})
    if len(recorded) > 1:
        arrays.texts(group, "dtypes", [item.recorded for item in items])
    if apart or dtype is None:
        _write_apart(arrays, group, address, items, dtypes)
    else:
        _write_rows(arrays, group, address, items, dtype, "/".join(recorded))


def _padded(items: list[Described], ragged: str, address: str) -> bool:
    """Return whether values of several shapes share one padded array."""
    if ragged == "apart":
        return False
    shapes = [item.shape for item in items]
    if ragged == "auto" and len({len(shape) for shape in shapes}) > 1:
        return False
    elements = sum(math.prod(shape) for shape in shapes)
    padded = math.prod(_common_size(_lifted(items))) * len(items)
    if ragged == "auto":
        return padded <= _MOST_PADDING * elements
    if padded > max(_MUCH, _MOST_ASKED_PADDING * elements):
        raise ClewError(
            f"ragged='pad' would make {padded:,} elements of the {elements:,} of "
            f"{address or 'the root'}; ragged='apart' stores each value by itself"
        )
    return True


def _lifted(items: list[Described]) -> list[Shape]:
    """Return the shapes, with axes of size one added in front where some have fewer axes."""
    axes = max(len(item.shape) for item in items)
    return [(1,) * (axes - len(item.shape)) + item.shape for item in items]


def _common_size(shapes: list[Shape]) -> Shape:
    return tuple(max(sizes) for sizes in zip(*shapes, strict=True))


def _write_apart(
    arrays: Arrays, group: object, address: str, items: list[Described], dtypes: Dtypes
) -> None:
    inner = arrays.group(group, "values", {})
    for index, item in enumerate(items):
        if item.dtype is None:
            _write_parts(arrays, inner, str(index), item, dtypes, address)
            continue
        chunks = chunks_of(item.shape, item.dtype)
        target = arrays.array(inner, str(index), item.shape, item.dtype, chunks, item.recorded)
        target[...] = _data(item, item.dtype, address)


def _write_parts(
    arrays: Arrays, group: object, name: str, item: Described, dtypes: Dtypes, address: str
) -> None:
    """Write a sparse or quantised value as the arrays it consists of."""
    parts = item.parts()
    facts = {"form": parts.form, "shape": list(parts.shape), **parts.facts}
    about = {**facts, "clew_dtype": item.recorded}
    inner = arrays.group(group, name, about)
    for part, array in parts.arrays.items():
        dtype = array.dtype
        if part == "values":
            # In a sparse value these are its numbers; the other arrays hold indices.
            dtype = dtypes.of(parts.dtypes[part], dtype)
        chunks = chunks_of(array.shape, dtype)
        target = arrays.array(inner, part, array.shape, dtype, chunks, parts.dtypes[part])
        target[...] = cast(array, dtype, _what(item, address))


def _write_rows(
    arrays: Arrays, group: object, address: str, items: list[Described], dtype: DType, recorded: str
) -> None:
    """Write all values along a new first axis; align shapes at their last axes, fill with zeros."""
    lifted = _lifted(items)
    size = _common_size(lifted)
    if len({item.shape for item in items}) > 1:
        _write_small(arrays, group, "lengths", lifted)
        _write_small(arrays, group, "ndims", [len(item.shape) for item in items])
    row_bytes = math.prod(size) * dtype.itemsize
    # The largest value decides how large the others become, so it is read first.
    largest = max(range(len(items)), key=lambda row: items[row].nbytes)
    read = {largest: _data(items[largest], dtype, address)} if row_bytes > _BLOCK else {}
    rows = max(1, min(len(items), _BLOCK // max(1, row_bytes)))
    chunks = (rows, *chunks_of(size, dtype))
    target = arrays.array(group, "values", (len(items), *size), dtype, chunks, recorded)
    for start in range(0, len(items), rows):
        stop = min(start + rows, len(items))
        data = [
            read[row] if row in read else _data(items[row], dtype, address)
            for row in range(start, stop)
        ]
        if len(data) == 1 and data[0].shape == size:
            target[start] = data[0]
            continue
        block = np.zeros((len(data), *size), dtype=dtype)
        for row, (one, shape) in enumerate(zip(data, lifted[start:stop], strict=True)):
            place: tuple[Any, ...] = (row, *(slice(0, length) for length in shape))
            # reshape, unlike assignment, would not repeat a smaller value to fill the room
            block[place] = one.reshape(shape)
        target[start:stop] = block


def _data(item: Described, dtype: DType, address: str) -> Array:
    assert item.dtype is not None
    what = _what(item, address)
    return cast(cast(item.array(), item.dtype, what), dtype, what)


def _what(item: Described, address: str) -> str:
    value = item.value
    return f"{address or 'the root'}, rank {value.rank}, step {value.step}, call {value.call}"


def _write_small(
    arrays: Arrays, group: object, name: str, numbers: Sequence[int] | Sequence[Shape]
) -> None:
    data = np.array(numbers, dtype=np.int64)
    target = arrays.array(group, name, data.shape, data.dtype, data.shape, "")
    target[...] = data


def chunks_of(shape: Shape, dtype: DType) -> Shape:
    """Return the chunk shape for one value: all of it, or a part if it is large."""
    chunk = list(shape)
    for axis in range(len(chunk)):
        while math.prod(chunk) * dtype.itemsize > 64 * _BLOCK and chunk[axis] > 1:
            chunk[axis] = (chunk[axis] + 1) // 2
    return tuple(chunk)

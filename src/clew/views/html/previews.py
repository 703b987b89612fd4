"""Kept data as small pictures: a histogram and a few pooled tiles of numbers per value.

Input: payloads. Output: columns in a `Packer`, which the viewer opens only when a value is
selected. A cell of a tile is one byte: 0 NaN, 1 and 2 the infinities, 3 to 255 from `low` to
`high`. Values that do not fit the budget are counted, not shown.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew.errors import ClewError
from clew.events.tensor_text import stats_of
from clew.events.vocabulary import Payload
from clew.store.format.payload_numpy import decode, described_array
from clew.views.html.payload import Packer

BINS = 40
_ROWS, _COLUMNS, _LINE = 64, 64, 256
# Slices of one value: some always, more as long as they are small.
_TILES, _MOST_TILES, _MOST_CELLS = 6, 48, 32 << 10
_EXACT = 64
_BASE, _STEPS = 3, 252
# Bytes of data that are read, and bytes of pictures that are kept.
_MOST_READ = 512 << 20
_MOST_KEPT = 4 << 20


class Previews:
    """Collects the previews of a report."""

    def __init__(self) -> None:
        self.left_out = 0
        self._read = 0
        self._kept = 0
        self._last: NDArray[Any] = np.zeros(0)
        self._facts: list[tuple[float, float, int, int, int, int, int, int]] = []
        self._bins: list[NDArray[Any]] = []
        self._cells: list[NDArray[Any]] = []
        self._exact: list[NDArray[Any]] = []

    def __len__(self) -> int:
        return len(self._facts)

    def add(self, payload: Payload) -> int:
        """Add one value; return its number counted from 1, or 0 if it is not shown."""
        try:
            dtype, shape = described_array(payload)
            size = payload.nbytes if dtype is None else 4 * prod(shape)
            if self._read + size > _MOST_READ or self._kept > _MOST_KEPT:
                self.left_out += 1
                return 0
            self._read += size
            array = _numbers(payload)
        except ClewError:
            return 0
        if array is None or not array.size:
            return 0
        self._last = array
        finite = array[np.isfinite(array)]
        low = float(finite.min()) if finite.size else 0.0
        high = float(finite.max()) if finite.size else 0.0
        bins = _histogram(finite, low, high)
        tiles, pooled = _tiles(array)
        exact = array.ravel() if array.size <= _EXACT else array.ravel()[:0]
        count, rows, columns = tiles.shape
        self._facts.append((low, high, count, rows, columns, *pooled, exact.size))
        self._bins.append(bins)
        self._cells.append(_cells(tiles, low, high).ravel())
        self._exact.append(exact.astype(np.float32))
        self._kept += tiles.size + 2 * BINS + 4 * exact.size
        return len(self._facts)

    def statistics(self) -> dict[str, Any]:
        """Return the statistics of the value that was added last."""
        return stats_of(self._last).to_dict()

    def pack(self, packer: Packer, prefix: str) -> None:
        """Put the columns into a packer."""
        names = ("low", "high", "tiles", "rows", "columns", "pool_rows", "pool_columns", "exact")
        for at, name in enumerate(names):
            kind = np.float32 if at < 2 else np.int64
            packer.add(prefix + name, np.array([f[at] for f in self._facts], dtype=kind))
        for name, parts, kind in (
            ("bins", self._bins, np.int64),
            ("cells", self._cells, np.uint8),
            ("numbers", self._exact, np.float32),
        ):
            packer.add(prefix + name, np.concatenate([np.zeros(0, dtype=kind), *parts]))


def _numbers(payload: Payload) -> NDArray[Any] | None:
    """Return the data as real numbers, complex ones as magnitudes; None if it is not numeric."""
    array = np.asarray(decode(payload, "numbers"))
    if array.dtype.kind == "c":
        array = np.abs(array)
    return array.astype(np.float64) if array.dtype.kind in "biuf" else None


def _histogram(finite: NDArray[Any], low: float, high: float) -> NDArray[Any]:
    if not finite.size:
        return np.zeros(BINS, dtype=np.int64)
    span = high - low
    if span == 0 or not np.isfinite(span):
        at = np.full(finite.size, BINS // 2)
        return np.bincount(at, minlength=BINS)
    at = np.minimum(((finite - low) / span * BINS).astype(np.int64), BINS - 1)
    return np.bincount(at, minlength=BINS)


def _tiles(array: NDArray[Any]) -> tuple[NDArray[Any], tuple[int, int]]:
    """Return slices of the last two axes as pictures, and how many elements one cell pools."""
    if array.ndim < 2 or array.shape[-2] == 1:
        line = array.reshape(-1, 1, array.shape[-1] if array.ndim else 1)[:1]
        return _pooled(line, 1, _LINE)
    rows, columns = array.shape[-2:]
    cells = min(rows, _ROWS) * min(columns, _COLUMNS)
    tiles = min(max(_TILES, _MOST_CELLS // max(cells, 1)), _MOST_TILES)
    return _pooled(array.reshape(-1, rows, columns)[:tiles], _ROWS, _COLUMNS)


def _pooled(tiles: NDArray[Any], rows: int, columns: int) -> tuple[NDArray[Any], tuple[int, int]]:
    """Return tiles of at most so many rows and columns, each cell the mean of its elements."""
    step = -(-tiles.shape[1] // rows), -(-tiles.shape[2] // columns)
    if step == (1, 1):
        return tiles, step
    with np.errstate(invalid="ignore", over="ignore"):
        for axis in (1, 2):
            starts = np.arange(0, tiles.shape[axis], step[axis - 1])
            sizes = np.diff(np.append(starts, tiles.shape[axis]))
            shape = [1, 1, 1]
            shape[axis] = -1
            tiles = np.add.reduceat(tiles, starts, axis=axis) / sizes.reshape(shape)
    return tiles, step


def _cells(tiles: NDArray[Any], low: float, high: float) -> NDArray[Any]:
    span = high - low
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = (tiles - low) / span if span > 0 and np.isfinite(span) else tiles * 0 + 0.5
        cells = np.clip(np.nan_to_num(scaled, nan=0.0), 0, 1) * _STEPS + _BASE
    result: NDArray[Any] = cells.round().astype(np.uint8)
    result[np.isnan(tiles)] = 0
    result[np.isposinf(tiles)] = 1
    result[np.isneginf(tiles)] = 2
    return result

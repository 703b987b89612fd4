"""The HDF5 file of a running program: a group per address, rows appended as they come.

Layout: `views.export.arrays`, with two differences that growing asks for. Values of another shape
than the first of their address lie end to end in a group of their own, `<address>~2`, with their
shapes in `lengths` (`ragged` is `flat`); so do those without elements. And a row counts once it
has a step: `steps` is written last, so rows of `values` beyond it were cut off by a kill.
"""

from __future__ import annotations

import atexit
import base64
import json
import math
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from clew.errors import MissingDependency
from clew.events.outputs import Hdf5
from clew.views.export.arrays import FORMAT, VERSION, Shape, chunks_of, unused
from clew.views.export.committed_file import CommittedFile
from clew.views.export.dtypes import Array, DType, Dtypes, cast
from clew.views.export.hdf5 import safe_name
from clew.views.export.live_names import Occurrence

# An empty HDF5 file (format 1.10) whose root group keeps its links in its header however many
# there are, and whose freed space is not used again. With h5py's own settings the links move to
# a tree that is overwritten in several places at once, which no order of writing makes safe;
# h5py has no call for this one. Made with H5Pset_link_phase_change(65535, 0) and
# H5Pset_file_space_strategy(NONE).
_EMPTY = (
    b"c%19>aB<`1lHy|K;9!6O11QbR2%&SJ{5EBcYyKWCK}-rPzQ3}Nv7)#vg9sxt10&1`0T|;y6zu!%lZah!4U-VELK"
    b"xs;1DeM8|36SFf`Mj0iFej&0CS-;YX"
)
_SMALL_CHUNK = 4 << 10
# A chunk that is compressed is written anew, elsewhere, for each row added to it: one row each,
# and none where a row is too small to gain.
_LEAST_COMPRESSED = 1 << 10
_COUNTS = 512


@dataclass(slots=True)
class _Series:
    """The rows of one address that share a dtype and, unless they are flat, a shape."""

    group: Any
    dtype: DType
    flat: bool
    rows: int = 0
    elements: int = 0
    values: Any = None
    # Steps of rows that are in the file, to be written when those are committed.
    unsettled: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a value is in the file."""

    values: Any
    row: int
    start: int
    shape: Shape
    flat: bool


class LiveHdf5:
    """Appends values to an HDF5 file; all of it that is committed survives a kill."""

    def __init__(self, settings: Hdf5, path: Path, rank: int, environment: dict[str, Any]) -> None:
        try:
            import h5py
        except ImportError as missing:
            raise MissingDependency("clew.trace(out='….h5')", "h5py", "clew[hdf5]") from missing
        self._h5py = h5py
        self._settings = settings
        self._rank = rank
        self._dtypes = Dtypes(settings.dtypes)
        self._series: dict[tuple[str, str, Shape | int], _Series] = {}
        # Addresses, dtypes and numbers of axes that have rows of one shape.
        self._shaped: set[tuple[str, str, int]] = set()
        self._names: set[str] = set()
        # Groups that are written, and can be found once all of them is in the file.
        self._unlinked: dict[str, Any] = {}
        self._disk = CommittedFile(path)
        self._disk.write(zlib.decompress(base64.b85decode(_EMPTY)))
        self._disk.commit()
        self._file = h5py.File(self._disk, "r+", libver=("v110", "v110"))
        self._file.attrs["format"] = FORMAT
        self._file.attrs["version"] = VERSION
        self._file.attrs["environment"] = json.dumps(environment)
        self.commit()

    def converted(self, address: str, occurrence: Occurrence, recorded: str, array: Array) -> Array:
        """A value in the dtype it is to be stored in; ClewError if that would spoil it."""
        what = f"{address or 'the root'}, step {occurrence.step}, call {occurrence.call}"
        return cast(array, self._dtypes.of(recorded, array.dtype), what)

    def append(self, address: str, items: list[tuple[Occurrence, str, Array]]) -> list[Stored]:
        """Write values of one address, `converted` and with the dtype each was recorded with."""
        stored: list[Stored] = []
        by_series: dict[int, tuple[_Series, list[tuple[Occurrence, Array]]]] = {}
        for occurrence, recorded, array in items:
            series = self._series_of(address, recorded, array.dtype, array.shape, occurrence)
            rows = by_series.setdefault(id(series), (series, []))[1]
            stored.append(
                Stored(series.values, series.rows, series.elements, array.shape, series.flat)
            )
            series.rows += 1
            series.elements += array.size if series.flat else 0
            rows.append((occurrence, array))
        for series, rows in by_series.values():
            self._append_rows(series, rows)
        return stored

    def read(self, stored: Stored) -> Array:
        """A value as it is in the file."""
        if not stored.flat:
            return np.asarray(stored.values[stored.row])
        data: Array = stored.values[stored.start : stored.start + math.prod(stored.shape)]
        return data.reshape(stored.shape)

    def commit(self) -> None:
        """Make what was appended part of the file: groups and values first, then what makes them
        count, the names of groups and the steps of values."""
        self._file.flush()
        self._disk.commit()
        for name, group in self._unlinked.items():
            self._file[name] = group
        self._unlinked.clear()
        settled = [series for series in self._series.values() if series.unsettled]
        for series in settled:
            _extend(series.group["steps"], np.array(series.unsettled, dtype=np.int64))
        if settled:
            self._file.flush()
            self._disk.commit()
        for series in settled:
            series.unsettled.clear()

    def give_up(self) -> None:
        """Write no more; what was appended can be read as long as the program runs."""
        # HDF5 still holds what it could not write, and must be closed while Python can be called.
        atexit.register(self._file.close)

    def _series_of(
        self, address: str, recorded: str, dtype: DType, shape: Shape, first: Occurrence
    ) -> _Series:
        flat_key = address, recorded, len(shape)
        for key in ((address, recorded, shape), flat_key):
            if key in self._series:
                return self._series[key]
        flat = shape != () and (not all(shape) or flat_key in self._shaped)
        name = unused(safe_name(address or "(root)"), self._names)
        group = self._unlinked[name] = self._file.create_group(None)
        group.attrs["address"] = address
        if flat:
            group.attrs["ragged"] = "flat"
        series = _Series(group, dtype, flat)
        self._create(series, recorded, shape, first.module is not None)
        self._series[flat_key if flat else (address, recorded, shape)] = series
        if not flat:
            self._shaped.add(flat_key)
        return series

    def _create(self, series: _Series, recorded: str, shape: Shape, modules: bool) -> None:
        row = () if series.flat else shape
        size = math.prod(row) * series.dtype.itemsize
        options: dict[str, Any] = {"chunks": (max(1, _SMALL_CHUNK // max(1, size)), *row)}
        if size >= _LEAST_COMPRESSED:
            options["chunks"] = (1, *chunks_of(row, series.dtype))
            options["compression"] = self._settings.compression
            options["shuffle"] = self._settings.shuffle
        series.values = self._growing(series, "values", row, series.dtype, **options)
        series.values.attrs["clew_dtype"] = recorded
        for name in ("steps", "ranks", "calls"):
            self._growing(series, name, (), np.int64, chunks=(_COUNTS,), fillvalue=-1)
        if series.flat:
            chunks = (_COUNTS, len(shape))
            self._growing(series, "lengths", (len(shape),), np.int64, chunks=chunks)
        if modules:
            self._growing(series, "modules", (), self._h5py.string_dtype(), chunks=(_COUNTS,))

    def _growing(self, series: _Series, name: str, row: Shape, dtype: Any, **options: Any) -> Any:
        """A dataset without rows as yet."""
        return series.group.create_dataset(
            name, shape=(0, *row), maxshape=(None, *row), dtype=dtype, **options
        )

    def _append_rows(self, series: _Series, rows: list[tuple[Occurrence, Array]]) -> None:
        group = series.group
        arrays = [array for _, array in rows]
        if series.flat:
            data: Array = np.concatenate([array.reshape(-1) for array in arrays])
            shapes = np.array([array.shape for array in arrays], dtype=np.int64)
            _extend(group["lengths"], shapes)
        else:
            data = np.stack(arrays)
        _extend(series.values, data)
        _extend(group["ranks"], np.full(len(rows), self._rank, dtype=np.int64))
        _extend(group["calls"], np.array([o.call for o, _ in rows], dtype=np.int64))
        if "modules" in group:
            names = np.array([o.module or "" for o, _ in rows], dtype=object)
            _extend(group["modules"], names)
        series.unsettled += [occurrence.step for occurrence, _ in rows]


def _extend(dataset: Any, rows: Array) -> None:
    """Append rows to a dataset."""
    count = dataset.shape[0]
    dataset.resize(count + len(rows), axis=0)
    if len(rows):
        dataset[count:] = rows

"""HDF5: the values a trace kept, a group per address, read by h5py, MATLAB, Julia, HDFView.

Layout: `views.export.arrays`. The recorded dtype is the attribute `clew_dtype` of each array;
bf16 and fp8 are stored as float32, exactly.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from clew.events.outputs import COMPRESSIONS, check_compression
from clew.optional_packages import optional_package
from clew.run.run import Run
from clew.views.export.arrays import FORMAT, VERSION, Shape, write_series
from clew.views.export.dtypes import Asked, DType
from clew.views.export.formats import Contents
from clew.views.export.kept_values import kept_series

_LONGEST_NAME = 1000
# Characters that some file system refuses in a name, and the longest name it takes.
_REFUSED = '/\\:*?"<>|' + "".join(map(chr, range(32)))
_LONGEST_FILE_NAME = 200


def write(
    run: Run,
    target: Path,
    *,
    addresses: Sequence[str] | None = None,
    dtype: Asked = None,
    ragged: str = "auto",
    compression: str | None = None,
    shuffle: bool = False,
) -> Contents:
    """Write the kept values into one HDF5 file."""
    h5py = optional_package("h5py", "the HDF5 export")
    check_compression(compression, COMPRESSIONS)
    series = kept_series(run, addresses)
    with h5py.File(target, "w") as file:
        file.attrs["format"] = FORMAT
        file.attrs["version"] = VERSION
        file.attrs["environment"] = json.dumps(run.environment)
        return write_series(Hdf5Arrays(h5py, file, compression, shuffle), series, dtype, ragged)


class Hdf5Arrays:
    """Groups and datasets of one HDF5 file."""

    def __init__(self, h5py: Any, file: Any, compression: str | None, shuffle: bool) -> None:
        self._h5py = h5py
        self._file = file
        self._compression = compression
        self._shuffle = shuffle

    def group(self, above: Any, name: str, attributes: dict[str, Any]) -> Any:
        """Make a group."""
        group = (self._file if above is None else above).create_group(name)
        texts = {key: _text(fact) for key, fact in attributes.items() if isinstance(fact, str)}
        group.attrs.update(attributes | texts)
        return group

    def array(
        self, group: Any, name: str, shape: Shape, dtype: DType, chunks: Shape, clew_dtype: str
    ) -> Any:
        """Make a dataset, compressed if it has elements."""
        filters: dict[str, Any] = {}
        # HDF5 has no chunks for an array without elements or without axes.
        if (self._compression or self._shuffle) and chunks and all(chunks):
            filters = {"compression": self._compression, "shuffle": self._shuffle, "chunks": chunks}
        dataset = group.create_dataset(name, shape=shape, dtype=dtype, **filters)
        if clew_dtype:
            dataset.attrs["clew_dtype"] = _text(clew_dtype)
        return dataset

    def check(self, dtype: DType) -> None:
        """Accept every dtype of numbers, as HDF5 does."""

    def texts(self, group: Any, name: str, texts: list[str]) -> None:
        """Make a dataset of strings."""
        group.create_dataset(name, data=list(map(_text, texts)), dtype=self._h5py.string_dtype())

    def remove(self, name: str) -> None:
        """Remove a group; HDF5 reuses its space for later groups."""
        del self._file[name]

    def safe(self, name: str) -> str:
        """Return the name in a form that HDF5 takes as the name of one group."""
        return safe_name(name)


def _text(text: str) -> str:
    """Return the text as HDF5 takes it: valid UTF-8 without NUL characters."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


def safe_name(name: str) -> str:
    """Return the name with `/`, which makes groups in HDF5, written as `%2F`."""
    return escaped(name, "/\0", _LONGEST_NAME)


def escaped(name: str, reserved: str, longest: int) -> str:
    """Return a name with reserved characters as `%XX`, never `.` or `..`, cut if too long."""
    text = "".join(f"%{ord(c):02X}" if c in reserved or c == "%" else c for c in name)
    if not text.strip("."):
        text = "%2E" * len(text)
    return text.encode("utf-8", "backslashreplace")[:longest].decode("utf-8", "ignore")


@lru_cache
def file_name(name: str) -> str:
    """Return a name that any file system takes as the name of one file."""
    return escaped(name, _REFUSED, _LONGEST_FILE_NAME).replace("..", "%2E%2E")

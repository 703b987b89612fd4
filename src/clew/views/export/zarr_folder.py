"""Zarr (format 3): the values a trace kept, a group per address, read in any language.

Layout: `views.export.arrays`; strings are attributes of the group. The recorded dtype is the
attribute `clew_dtype` of each array; bf16 and fp8 are stored as float32, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clew.errors import ClewError, MissingDependency
from clew.events.outputs import check_compression
from clew.optional_packages import optional_package
from clew.run.run import Run
from clew.views.export.arrays import FORMAT, VERSION, Shape, write_series
from clew.views.export.dtypes import Asked, DType
from clew.views.export.formats import Contents
from clew.views.export.hdf5 import file_name
from clew.views.export.kept_values import kept_series

COMPRESSIONS = (None, "zstd", "gzip")


def write(
    run: Run,
    target: Path,
    *,
    addresses: Sequence[str] | None = None,
    dtype: Asked = None,
    ragged: str = "auto",
    compression: str | None = "zstd",
    shuffle: bool = False,
) -> Contents:
    """Write the kept values into one Zarr folder."""
    zarr = optional_package("zarr", "the Zarr export")
    if not hasattr(zarr, "codecs"):
        raise MissingDependency("the Zarr export", "zarr 3 or newer", "clew[zarr]")
    check_compression(compression, COMPRESSIONS)
    series = kept_series(run, addresses)
    environment = run.environment
    attributes: dict[str, Any] = {"format": FORMAT, "version": VERSION, "environment": environment}
    root = zarr.open_group(str(target), mode="w", zarr_format=3, attributes=attributes)
    return write_series(ZarrArrays(zarr, root, compression, shuffle), series, dtype, ragged)


class ZarrArrays:
    """Groups and arrays of one Zarr folder."""

    def __init__(self, zarr: Any, root: Any, compression: str | None, shuffle: bool) -> None:
        self._zarr = zarr
        self._root = root
        self._compression = compression
        self._shuffle = shuffle

    def group(self, above: Any, name: str, attributes: dict[str, Any]) -> Any:
        """Make a group."""
        return (self._root if above is None else above).create_group(name, attributes=attributes)

    def array(
        self, group: Any, name: str, shape: Shape, dtype: DType, chunks: Shape, clew_dtype: str
    ) -> Any:
        """Make an array."""
        return group.create_array(
            name,
            shape=shape,
            dtype=dtype,
            chunks=tuple(max(1, size) for size in chunks),
            compressors=self._codec(dtype),
            attributes={"clew_dtype": clew_dtype} if clew_dtype else {},
        )

    def _codec(self, dtype: DType) -> object:
        if self._compression is None:
            return None
        codecs = self._zarr.codecs
        if self._shuffle:
            name = {"gzip": "zlib"}.get(self._compression, self._compression)
            return codecs.BloscCodec(cname=name, shuffle="shuffle", typesize=dtype.itemsize)
        return codecs.ZstdCodec() if self._compression == "zstd" else codecs.GzipCodec()

    def check(self, dtype: DType) -> None:
        """Refuse floats longer than those of Zarr."""
        if dtype.char in "gG":
            raise ClewError(f"it is {dtype}, which Zarr lacks; hdf5 has it")

    def texts(self, group: Any, name: str, texts: list[str]) -> None:
        """Write an attribute: Zarr has no standard form for arrays of strings."""
        group.attrs[name] = texts

    def remove(self, name: str) -> None:
        """Remove a group and the files of its arrays."""
        del self._root[name]

    def safe(self, name: str) -> str:
        """Return the name with characters that file systems refuse or Zarr reserves as `%XX`."""
        text = file_name(name)
        return "%5F" + text[1:] if text.startswith("__") else text

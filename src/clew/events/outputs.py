"""Options of HDF5 files, and the error for a running trace that is to write one."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clew.errors import ClewError

COMPRESSIONS = (None, "gzip", "lzf")
SUFFIXES = (".h5", ".hdf5")


@dataclass(frozen=True, slots=True)
class Hdf5:
    """How to write an HDF5 file; a folder is exported to one with `Trace.export`.

    `compression` is None, `"gzip"` or `"lzf"`, `shuffle` reorders bytes so that they compress
    better. `dtypes` says which dtype to store: one floating-point dtype for all floating-point
    data, or recorded dtype → stored dtype.

    >>> Hdf5("run.h5", compression="gzip", dtypes={"float64": "float32"}).compression
    'gzip'
    """

    path: str | os.PathLike[str]
    compression: str | None = None
    shuffle: bool = False
    dtypes: str | Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        check_compression(self.compression, COMPRESSIONS)


def check_compression(compression: str | None, known: Sequence[str | None]) -> None:
    """Refuse a compression that a file format does not have."""
    if compression not in known:
        listed = ", ".join(map(repr, known))
        raise ClewError(f"compression={compression!r} is not one of {listed}")


def check_out(out: object) -> None:
    """Refuse an HDF5 file as `out=` of a running trace, with an error that says how to get one."""
    path = out.path if isinstance(out, Hdf5) else out
    if isinstance(path, (str, os.PathLike)):
        name = os.fspath(path)
        if isinstance(out, Hdf5) or name.lower().endswith(SUFFIXES):
            folder = os.path.splitext(name)[0] + ".clew"
            command = shlex.join(["clew", "export", folder, "hdf5", name])
            raise ClewError(
                f"out={name!r}: a running trace is written to a folder, out={folder!r}; "
                f"`{command}` makes the HDF5 file, while it runs or later"
            )

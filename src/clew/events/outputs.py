"""Where `clew.trace(out=...)` may put a run besides a native folder; settings, checked."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clew.errors import ClewError

COMPRESSIONS = (None, "gzip", "lzf")
SUFFIXES = (".h5", ".hdf5")


@dataclass(frozen=True, slots=True)
class Hdf5:
    """An HDF5 file that grows while the program runs, for `clew.trace(out=...)`.

    `compression` is None, `"gzip"` or `"lzf"`, `shuffle` sorts bytes before it. `dtypes` says what
    to store instead of what was recorded: one floating-point dtype for all floating-point data,
    or recorded dtype → stored dtype.

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


def as_hdf5(out: object) -> Hdf5 | None:
    """The HDF5 file that `out` names, by its type or by its suffix; None if it names none."""
    if isinstance(out, Hdf5):
        return out
    if isinstance(out, (str, os.PathLike)) and os.fspath(out).lower().endswith(SUFFIXES):
        return Hdf5(out)
    return None

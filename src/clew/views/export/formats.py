"""Formats a trace can be exported to, and the one function that writes any of them.

Input: a run, a format, a path and its options. Output: a file (or folder) that appears only when it
is complete, and an `Exported` that describes it. To add a format: a module with `write(run, target,
**options) -> Contents`, and a line in `FORMATS`.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clew.errors import ClewError
from clew.plain_text import plain
from clew.store.storage import Storage
from clew.store.write.place import FolderKind, place_file, place_folder
from clew.views.file_kinds import KINDS

if TYPE_CHECKING:
    from clew.run.run import Run

FORMATS = {
    "chrome": "clew.views.export.chrome",
    "csv": "clew.views.export.csv_text",
    "dot": "clew.views.export.dot_text",
    "hdf5": "clew.views.export.hdf5",
    "json": "clew.views.export.json_text",
    "mermaid": "clew.views.export.mermaid_text",
    "model_explorer": "clew.views.export.model_explorer",
    "parquet": "clew.views.export.parquet",
    "pt": "clew.views.export.torch_file",
    "zarr": "clew.views.export.zarr_folder",
}


@dataclass(frozen=True, slots=True)
class Contents:
    """How many events or values were written; `left_out` lists what could not be written."""

    count: int
    what: str
    addresses: int | None = None
    left_out: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"{self.count:,} {self.what}{'' if self.count == 1 else 's'}"
        if self.addresses is None:
            return text
        return f"{text} of {self.addresses:,} address{'' if self.addresses == 1 else 'es'}"


@dataclass(frozen=True, slots=True)
class Exported:
    """A finished export."""

    path: Path | str
    format: str
    contents: Contents

    @property
    def left_out(self) -> tuple[str, ...]:
        """Return what could not be written, and why."""
        return self.contents.left_out

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return plain(f"{self.path}: {self.contents}")

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as plain data."""
        return {
            "path": str(self.path),
            "format": self.format,
            f"{self.contents.what}s": self.contents.count,
            "addresses": self.contents.addresses,
            "left_out": list(self.left_out),
        }


def write_export(
    run: Run, fmt: str, path: str | os.PathLike[str], exist: str, options: dict[str, object]
) -> Exported:
    """Write a format to a path or URL, in one go."""
    write = _writer(fmt, options)

    def written(target: Path) -> Contents:
        return write(run, target, **options)

    if fmt == "zarr":
        place, contents = place_folder(path, exist, _ZARR, written)
    else:
        place, contents = place_file(path, exist, KINDS[fmt], written)
    return Exported(place, fmt, contents)


def _writer(fmt: str, options: dict[str, object]) -> Callable[..., Contents]:
    if fmt not in FORMATS:
        raise ClewError(f"there is no export format {fmt!r}; there are {', '.join(FORMATS)}")
    write: Callable[..., Contents] = importlib.import_module(FORMATS[fmt]).write
    known = list(inspect.signature(write).parameters)[2:]
    for name in options:
        if name not in known:
            there = f"it has {', '.join(known)}" if known else "it has none"
            raise ClewError(f"the {fmt} export has no option {name!r}; {there}")
    return write


def _is_zarr_export(storage: Storage) -> bool:
    """Return whether a folder is a Zarr export made by Clew."""
    try:
        facts = json.loads(storage.read(_ZARR_MARK))
        return bool(str(facts["attributes"]["format"]).startswith("clew"))
    except (OSError, ValueError, KeyError, TypeError):
        return False


_ZARR_MARK = "zarr.json"
_ZARR = FolderKind("a Zarr export of Clew's", _ZARR_MARK, _is_zarr_export, lambda name: True)

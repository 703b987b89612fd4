"""The formats a trace can be exported to, and the one way to write any of them.

In come a run, a format, a path and its options; out come a file (or folder) that appears only
when it is whole, and an `Exported` that says what is in it. To add a format: a module with
`write(run, target, **options) -> Contents`, and a line in `FORMATS`.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clew.errors import ClewError

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
EXIST = ("error", "replace")


@dataclass(frozen=True, slots=True)
class Contents:
    """How many events or values were written; `left_out` says what could not be."""

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

    path: Path
    format: str
    contents: Contents

    @property
    def left_out(self) -> tuple[str, ...]:
        """What could not be written, and why."""
        return self.contents.left_out

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return f"{self.path}: {self.contents}"

    def to_dict(self) -> dict[str, Any]:
        """The facts as plain data."""
        return {
            "path": str(self.path),
            "format": self.format,
            f"{self.contents.what}s": self.contents.count,
            "addresses": self.contents.addresses,
            "left_out": list(self.left_out),
        }


def export(run: Run, fmt: str, path: Path, exist: str, options: dict[str, Any]) -> Exported:
    """Write a format aside, then move it to its path in one go."""
    write = _writer(fmt, exist, options)
    _check_free(path, exist)
    aside = path.with_name(f".{uuid.uuid4().hex}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        contents = write(run, aside, **options)
        if path.is_dir():
            shutil.rmtree(path)
        os.replace(aside, path)
    except OSError as refused:
        if isinstance(refused, ClewError):
            raise
        raise ClewError(f"cannot write {path}: {refused}") from refused
    finally:
        _remove(aside)
    return Exported(path, fmt, contents)


def _writer(fmt: str, exist: str, options: dict[str, Any]) -> Callable[..., Contents]:
    if fmt not in FORMATS:
        raise ClewError(f"there is no export format {fmt!r}; there are {', '.join(FORMATS)}")
    if exist not in EXIST:
        raise ClewError(f"exist={exist!r} is not one of {', '.join(map(repr, EXIST))}")
    write: Callable[..., Contents] = importlib.import_module(FORMATS[fmt]).write
    known = list(inspect.signature(write).parameters)[2:]
    for name in options:
        if name not in known:
            there = f"it has {', '.join(known)}" if known else "it has none"
            raise ClewError(f"the {fmt} export has no option {name!r}; {there}")
    return write


def _check_free(path: Path, exist: str) -> None:
    if not os.path.lexists(path):
        return
    if exist != "replace":
        raise ClewError(f"{path} exists; choose another path, or say exist='replace' (--replace)")
    # A folder is removed only if it is an earlier export.
    if path.is_dir() and not (path / "zarr.json").exists():
        raise ClewError(f"{path} is a folder that no export wrote; choose another path")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()

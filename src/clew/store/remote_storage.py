"""Remote folders, through fsspec: `s3://bucket/run.clew`, `memory://…`, whatever it knows.

A file appears whole or not at all; a failed operation is tried again a few times. Knows nothing of
what the files hold.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

from clew.errors import ClewError
from clew.optional_packages import optional_package
from clew.store.storage import numbered_name

_T = TypeVar("_T")
_WAITS = (0.1, 0.5, 2.0)
# Protocols where an object appears in one piece when its upload is done, without a move.
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "memory"}


class RemoteStorage:
    """A folder that fsspec reaches."""

    def __init__(self, url: str) -> None:
        self.place = url.rstrip("/")
        self.name = self.place.rpartition("/")[2]
        self._listed: dict[str, int] = {}
        self._copies: Path | None = None
        fsspec = optional_package("fsspec", f"the place {url}")
        try:
            self._fs, self._root = fsspec.core.url_to_fs(self.place)
        except (ImportError, ValueError) as refused:
            # The message names the package to install, or the protocols there are.
            raise ClewError(f"cannot reach {url}: {refused}") from refused

    def numbered(self) -> Iterator[RemoteStorage]:
        """Yield folders to use instead if this one is taken."""
        above, slash, name = self.place.rpartition("/")
        number = 1
        while True:
            yield RemoteStorage(above + slash + numbered_name(name, number))
            number += 1

    def sizes(self) -> dict[str, int]:
        """Return every file with its size, nothing if there is no such folder."""
        self._fs.invalidate_cache()
        try:
            found = self._again(lambda: self._fs.find(self._root, detail=True))
        except FileNotFoundError:
            found = {}
        root = self._fs._strip_protocol(self._root).rstrip("/") + "/"
        sizes = {self._fs._strip_protocol(name): facts["size"] for name, facts in found.items()}
        self._listed = {
            n.removeprefix(root): int(s or 0) for n, s in sizes.items() if n.startswith(root)
        }
        return dict(self._listed)

    def size(self, name: str) -> int:
        """Give the size that a file had when the files were last listed, 0 if it was not there."""
        return self._listed.get(name, 0)

    def folders(self) -> list[str]:
        """Name the folders right below."""
        return sorted({name.partition("/")[0] for name in self.sizes() if "/" in name})

    def links(self) -> list[str]:
        """Return nothing: there are no links in remote storage."""
        return []

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Read a file or some bytes of it; FileNotFoundError if it is not there."""
        path = self._path(name)
        if end is None and not start:
            return bytes(self._again(lambda: self._fs.cat_file(path)))
        return bytes(self._again(lambda: self._fs.cat_file(path, start=start, end=end)))

    def put(self, source: Path, name: str) -> None:
        """Copy a local file to a name, where it appears whole."""
        self._again(lambda: self._put(source, self._path(name)))

    def remove(self, names: Iterable[str]) -> None:
        """Remove files."""
        for name in names:
            self._again(partial(self._fs.rm_file, self._path(name)))

    def local(self, folder: str, pattern: re.Pattern[str]) -> Path:
        """Return a folder with copies of the files of a folder whose names match."""
        here = self.copies(folder)
        for path in sorted(self.sizes()):
            above, _, name = path.rpartition("/")
            if above == folder and pattern.fullmatch(name) and not (here / name).exists():
                self._again(partial(self._fs.get_file, self._path(path), str(here / name)))
        return here

    def copies(self, folder: str) -> Path:
        """Return a local folder for copies of a folder's files; it is deleted with this storage."""
        if self._copies is None:
            above = tempfile.mkdtemp(prefix="clew-")
            weakref.finalize(self, _remove, above, os.getpid())
            self._copies = Path(above) / (self.name or "trace")
        here = self._copies / folder
        here.mkdir(parents=True, exist_ok=True)
        return here

    def _put(self, source: Path, path: str) -> None:
        if _OBJECT_STORES.intersection(_listed(self._fs.protocol)):
            self._fs.put_file(str(source), path)
            return
        above, _, name = path.rpartition("/")
        self._fs.makedirs(above, exist_ok=True)
        aside = f"{above}/.{uuid.uuid4().hex}-{name}"
        try:
            self._fs.put_file(str(source), aside)
            self._fs.mv(aside, path)
        except BaseException:
            if self._fs.exists(aside):
                self._fs.rm(aside)
            raise

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def _again(self, work: Callable[[], _T]) -> _T:
        """Do something, and again if it fails for another reason than a missing file.

        File systems raise exceptions of various classes; this raises only OSError.
        """
        for wait in (*_WAITS, None):
            try:
                return work()
            except (FileNotFoundError, PermissionError):
                raise
            except Exception as failed:
                if wait is None:
                    raise OSError(f"{type(failed).__name__}: {failed}") from failed
                time.sleep(wait)
        raise AssertionError("the last wait is None")

    def __str__(self) -> str:
        return self.place


def _listed(protocol: str | tuple[str, ...]) -> tuple[str, ...]:
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


def _remove(folder: str, process: int) -> None:
    """Remove a folder of this process; a fork of it that ends leaves it there."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)

"""Folders elsewhere, through fsspec: `s3://bucket/run.clew`, `memory://…`, whatever it knows.

In come URLs and local files, out come files there and bytes from there. A file appears whole or
not at all; what fails is tried again a few times. Knows nothing of what the files hold.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from clew.errors import ClewError, MissingDependency

_T = TypeVar("_T")
_WAITS = (0.1, 0.5, 2.0)
# Where an object appears in one piece when its upload is done, without a move.
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "memory"}


def is_url(path: object) -> bool:
    """Whether a path names something that fsspec is to reach."""
    return isinstance(path, str) and "://" in path


class RemoteFolder:
    """A folder that fsspec reaches; names are relative to it."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.name = self.url.rpartition("/")[2]
        try:
            import fsspec
        except ImportError as missing:
            raise MissingDependency(f"the place {url}", "fsspec", "clew[remote]") from missing
        try:
            self._fs, self._root = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as refused:
            # Names the package to install, or the protocols there are.
            raise ClewError(f"cannot reach {url}: {refused}") from refused

    def names(self) -> dict[str, int]:
        """Every file below the folder with its size, none if there is no such folder."""
        self._fs.invalidate_cache()
        try:
            found = self._again(lambda: self._fs.find(self._root, detail=True))
        except FileNotFoundError:
            return {}
        root = self._fs._strip_protocol(self._root).rstrip("/") + "/"
        sizes = {self._fs._strip_protocol(name): facts["size"] for name, facts in found.items()}
        return {n.removeprefix(root): int(s or 0) for n, s in sizes.items() if n.startswith(root)}

    def read(self, name: str) -> bytes:
        """A whole file; FileNotFoundError if there is none."""
        return bytes(self._again(lambda: self._fs.cat_file(self._path(name))))

    def read_range(self, name: str, start: int, end: int) -> bytes:
        """Some bytes of a file."""
        found = self._again(lambda: self._fs.cat_file(self._path(name), start=start, end=end))
        return bytes(found)

    def download(self, name: str, target: Path) -> None:
        """A whole file into a local one."""
        target.parent.mkdir(parents=True, exist_ok=True)
        self._again(lambda: self._fs.get_file(self._path(name), str(target)))

    def upload(self, source: Path, name: str) -> None:
        """A local file to a name."""
        self._again(lambda: self._upload(source, self._path(name)))

    def remove(self, names: Iterable[str]) -> None:
        """Remove files."""
        for name in names:
            self._again(partial(self._fs.rm_file, self._path(name)))

    def _upload(self, source: Path, path: str) -> None:
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
        """Do something, more than once if it fails for another reason than a missing file."""
        for wait in _WAITS:
            try:
                return work()
            except (FileNotFoundError, PermissionError):
                raise
            except Exception:
                # Each file system has exceptions of its own.
                time.sleep(wait)
        return work()

    def __str__(self) -> str:
        return self.url


def _listed(protocol: str | tuple[str, ...]) -> tuple[str, ...]:
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


def candidates(url: str) -> list[str]:
    """The URL and the names to take in its place, `run-2.clew` and so on."""
    above, slash, name = url.rstrip("/").rpartition("/")
    stem, dot, suffix = name.rpartition(".")
    if not stem:
        stem, dot, suffix = name, "", ""
    others = [f"{above}{slash}{stem}-{number}{dot}{suffix}" for number in range(2, 1000)]
    return [f"{above}{slash}{name}", *others]


def refused(url: Any, why: object) -> ClewError:
    """An error for a place that cannot be written."""
    return ClewError(f"cannot write a trace to {url}: {why}")

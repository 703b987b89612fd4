"""Folders of files, local or remote: the one way to reach the files of a trace.

Input: a path or a URL. Output: a `Storage`; names in it are relative to its folder, with `/`
between them. No link inside a folder is followed. Knows nothing of what the files hold.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from clew import store
from clew.program_errors import pass_on
from clew.store.safe_files import opened, read_at, size_of


class Storage(Protocol):
    """A folder of files."""

    @property
    def place(self) -> Path | str:
        """Return the path or URL of the folder."""

    @property
    def name(self) -> str:
        """Return the last part of the folder's path."""

    def numbered(self) -> Iterator[Storage]:
        """Yield folders to use instead if this one is taken: `run.1.clew`, `run.2.clew`."""

    def sizes(self) -> dict[str, int]:
        """Return every file with its size, nothing if there is no such folder."""

    def size(self, name: str) -> int:
        """Return the size of a file, 0 if it is not there."""

    def folders(self) -> list[str]:
        """Return the names of folders directly below, without links."""

    def links(self) -> list[str]:
        """Return the names of links directly below, which are not followed."""

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Read a file or some bytes of it; FileNotFoundError if it is not there."""

    def put(self, source: Path, name: str) -> None:
        """Copy a local file to a name, where it appears whole."""

    def remove(self, names: Iterable[str]) -> None:
        """Remove files."""

    def local(self, folder: str, pattern: re.Pattern[str]) -> Path:
        """Return a local folder that holds the files of a folder whose names match."""

    def __str__(self) -> str:
        """Return the path or URL."""


def is_url(path: object) -> bool:
    """Return whether a path is a URL for fsspec."""
    return isinstance(path, str) and "://" in path


def storage_of(path: str | os.PathLike[str]) -> Storage:
    """Return the folder of a path or URL; it need not exist."""
    if isinstance(path, str) and is_url(path):
        return store.RemoteStorage(path)
    return LocalStorage(Path(path))


def numbered_name(name: str, number: int) -> str:
    """Put a number before the ending of a name: `run.1.clew`."""
    stem, dot, suffix = name.rpartition(".")
    return f"{stem}.{number}{dot}{suffix}" if stem else f"{name}.{number}"


class LocalStorage:
    """A folder of the file system."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def place(self) -> Path:
        """Return the path of the folder."""
        return self.folder

    @property
    def name(self) -> str:
        """Return the last part of the folder's path."""
        return self.folder.name

    def numbered(self) -> Iterator[LocalStorage]:
        """Yield folders to use instead if this one is taken."""
        for path in numbered_paths(self.folder):
            yield LocalStorage(path)

    def sizes(self) -> dict[str, int]:
        """Return every file with its size, nothing if there is no such folder."""
        return dict(_files(self.folder, ""))

    def size(self, name: str) -> int:
        """Return the size of a file, 0 if it is not there."""
        try:
            return size_of(self.folder / name)
        except OSError as odd:
            pass_on(odd)
            return 0

    def folders(self) -> list[str]:
        """Return the names of folders directly below, without links."""
        with os.scandir(self.folder) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]

    def links(self) -> list[str]:
        """Return the names of links directly below, which are not followed."""
        with os.scandir(self.folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_symlink())

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Read a file or some bytes of it; FileNotFoundError if it is not there."""
        with opened(self.folder / name) as (file, size):
            end = size if end is None else end
            if not 0 <= start <= end <= size:
                raise OSError(f"{name} has no bytes {start} to {end}")
            return read_at(file, start, end - start)

    def put(self, source: Path, name: str) -> None:
        """Copy a local file to a name, where it appears whole."""
        target = self.folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_name(f".{uuid.uuid4().hex}-{target.name}")
        try:
            shutil.copyfile(source, aside)
            os.replace(aside, target)
        finally:
            aside.unlink(missing_ok=True)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files."""
        for name in names:
            (self.folder / name).unlink()

    def local(self, folder: str, pattern: re.Pattern[str]) -> Path:
        """Return the folder itself."""
        return self.folder / folder

    def __str__(self) -> str:
        return str(self.folder)


def numbered_paths(path: Path) -> Iterator[Path]:
    """Yield paths to use instead of one that is taken: `run.1.clew`, `run.2.clew`."""
    number = 1
    while True:
        yield path.with_name(numbered_name(path.name, number))
        number += 1


def _files(folder: Path, prefix: str) -> Iterator[tuple[str, int]]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        facts = entry.stat(follow_symlinks=False)
        if stat.S_ISDIR(facts.st_mode):
            yield from _files(Path(entry.path), f"{prefix}{entry.name}/")
        elif stat.S_ISREG(facts.st_mode):
            yield prefix + entry.name, facts.st_size

"""Put something that was written at its path: the one meaning of `exist=`.

Input: a path or URL, what to do if it exists, and a function that writes. Output: the path. The
result appears complete or not at all. `"replace"` replaces a file or folder of the same kind and
nothing else, `"keep"` moves the old one to `run.1.clew`, `"error"` refuses.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from clew.errors import ClewError, warn
from clew.program_errors import pass_on
from clew.request.exist import checked_exist
from clew.store.storage import LocalStorage, Storage, is_url, numbered_paths, storage_of

_T = TypeVar("_T")

_GZIP = (b"\x1f\x8b",)
_HEAD = 64


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file, and the bytes with which one begins, in lower case."""

    what: str
    begins: tuple[bytes, ...]

    def is_one(self, path: str, head: bytes) -> bool:
        """Return whether a file is of this kind, by its first bytes; an empty one is."""
        begins = _GZIP if path.endswith(".gz") else self.begins
        return not head or head.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith(begins)


@dataclass(frozen=True, slots=True)
class FolderKind:
    """A kind of folder; `mark` is the file written last, `owns` says which files belong to it."""

    what: str
    mark: str
    is_one: Callable[[Storage], bool]
    owns: Callable[[str], bool]
    writer: Callable[[Path], str | None] = lambda folder: None


def place_file(
    target: str | os.PathLike[str], exist: str, kind: FileKind, write: Callable[[Path], _T]
) -> tuple[Path | str, _T]:
    """Write a file; return its path, and what `write` returned."""
    exist = checked_exist(exist)
    with _said(f"cannot write {target}"):
        if is_url(target):
            return _upload_file(str(target), exist, kind, write)
        path = Path(target)
        _check_file(path, exist, kind)
        with _aside(path) as aside:
            result = write(aside)
            _check_file(path, exist, kind)
            if exist == "replace":
                os.replace(aside, path)
            else:
                _place_new(aside, path, exist)
        return path, result


def place_folder(
    target: str | os.PathLike[str], exist: str, kind: FolderKind, write: Callable[[Path], _T]
) -> tuple[Path | str, _T]:
    """Write a folder; return its path, and what `write` returned."""
    exist = checked_exist(exist)
    with _said(f"cannot write {kind.what} to {target}"):
        if is_url(target):
            return _upload_folder(str(target), exist, kind, write)
        path = Path(os.path.abspath(target))
        _check_folder(path, exist, kind)
        with _aside(path) as aside:
            result = write(aside)
            writer = _check_folder(path, exist, kind)
            if writer is not None:
                return _beside(aside, path, f"{path} {writer}"), result
            if _is_used(path):
                _take_over(aside, path, kind, keep=exist == "keep")
            else:
                # A rename works onto an empty folder, not onto anything else.
                os.rename(aside, path)
        return path, result


@contextlib.contextmanager
def _said(what: str) -> Iterator[None]:
    """Turn what the system refuses into a ClewError."""
    try:
        yield
    except OSError as refused:
        if isinstance(refused, ClewError):
            raise
        raise ClewError(f"{what}: {refused}") from refused


def _take_over(aside: Path, path: Path, kind: FolderKind, keep: bool) -> None:
    """Replace a folder by a finished one; the old one is kept under a number or removed."""
    old = rename_to_number(path) if keep else rename_to_hidden(path)
    os.rename(aside, path)
    if not keep:
        remove_folder(old, kind, path)


def rename_to_hidden(path: Path) -> Path:
    """Move a folder to a hidden name beside it."""
    hidden = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    os.rename(path, hidden)
    return hidden


def remove_folder(old: Path, kind: FolderKind, heir: Path) -> None:
    """Remove a folder; move files that do not belong to its kind to another folder."""
    for entry in list(old.iterdir()):
        if not kind.owns(entry.name):
            os.rename(entry, heir / entry.name)
    shutil.rmtree(old, ignore_errors=True)


def rename_to_number(path: Path) -> Path:
    """Move a folder to the first free name with a number."""
    for target in numbered_paths(path):
        if os.path.lexists(target):
            continue
        try:
            os.rename(path, target)
            return target
        except OSError:
            # Another process may have taken it meanwhile.
            if not os.path.lexists(target):
                raise
    raise AssertionError("numbers do not end")


def taken(place: object) -> ClewError:
    """Return the error for a path that exists, with `exist="error"`."""
    return ClewError(f"{place} exists; choose another place, or say exist='replace' or 'keep'")


def is_a_file(path: Path) -> ClewError:
    """Return the error for a file where a folder is to be written."""
    return ClewError(f"{path} is a file; give a folder, such as {path.name}.clew")


def not_ours(place: object, what: str) -> ClewError:
    """Return the error for a path where something else is."""
    return ClewError(f"{place} is there and is not {what}, so it is not replaced; choose another")


def _is_used(path: Path) -> bool:
    """Return whether there is anything at a path except an empty folder."""
    if path.is_dir():
        return any(path.iterdir())
    return os.path.lexists(path)


def _check_file(path: Path, exist: str, kind: FileKind) -> None:
    """Raise if a path may not be written."""
    try:
        mode = path.stat().st_mode
    except OSError as odd:
        pass_on(odd)
        # Nothing there, or a link to nothing.
        return
    if not stat.S_ISREG(mode):
        raise not_ours(path, f"a file with {kind.what}")
    if exist == "error":
        raise taken(path)
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if not kind.is_one(path.name, head):
        raise not_ours(path, kind.what)


def _check_folder(path: Path, exist: str, kind: FolderKind) -> str | None:
    """Raise if a path may not be written; return who writes there, if the result goes beside it."""
    if path.exists() and not path.is_dir():
        raise ClewError(
            f"{path} is a file; give a folder for {kind.what}, such as {path.name}.clew"
        )
    if not _is_used(path):
        return None
    if exist == "error":
        raise taken(path)
    if not kind.is_one(LocalStorage(path)):
        raise not_ours(path, kind.what)
    writer = kind.writer(path)
    if writer is not None and exist == "replace":
        raise ClewError(f"{path} {writer}, so it is not replaced; choose another place")
    return writer


@contextlib.contextmanager
def _aside(path: Path) -> Iterator[Path]:
    """Yield a hidden path beside another, and remove what is still there in the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{uuid.uuid4().hex}-{path.name}")
    try:
        yield aside
    finally:
        if aside.is_dir():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                aside.unlink()


def _place_new(aside: Path, path: Path, exist: str) -> None:
    """Return a file its name; the old one is moved to a number, or raises."""
    if _hold(aside, path):
        return
    if exist == "error":
        raise taken(path)
    for target in numbered_paths(path):
        if _hold(path, target):
            break
    os.replace(aside, path)


def _hold(path: Path, target: Path) -> bool:
    """Return a file another name if that is free; return whether it was."""
    try:
        os.link(path, target)
    except FileExistsError:
        return False
    except OSError as odd:
        pass_on(odd)
        # The file system has no links.
        if os.path.lexists(target):
            return False
        shutil.copyfile(path, target)
    return True


def _beside(aside: Path, path: Path, why: str) -> Path:
    """Return a folder the first free name with a number, and warn."""
    for target in numbered_paths(path):
        try:
            os.rename(aside, target)
            break
        except OSError:
            if not os.path.lexists(target):
                raise
    warn(f"{why}; this one is in {target}")
    return target


def _upload_file(
    url: str, exist: str, kind: FileKind, write: Callable[[Path], _T]
) -> tuple[str, _T]:
    above, _, name = url.rpartition("/")
    with tempfile.TemporaryDirectory(prefix="clew-") as here:
        result = write(Path(here) / name)
        folder = storage_of(above)
        for candidate in (Path(name), *itertools.islice(numbered_paths(Path(name)), 100_000)):
            try:
                head = folder.read(candidate.name, 0, _HEAD)
            except FileNotFoundError:
                break
            if exist == "error":
                raise taken(url)
            if not kind.is_one(name, head):
                raise not_ours(f"{above}/{candidate.name}", kind.what)
            if exist == "replace":
                break
        folder.put(Path(here) / name, candidate.name)
    found = f"{above}/{candidate.name}"
    _say_numbered(url, found)
    return found, result


def _upload_folder(
    url: str, exist: str, kind: FolderKind, write: Callable[[Path], _T]
) -> tuple[str, _T]:
    asked = storage_of(url)
    with tempfile.TemporaryDirectory(prefix="clew-") as here:
        folder = Path(here) / asked.name
        result = write(folder)
        for candidate in itertools.chain([asked], asked.numbered()):
            there = candidate.sizes()
            if there and exist == "error":
                raise taken(url)
            if there and not kind.is_one(candidate):
                raise not_ours(candidate, kind.what)
            if there and exist == "keep":
                continue
            candidate.remove(name for name in there if kind.owns(name.partition("/")[0]))
            # The mark comes last: without it the folder is not recognised as one of its kind.
            names = sorted(LocalStorage(folder).sizes(), key=lambda name: (name == kind.mark, name))
            for name in names:
                if not name.rpartition("/")[2].startswith("."):
                    candidate.put(folder / name, name)
            break
    _say_numbered(url, str(candidate))
    return str(candidate), result


def _say_numbered(asked: str, found: str) -> None:
    if found != asked.rstrip("/"):
        warn(f"{asked} is taken, and nothing is moved there; this one is in {found}")

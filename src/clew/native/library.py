"""Libraries of C++ on disk: where they are, and whether one may be loaded.

    ~/.cache/clew/native/            or $XDG_CACHE_HOME/clew/native, or $CLEW_NATIVE
      <key of the target>/           renamed into place when it is whole
        _clew_native.<suffix>.so   or _clew_tracing, which needs no torch
        build.json                   what it was built for, its checksum
      objects/                       compiled files, for the next build

In: a folder and a `BuildTarget`. Out: a path to load, or an `Unusable` with the reason. A library
is code that runs in the user's process, so whoever else can write it is a reason not to load it.
"""

from __future__ import annotations

import json
import os
import shlex
import stat
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from clew.events.digest import checksum
from clew.native.target import BuildTarget

RECORD = "build.json"
BUILD_COMMAND = "clew build"

State = Literal[
    "loaded", "not built", "other target", "unsafe", "damaged", "failed", "disabled",
    "unsupported", "no torch",
]  # fmt: skip


class Unusable(Exception):
    """A library that is not there or must not be loaded: in which state, why, and what to do."""

    def __init__(self, state: State, reason: str, remedy: str = BUILD_COMMAND) -> None:
        super().__init__(state, reason, remedy)
        self.state = state
        self.reason = reason
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Root:
    """The folder that holds the libraries of all targets."""

    path: Path
    # For other users too, as in an image: everybody may read it, and no objects are left there.
    shared: bool

    @property
    def own_folders(self) -> list[Path]:
        """Return the folders that are Clew's own, the outermost first."""
        return [self.path] if self.shared else [self.path.parent, self.path]

    @property
    def folder_mode(self) -> int:
        return 0o755 if self.shared else 0o700

    def folder_of(self, target: BuildTarget) -> Path:
        """Return where the library of a target is, or would be."""
        return self.path / target.key


def library_root(to: str | os.PathLike[str] | None = None) -> Root:
    """Return the folder that was given, that of CLEW_NATIVE, or that of the user's cache."""
    given = to or os.environ.get("CLEW_NATIVE")
    if given:
        return Root(Path(given).expanduser().absolute(), shared=True)
    cache = os.environ.get("XDG_CACHE_HOME", "")
    # The specification says that a path that is not absolute is to be ignored.
    base = Path(cache) if os.path.isabs(cache) else _home() / ".cache"
    return Root(base / "clew" / "native", shared=False)


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:
        instead = "clew build --to DIR, and set CLEW_NATIVE=DIR"
        raise Unusable("not built", "this user has no home folder to look in", instead) from None


def file_name(target: BuildTarget) -> str:
    """Return the name of the library's file, with the suffix of this Python."""
    return target.module + str(sysconfig.get_config_var("EXT_SUFFIX"))


def usable_library(root: Root, target: BuildTarget) -> Path:
    """Return the library of a target, checked; raises `Unusable`."""
    folder = root.folder_of(target)
    if not folder.is_dir():
        raise _missing(root, target)
    library, record = folder / file_name(target), folder / RECORD
    for path in (*root.own_folders, folder, library, record):
        check_owner(path)
    try:
        expected = json.loads(record.read_bytes())["checksum"]
        found = checksum(library.read_bytes())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Unusable("damaged", f"{folder} cannot be read: {error!r}") from None
    # A file that was cut short would not fail to load: the process would get a bus error.
    if found != expected:
        raise Unusable("damaged", f"{library} is not the file that was built: it has changed since")
    return library


def check_owner(path: Path) -> None:
    """Raise `Unusable` if anybody but this user and root owns or may write a file or folder."""
    try:
        found = path.stat()
    except OSError as error:
        raise Unusable("damaged", f"{path} cannot be read: {error.strerror}") from None
    shown = shlex.quote(str(path))
    if found.st_uid not in (0, os.geteuid()):
        raise Unusable(
            "unsafe",
            f"{path} belongs to user {found.st_uid}, and this is user {os.geteuid()}",
            f"chown {os.geteuid()} {shown}",
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(found.st_mode)
        reason = f"{path} may be written by other users (its mode is {mode:04o})"
        raise Unusable("unsafe", reason, f"chmod go-w {shown}")


def write_record(folder: Path, target: BuildTarget, compiler: str) -> None:
    """Write what a library was built for, beside it."""
    facts = {
        "target": target.to_dict(),
        "compiler": compiler,
        "checksum": checksum((folder / file_name(target)).read_bytes()),
    }
    (folder / RECORD).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def _missing(root: Root, target: BuildTarget) -> Unusable:
    """Say that there is no library for this target, and what the nearest one is for."""
    wanted = target.to_dict()
    others = [
        {name: (was, wanted[name]) for name, was in built.items() if was != wanted[name]}
        for built in _targets_built(root)
        if built.keys() == wanted.keys() and bool(built["torch"]) == bool(wanted["torch"])
    ]
    if not others:
        return Unusable("not built", f"it has not been built (there is none in {root.path})")
    nearest = min(others, key=len)
    if nearest.keys() == {"sources"}:
        return Unusable("other target", "it was built from the sources of another version of Clew")
    differing = ", ".join(
        f"{name} {was}, not {now}" for name, (was, now) in nearest.items() if name != "sources"
    )
    return Unusable("other target", f"it was built for {differing}")


def _targets_built(root: Root) -> list[dict[str, Any]]:
    """Return what the libraries that are there were built for."""
    found = []
    for record in sorted(root.path.glob(f"*/{RECORD}")):
        try:
            target = json.loads(record.read_bytes())["target"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if isinstance(target, dict):
            found.append(target)
    return found

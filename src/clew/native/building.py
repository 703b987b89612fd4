"""Build the libraries for the running torch and Python: `clew build`.

In: the C++ files of `sources/`. Out: a folder with each library, see `library.py`. Everything is
made in a folder aside, tried in a process of its own and renamed into place, so several processes
may build at once: the first one's library stays.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clew.errors import BuildError
from clew.native import target as targets
from clew.native.compiling import ASIDE, CHANGED, WITHOUT, compile_sources, find_compiler, link
from clew.native.library import (
    Root,
    Unusable,
    check_owner,
    file_name,
    library_root,
    usable_library,
    write_record,
)
from clew.native.target import BuildTarget

_DAY = 24 * 3600.0
# Torch is loaded first, as the native engine finds torch's libraries by their names alone.
_TRIAL = """
import sys
from pathlib import Path
sys.path[:] = sys.argv[3:]
if sys.argv[2]:
    import torch
from clew.native.loading import open_library
open_library(Path(sys.argv[1]))
"""


@dataclass(frozen=True, slots=True)
class Built:
    """The library that a build made or found."""

    target: BuildTarget
    # The folder of all libraries, and the library in it.
    root: Path
    path: Path
    # False if a library that works was there already.
    new: bool
    seconds: float


def build(
    to: str | os.PathLike[str] | None = None, tell: Callable[[str], None] = lambda line: None
) -> Built:
    """Build the native engine unless it is there and works; `tell` gets a line for each step.

    Without `to` it comes where `load` looks for it: into the folder of CLEW_NATIVE if that is set,
    else into the user's cache. `tell` is called from several threads.
    """
    return _build(_target, targets.SOURCES, to, tell)


def build_tracing(
    to: str | os.PathLike[str] | None = None, tell: Callable[[str], None] = lambda line: None
) -> Built | None:
    """Build the library that makes `clew.watch` fast, in the same way; None where none is needed.

    Needs no torch.
    """
    if _tracing_target() is None:
        return None
    return _build(_tracing_target, targets.SOURCES / targets.TRACING, to, tell)


def has_torch() -> bool:
    """Return whether there is a torch to build the native engine for."""
    return importlib.util.find_spec("torch") is not None


def _build(
    current: Callable[[], BuildTarget | None],
    sources: Path,
    to: str | os.PathLike[str] | None,
    tell: Callable[[str], None],
) -> Built:
    began = time.monotonic()
    target = current()
    assert target is not None
    root = _root(to)
    place = root.folder_of(target)
    new = not _works(root, target)
    if new:
        # Only this folder is replaced: one that another process puts there meanwhile stays.
        broken = _inode(place)
        compiler = find_compiler()
        tell(f"building for {target}, with {compiler}")
        _make_folders(root)
        _sweep(root.path)
        with tempfile.TemporaryDirectory(prefix=ASIDE, dir=root.path) as aside:
            made = Path(aside, "new")
            made.mkdir()
            objects = (Path(aside) if root.shared else root.path) / "objects"
            objects.mkdir(mode=0o700, exist_ok=True)
            compiled = compile_sources(compiler, sources, target, objects, tell)
            if current() != target:
                raise BuildError(CHANGED)
            link(compiler, compiled, target, made / file_name(target))
            tell("linked; loading it in a process of its own")
            failure = _trial(made / file_name(target), target)
            if failure:
                raise BuildError(f"what was built cannot be loaded. {WITHOUT}", failure)
            write_record(made, target, str(compiler))
            _put_in_place(made, place, root.folder_mode, broken)
    return Built(target, root.path, place / file_name(target), new, time.monotonic() - began)


def _target() -> BuildTarget:
    unsupported = targets.unsupported()
    if unsupported:
        raise BuildError(f"{unsupported}: nothing to build. {WITHOUT}")
    try:
        return targets.current_target(targets.SOURCES)
    except ImportError as error:
        what = f"the native engine is built for one torch, which cannot be imported: {error}"
        raise BuildError(f'{what}. Run: pip install "clew[torch]"') from None


def _tracing_target() -> BuildTarget | None:
    return None if targets.unsupported() else targets.tracing_target(targets.SOURCES)


def _root(to: str | os.PathLike[str] | None) -> Root:
    try:
        return library_root(to)
    except Unusable as found:
        raise BuildError(f"{found.reason}. Run: {found.remedy}") from None


def _works(root: Root, target: BuildTarget) -> bool:
    """Return whether a library is there that may be loaded and can be."""
    try:
        return not _trial(usable_library(root, target), target)
    except Unusable:
        return False


def _trial(library: Path, target: BuildTarget) -> str:
    """Load a library in a process of its own; return what went wrong, empty if nothing did."""
    command = (sys.executable, "-c", _TRIAL, str(library), target.torch, *sys.path)
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode < 0:
        return f"{done.stderr}the process that loaded it was ended by signal {-done.returncode}\n"
    return (done.stderr or f"exit code {done.returncode}\n") if done.returncode else ""


def _make_folders(root: Root) -> None:
    """Make the folders of libraries, and check that nobody else may write there."""
    root.own_folders[0].parent.mkdir(parents=True, exist_ok=True)
    for folder in root.own_folders:
        folder.mkdir(mode=root.folder_mode, exist_ok=True)
        try:
            check_owner(folder)
        except Unusable as found:
            raise BuildError(f"{found.reason}. Run: {found.remedy}") from None


def _put_in_place(made: Path, place: Path, mode: int, broken: int | None) -> None:
    """Rename a folder to its name, after one that does not work is moved away."""
    # What a linker makes may be written by the group, depending on the umask.
    for file in made.iterdir():
        file.chmod(mode & 0o644)
    made.chmod(mode)
    try:
        if broken is not None and _inode(place) == broken:
            os.rename(place, made.with_name("replaced"))
        os.rename(made, place)
    except OSError:
        # Another process was first, and what it has built is the same.
        if not place.is_dir():
            raise


def _inode(folder: Path) -> int | None:
    return folder.stat().st_ino if folder.exists() else None


def _sweep(root: Path) -> None:
    """Delete what killed builds left, and objects that no build has used for a month."""
    for days, pattern in ((1, f"{ASIDE}*"), (1, f"objects/{ASIDE}*"), (30, "objects/*.o")):
        for path in root.glob(pattern):
            try:
                if path.stat().st_mtime < time.time() - days * _DAY:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            except OSError:
                pass  # another build deletes it too

"""Choose where `clew run` writes: the folder that was named, or one in `./.clew/`.

Input: what was asked for, the current folder, a name for the program. Output: a path. In `.clew`
only the newest runs stay; nothing is deleted but whole traces that no process writes to.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from pathlib import Path

from clew import store
from clew.store.storage import LocalStorage, is_url
from clew.store.write.place import is_a_file, not_ours

HOME = ".clew"
_KEPT = 5


def output_path(out: str | None, folder: str) -> str:
    """Return the path of the trace; without `out` one in `.clew` of a folder, which is made."""
    if out is not None:
        return out if is_url(out) else os.path.join(folder, out)
    home = Path(folder, HOME)
    # A folder that cannot be written is reported when the trace is opened.
    with contextlib.suppress(OSError):
        home.mkdir(mode=0o700, exist_ok=True)
        if not (home / ".gitignore").exists():
            (home / ".gitignore").write_text("*\n")
    return str(home / f"{program_name()}.clew")


def check_output(out: str | None) -> None:
    """Raise a ClewError if a trace cannot go where it was asked for, before the program runs."""
    if out is None or is_url(out) or not os.path.lexists(out):
        return
    path = Path(out)
    if not path.is_dir():
        raise is_a_file(path)
    if any(path.iterdir()) and not store.TRACE.is_one(LocalStorage(path)):
        raise not_ours(path, "a trace")


def program_name() -> str:
    """Return a name for the program that runs: that of its script or module.

    >>> program_name() != ""
    True
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    name = "" if spec is None else str(spec.name).removesuffix(".__main__").rpartition(".")[2]
    if not name or name == "__main__":
        script = (getattr(sys, "argv", None) or [""])[0]
        name = os.path.splitext(os.path.basename(os.path.abspath(script)))[0]
    return re.sub(r"[^\w-]+", "_", name).strip("_") or "run"


def remove_oldest(home: Path) -> None:
    """Delete all but the newest traces of a folder; leave whatever is not ours or still written.

    A run and what its children recorded, `train.clew` and `train.1.clew`, count one each.
    """
    found = []
    for path in home.glob("*.clew"):
        with contextlib.suppress(OSError):
            if path.is_dir() and not path.is_symlink() and store.TRACE.is_one(LocalStorage(path)):
                found.append(((path / store.MANIFEST).stat().st_mtime_ns, path))
    for _, path in sorted(found, reverse=True)[_KEPT:]:
        with contextlib.suppress(OSError):
            is_ours = all(store.TRACE.owns(name) for name in os.listdir(path))
            if is_ours and store.TRACE.writer(path) is None:
                shutil.rmtree(path, ignore_errors=True)

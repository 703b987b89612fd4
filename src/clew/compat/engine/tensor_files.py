"""`.pt` files that a program writes as it runs, one for each time that it saves a name.

Input: values and their names. Output: files for `torch.load(path, weights_only=True)`, in a folder
per rank. A value that cannot be written is logged and never raised, because the caller is in the
middle of a forward. Must not import torch: Tensor Tracker works without it.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from clew import store
from clew.request.callbacks import norm
from clew.session.environment import rank_and_size

# Characters that cannot be in a file name here, and `%`, so that the coding is unambiguous.
_CODED = re.compile(r'[/\\:*?"<>|\x00-\x1f%]' if os.name == "nt" else r"[/\0]|%(?=2F|00|25)")
# In bytes: most file systems take 255, of which `.call{n}.pt` needs some.
_LONGEST = 230


class RankFolder:
    """A folder to write to: one in it for each rank, once this process knows that it is one."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._made: Path | None = None
        self._ranks: tuple[int, int] | None = None
        self.path()

    def path(self) -> Path:
        """Return the folder to write to now, and make it if it is not there."""
        rank, size = self._ranks = rank_and_size(self._ranks)
        path = self._folder / f"rank{rank}" if size > 1 else self._folder
        if path != self._made:
            path.mkdir(parents=True, exist_ok=True)
            self._made = path
        return path


class TensorFiles:
    """Files `{name}.call{n}.pt` in a folder; `counts` has how often each name was saved.

    A file always has the newest value of its name. A file that another run or another program wrote
    is moved to a folder beside this one before it is replaced: `{folder}-earlier`.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self.counts: defaultdict[str, int] = defaultdict(int)
        self._own: set[str] = set()
        self._aside: dict[Path, Path] = {}

    def save(
        self,
        folder: Path,
        name: str,
        value: Any,
        number: int | None = None,
        reduce: Callable[[Any], Any] | None = None,
    ) -> None:
        """Write a value with all its tensors, or the result of `reduce` for each tensor.

        A `number` given by the caller is not counted, and replaces the file with that number.
        """
        if number is None:
            number = self.counts[name]
            self.counts[name] += 1
        file = f"{_file_name(folder, name)}.call{number}.pt"
        try:
            self._make_way(folder, file)
            store.save_tensors(own_parts(value, reduce), folder / file)
        except Exception as error:
            self._log.warning("Could not save %s: %s: %s", file, type(error).__name__, error)

    def _make_way(self, folder: Path, file: str) -> None:
        """Move a file away that this object did not write."""
        path = folder / file
        if str(path) in self._own:
            return
        if path.exists():
            if folder not in self._aside:
                self._aside[folder] = _new_beside(folder)
                self._log.warning(
                    "%s has tensors from before; those whose names come again are moved to %s",
                    folder, self._aside[folder],
                )  # fmt: skip
            target = self._aside[folder] / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, target)
        self._own.add(str(path))


def own_parts(value: Any, reduce: Callable[[Any], Any] | None = None) -> Any:
    """Return a value with its tensors detached, on the CPU, and of a view no more than itself.

    `torch.save` would write all that a view is a view of. `reduce` is asked what to write of each
    tensor. Tuples come out as lists.
    """
    if isinstance(value, dict):
        return {key: own_parts(item, reduce) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [own_parts(item, reduce) for item in value]
    if not hasattr(value, "untyped_storage"):
        return value
    found = (value.detach() if reduce is None else reduce(value.detach())).cpu()
    is_plain = not found.is_nested and str(found.layout) == "torch.strided"
    is_whole = is_plain and found.untyped_storage().nbytes() == found.nbytes
    return found if is_whole else found.clone()


def sample_norms(tensor: Any) -> Any:
    """Return one norm per sample, with samples along the first axis; of a scalar its absolute
    value.
    """
    return norm(-1)(tensor.reshape(tensor.shape[0] if tensor.dim() else 1, -1))


def _new_beside(folder: Path) -> Path:
    """Make a new folder beside `x`: `x-earlier`, `x-earlier-2`."""
    for number in itertools.count(1):
        name = f"{os.path.abspath(folder)}-earlier" + (f"-{number}" if number > 1 else "")
        try:
            os.mkdir(name)
            break
        except FileExistsError:
            continue
    return Path(name)


def _file_name(folder: Path, name: str) -> str:
    """Return the file for a name: in the folder, or in a folder inside it named before a `/`."""
    above, _, last = name.rpartition("/")
    is_inside = above and not name.startswith("/") and ".." not in above.split("/")
    if is_inside and (folder / above).is_dir():
        return f"{above}/{_as_file(last)}"
    return _as_file(name)


@lru_cache
def _as_file(name: str) -> str:
    """Return the name with characters that a file name cannot have as `%XX`.

    A name that is too long ends in a digest, so that two names never become one.
    """
    text = _CODED.sub(lambda found: f"%{ord(found[0]):02X}", name)
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= _LONGEST:
        return data.decode()
    digest = hashlib.sha256(data).hexdigest()[:16]
    return f"{data[: _LONGEST - 17].decode('utf-8', 'ignore')}~{digest}"

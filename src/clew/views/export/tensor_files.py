"""A folder of `.pt` files that a program writes as it runs, one for each time that a name comes.

In come values and their names, out go files for `torch.load(path, weights_only=True)`. What cannot
be written is logged and never raised: whoever writes here is in the middle of something else.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from clew.store.as_torch import save_parts
from clew.store.save import numbered
from clew.views.export.hdf5 import file_name

# Who writes into a folder, by the folder; the first one of several.
_writers: WeakValueDictionary[Path, TensorFiles] = WeakValueDictionary()


class TensorFiles:
    """Files `{name}.call{n}.pt` in a folder; `counts` says how often each name came.

    A folder that has such files from before is left as it is, and one beside it is taken. Several
    that write into one folder at a time count together, so none replaces the files of another.
    """

    def __init__(self, folder: str | os.PathLike[str], log: logging.Logger) -> None:
        wanted, self._log = Path(folder), log
        self.folder = next(f for f in numbered(wanted) if not any(f.glob("*.call*.pt")))
        if self.folder != wanted:
            log.warning("%s has saved tensors already; saving to %s", wanted, self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._first = _writers.setdefault(self.folder.resolve(), self)
        self.counts: defaultdict[str, int]
        self.counts = defaultdict(int) if self._first is self else self._first.counts

    def save(
        self,
        name: str,
        value: Any,
        number: int | None = None,
        reduce: Callable[[Any], Any] | None = None,
    ) -> None:
        """Write a value with all its tensors, or what `reduce` makes of each.

        A `number` of one's own is not counted, and replaces what has it.
        """
        name = file_name(name)
        if number is None:
            number = self.counts[name]
            self.counts[name] += 1
        file = f"{name}.call{number}.pt"
        try:
            save_parts(value, self.folder / file, reduce)
        except Exception as error:
            self._log.warning("Could not save %s: %s: %s", file, type(error).__name__, error)

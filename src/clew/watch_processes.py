"""Processes that `multiprocessing` starts in a watched program, and what they tell the parent.

Each child writes into a folder that is named after the watched function and the parent's process,
so that both know it without a message. The parent reads the folder when its trace is read.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from clew.observe.dataloader import merge, worker_name
from clew.record.recorder import Recorder
from clew.store.read.worker_files import WorkerFiles
from clew.store.write.worker_file import WorkerFile


class ChildFiles:
    """What child processes recorded of some watched functions, by their keys, which may grow."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = keys
        self._inboxes: dict[str, WorkerFiles] = {}

    def merge(self, recorder: Recorder) -> None:
        """Read in what child processes have recorded since the last time."""
        for key in self._keys:
            inbox = self._inboxes.get(key)
            if inbox is None:
                inbox = self._inboxes[key] = WorkerFiles(_folder(key, os.getpid()))
            merge(inbox, recorder)


def file_for_parent(key: str) -> WorkerFile:
    """Return the file in which this child process tells its parent what a function did."""
    place = _folder(key, _parent_process())
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    return WorkerFile(place, own_worker() or f"process {os.getpid()}")


def is_child() -> bool:
    """Return whether `multiprocessing` started this process, as it does workers of DataLoaders."""
    return multiprocessing.parent_process() is not None


def _parent_process() -> int:
    parent = multiprocessing.parent_process()
    return os.getpid() if parent is None or parent.pid is None else parent.pid


def own_worker() -> str:
    """Return the name of this process, if it is a DataLoader's worker."""
    return worker_name()


def _base(process: int) -> Path:
    user = os.getuid() if hasattr(os, "getuid") else 0
    return Path(tempfile.gettempdir()) / f"clew-watch-{user}-{process}"


def _folder(key: str, process: int) -> Path:
    """Return where child processes write what a watched function did, the same in each of them."""
    return _base(process) / hashlib.blake2b(key.encode(), digest_size=8).hexdigest()


@functools.cache
def remove_at_exit() -> None:
    """Delete the folders of child processes when this process ends."""
    process = os.getpid()

    def remove() -> None:
        if os.getpid() == process:
            shutil.rmtree(_base(process), ignore_errors=True)

    atexit.register(remove)

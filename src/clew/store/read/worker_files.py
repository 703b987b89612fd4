"""Read what other processes have recorded: a folder of files they append to in, messages out."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from clew.store.format.wire import Delivery, read_message
from clew.store.write.worker_file import SUFFIX
from clew.stream.worker_faults import FAULT_SUFFIX


class WorkerFiles:
    """Reads what workers have written into a folder, continuing where it stopped the last time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process = os.getpid()
        self._read: dict[str, int] = {}

    def messages(self) -> Iterator[tuple[str, Delivery]]:
        """Yield all new messages, each with the name of its file."""
        for path in self._files(SUFFIX):
            try:
                with open(path, "rb") as file:
                    file.seek(self._read.get(path.name, 0))
                    while (message := read_message(file)) is not None:
                        self._read[path.name] = file.tell()
                        yield path.name, message
            except (OSError, ValueError):
                continue

    def faults(self) -> Iterator[tuple[str, str, str]]:
        """Yield what Clew failed at in workers: who, where, and the text of the exception."""
        for path in self._files(FAULT_SUFFIX):
            try:
                fault = json.loads(path.read_text())
                yield str(fault["worker"]), str(fault["where"]), str(fault["text"])
            except (OSError, ValueError, KeyError, TypeError):
                continue

    def remove(self) -> None:
        """Delete the folder; workers that still run notice."""
        if self._is_own():
            shutil.rmtree(self.folder, ignore_errors=True)

    def _is_own(self) -> bool:
        """Return whether this process reads the folder, and not a fork of it."""
        return os.getpid() == self._process and _is_own(self.folder)

    def _files(self, suffix: str) -> list[Path]:
        try:
            return sorted(self.folder.glob(f"*{suffix}")) if self._is_own() else []
        except OSError:
            return []


def _is_own(folder: Path) -> bool:
    """Return whether a folder exists and belongs to this user: others may guess its path."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return not hasattr(os, "getuid") or found.st_uid == os.getuid()

"""Files read and written without trust: whole reads, whole writes, ordinary files only.

A link in the place of a file is refused: it may lead out of the trace.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Without waiting, so that a pipe in the place of a file cannot hold a reader up.
_SAFELY = ("O_NONBLOCK", "O_NOFOLLOW", "O_BINARY")
_READ = os.O_RDONLY | sum(getattr(os, name, 0) for name in _SAFELY)


@contextmanager
def opened(path: Path) -> Iterator[tuple[int, int]]:
    """An ordinary file opened for reading, and its size; OSError for anything else."""
    try:
        file = os.open(path, _READ)
    except OSError as refused:
        if refused.errno != errno.ELOOP:
            raise
        raise OSError(f"{path.name} is a link, which is not followed") from refused
    try:
        facts = os.fstat(file)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(f"{path.name} is not an ordinary file")
        yield file, facts.st_size
    finally:
        os.close(file)


def size_of(path: Path) -> int:
    """The size of an ordinary file; OSError for anything else."""
    facts = os.lstat(path)
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(f"{path.name} is not an ordinary file")
    return facts.st_size


def read_at(file: int, offset: int, size: int) -> bytes:
    """Bytes from a place in a file, all of them; the caller knows that the file has them."""
    os.lseek(file, offset, os.SEEK_SET)
    pieces = []
    while size > 0:
        piece = os.read(file, min(size, 1 << 30))
        if not piece:
            raise OSError("the file has become shorter")
        pieces.append(piece)
        size -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def write_all(file: int, data: Any) -> None:
    """Write bytes, all of them: the system may take fewer at a time."""
    view = memoryview(data).cast("B")
    while len(view):
        view = view[os.write(file, view) :]

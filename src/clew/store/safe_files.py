"""Read and write untrusted files: complete reads, complete writes, ordinary files only.

A symbolic link is refused: it may lead out of the trace.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Without waiting, so that a named pipe cannot block the reader.
_SAFELY = ("O_NONBLOCK", "O_NOFOLLOW", "O_BINARY")
_READ = os.O_RDONLY | sum(getattr(os, name, 0) for name in _SAFELY)


@contextmanager
def opened(path: Path) -> Iterator[tuple[int, int]]:
    """Open an ordinary file for reading, with its size; raise OSError for anything else."""
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
    """Return the size of an ordinary file; raise OSError for anything else."""
    facts = os.lstat(path)
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(f"{path.name} is not an ordinary file")
    return facts.st_size


def read_at(file: int, offset: int, size: int) -> bytes:
    """Read bytes at an offset, all of them; the caller knows that the file has them."""
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
    """Write all bytes: the system may take fewer at a time."""
    view = memoryview(data).cast("B")
    while len(view):
        view = view[os.write(file, view) :]

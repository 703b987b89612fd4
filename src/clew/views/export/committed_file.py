"""A file that HDF5 writes through, and that is whole whenever the process is killed.

HDF5 overwrites its own bookkeeping in place, parents before children, so that a kill in the middle
of a flush leaves a file that no longer opens. Here bytes of new space go straight to the file,
where nothing points at them yet; overwritten bytes wait in memory until `commit`, which writes
them so that everything they point at is there already: the superblock, which says how long the
file is, then the rest from the end to the beginning. Knows nothing of HDF5 beyond that.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clew.store.files import write_all

_PAGE = 4096
# The superblock with whatever HDF5 has put behind it; written by itself, before all else.
_SUPERBLOCK = 48


class CommittedFile(io.RawIOBase):
    """A file-like object for `h5py.File`; what is on disk changes only with `commit`."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        self._file = os.open(path, flags, 0o644)
        self._position = 0
        # How long the file is, and how much of that is committed: never written but by `commit`.
        self._size = 0
        self._committed = 0
        # Number of a page -> what its committed part will be.
        self._pages: dict[int, bytearray] = {}
        self._fault: OSError | None = None

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a place."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        """The place."""
        return self._position

    def readable(self) -> bool:
        """It can be read."""
        return True

    def writable(self) -> bool:
        """It can be written."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what HDF5 believes to be there."""
        view = memoryview(buffer).cast("B")
        count = max(0, min(len(view), self._size - self._position))
        done = 0
        while done < count:
            at = self._position + done
            number, inside = divmod(at, _PAGE)
            length = min(count - done, _PAGE - inside)
            held = self._held() - at
            if held > 0:
                length = min(length, held)
            if held > 0 and number in self._pages:
                view[done : done + length] = self._pages[number][inside : inside + length]
            else:
                view[done : done + length] = self._read(at, length)
            done += length
        self._position += done
        return done

    def write(self, data: Any) -> int:
        """Write through into new space; keep back what overwrites."""
        view = memoryview(data).cast("B")
        held = max(0, min(len(view), self._held() - self._position))
        if held < len(view):
            try:
                os.lseek(self._file, self._position + held, os.SEEK_SET)
                write_all(self._file, view[held:])
            except OSError as fault:
                # HDF5 does not survive a write that fails: it is told by `commit`.
                self._fault = fault
                held = len(view)
        done = 0
        while done < held:
            number, inside = divmod(self._position + done, _PAGE)
            length = min(held - done, _PAGE - inside)
            self._page(number)[inside : inside + length] = view[done : done + length]
            done += length
        self._position += len(view)
        self._size = max(self._size, self._position)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """Set the length; a file gets shorter only by `commit`."""
        size = self._position if size is None else size
        if size > self._size:
            try:
                os.ftruncate(self._file, size)
            except OSError as fault:
                self._fault = fault
        self._size = size
        return size

    def commit(self) -> None:
        """Make the file on disk what HDF5 believes it to be.

        Raises what went wrong since; from then on the file on disk stays as it is.
        """
        if self._fault is not None:
            raise self._fault
        first = self._pages.get(0)
        if first is not None:
            self._overwrite(0, first[:_SUPERBLOCK])
        for offset, data in self._runs():
            self._overwrite(offset, data)
        self._pages.clear()
        if self._size < self._committed:
            os.ftruncate(self._file, self._size)
        self._committed = self._size

    def close(self) -> None:
        """Let go of the file; what was not committed is not there."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        super().close()

    def _overwrite(self, offset: int, data: bytearray) -> None:
        """Replace bytes that are on disk, in one call of the system."""
        os.lseek(self._file, offset, os.SEEK_SET)
        write_all(self._file, data)

    def _runs(self) -> Iterator[tuple[int, bytearray]]:
        """Pages that lie side by side as one piece, the last first."""
        run = bytearray()
        numbers = sorted(self._pages, reverse=True)
        for at, number in enumerate(numbers):
            page = self._pages[number][: self._committed - number * _PAGE]
            run = page + run
            if at + 1 == len(numbers) or numbers[at + 1] != number - 1:
                yield number * _PAGE, run
                run = bytearray()

    def _held(self) -> int:
        """Up to where bytes wait in memory: once a write has failed, all do."""
        return self._committed if self._fault is None else 1 << 62

    def _page(self, number: int) -> bytearray:
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = bytearray(self._read(number * _PAGE, _PAGE))
        return page

    def _read(self, offset: int, length: int) -> bytes:
        os.lseek(self._file, offset, os.SEEK_SET)
        data = os.read(self._file, length)
        return data + bytes(length - len(data))

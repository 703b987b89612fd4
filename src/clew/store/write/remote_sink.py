"""A trace written to remote storage: first into a local folder, then uploaded as it is sealed.

Files are uploaded in the order in which they may be read: the manifest, then shards, values, tables
and last the events that refer to them, so that a reader sees a consistent prefix. Uploaded files
are deleted locally. If an upload fails for good, one warning says so, and the rest stays local.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path

from clew.events.columns import Columns
from clew.events.model import Gap
from clew.store.format.manifest import RunCheck
from clew.store.format.shards import StoredShards
from clew.store.read.open_trace import PART, read_files
from clew.store.remote_storage import RemoteStorage
from clew.store.storage import LocalStorage
from clew.store.write.claim import Claim
from clew.store.write.disk_sink import DiskSink, EventRows
from clew.stream.batch import Batch

# Seconds between uploads: what the loss of the machine costs at most without a flush.
_UPLOAD_SECONDS = 60.0
_ORDER = ("shard-*.safetensors", "values-*.parquet", "tables-*.parquet", "events-*.parquet")


class RemoteSink(DiskSink):
    """A sink that writes one rank's part of a trace to a remote folder."""

    def __init__(
        self,
        claim: Claim,
        rank: int,
        event_rows: EventRows,
        last: int | None,
        on_fallen: Callable[[int], object],
        on_gap: Callable[[Gap], object],
    ) -> None:
        super().__init__(claim, rank, event_rows, last, on_fallen)
        self._on_gap = on_gap
        self._url = str(claim.storage)
        self._remote = claim.storage
        self._stranded = False
        self._last_upload = time.monotonic()

    @property
    def place(self) -> Path | str:
        """Return the URL of the trace; the local folder if it could not be uploaded."""
        return self.folder.parent if self._stranded else self._url

    def read(self) -> Columns:
        """Read what was written, local or remote."""
        self.claim.check()
        return _read_partly_local(RemoteStorage(self._url), self.folder, self.claim.check)

    def _check_place(self) -> None:
        """Do nothing: no one else has the local folder."""

    def _remove(self, names: list[str]) -> None:
        """Remove dropped files, local and remote; a remote file that stays does no harm."""
        super()._remove(names)
        for name in filter(_is_uploaded, names):
            with suppress(OSError):
                self._remote.remove([f"{self.folder.name}/{name}"])

    def extend(self, batch: Batch) -> None:
        """Write a batch, and upload finished files."""
        # The folder is gone if an earlier run of this trace was closed.
        self.folder.mkdir(parents=True, exist_ok=True)
        super().extend(batch)
        overdue = time.monotonic() - self._last_upload > _UPLOAD_SECONDS
        if overdue or any(_sealed(self.folder)):
            self.settle()

    def settle(self) -> None:
        """Seal everything and upload it."""
        if not self._stranded:
            self._files.roll()
            self._upload()

    def seal(self) -> None:
        """Finish every file and upload the rest."""
        super().seal()
        if not self._stranded:
            self._upload()
        if not self._stranded:
            shutil.rmtree(self.folder.parent.parent, ignore_errors=True)

    def _upload(self) -> None:
        try:
            for path in _sealed(self.folder):
                self._remote.put(path, f"{self.folder.name}/{path.name}")
                path.unlink()
            self._last_upload = time.monotonic()
        except OSError as fault:
            self._stranded = True
            self._on_gap(
                Gap(
                    "the upload from here on",
                    self._url,
                    f"it failed ({fault})",
                    f"the rest stays in {self.folder.parent}; copied into {self._url} it "
                    "completes the trace there",
                )
            )


def _is_uploaded(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in _ORDER)


def _sealed(folder: Path) -> list[Path]:
    """Return the sealed files of a rank in the order in which they may appear."""
    return [path for pattern in _ORDER for path in sorted(folder.glob(pattern))]


def _read_partly_local(remote: RemoteStorage, local: Path, check: RunCheck) -> Columns:
    """Read the columns of a rank that is being uploaded: remote files, and those still local."""
    try:
        folder = remote.local(local.name, PART)
    except OSError:
        # The storage cannot be reached: a warning said so when the upload failed.
        folder = remote.copies(local.name)
    for path in local.iterdir() if local.is_dir() else ():
        if PART.fullmatch(path.name) and not (folder / path.name).exists():
            _copy(path, folder / path.name)
    here = StoredShards(LocalStorage(local.parent), local.name)
    shards = _Shards(here, StoredShards(remote, local.name))
    return read_files(folder, shards=shards, check=check)[0]


def _copy(path: Path, target: Path) -> None:
    try:
        os.link(path, target)
    except FileNotFoundError:
        # The file was sealed meanwhile, and perhaps uploaded.
        return
    except OSError:
        # It is another file system, or one without links.
        shutil.copyfile(path, target)


class _Shards:
    """The shards of a rank: local ones first, then remote ones."""

    def __init__(self, here: StoredShards, there: StoredShards) -> None:
        self._here = here
        self._there = there

    def size(self, shard: int) -> int:
        """Return the size of a shard, 0 if there is none."""
        return self._here.size(shard) or self._there.size(shard)

    def read(self, shard: int, offset: int, length: int) -> bytes:
        """Return bytes of a shard; raise OSError if they are missing."""
        holder = self._here if self._here.size(shard) else self._there
        return holder.read(shard, offset, length)

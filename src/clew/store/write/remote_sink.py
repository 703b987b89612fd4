"""A trace written elsewhere: streamed into a local folder, uploaded from there as it is sealed.

Files go up in the order in which they may be read: the manifest, then shards, values, tables and
last the events that point at them, so that whoever reads meanwhile sees a consistent prefix. What
is up is removed here. If it cannot be uploaded that is said once, and the rest stays here.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from clew.errors import BadTrace, ClewError
from clew.events.columns import Columns
from clew.events.model import Gap
from clew.events.records import Batch
from clew.store.format.manifest import new_manifest, read_manifest, same_job, write_manifest
from clew.store.format.schema import rank_folder
from clew.store.read.remote_folder import read_partly_local
from clew.store.remote import RemoteFolder, candidates, refused
from clew.store.write.disk_sink import DiskSink, EventRows, Surroundings
from clew.store.write.save import EXIST, save
from clew.store.write.whole_trace import EventRows as SavedRows

# What a lost machine loses at most, in seconds, of what nobody has flushed.
_UPLOAD_SECONDS = 60.0
_ORDER = ("shard-*.safetensors", "values-*.parquet", "tables-*.parquet", "events-*.parquet")


class RemoteSink(DiskSink):
    """A sink that writes one rank's part of a trace to a folder elsewhere."""

    def __init__(
        self,
        remote: RemoteFolder,
        folder: Path,
        rank: int,
        around: Callable[[list[Any]], Surroundings],
        on_gap: Callable[[Gap], Any],
        event_rows: EventRows,
    ) -> None:
        super().__init__(folder, rank, around, on_gap, event_rows)
        self._remote = remote
        self._stranded = False
        self._last_upload = time.monotonic()

    @property
    def place(self) -> Path | str:
        """The URL of the trace; the local folder if it could not be uploaded."""
        return self.folder.parent if self._stranded else self._remote.url

    def read(self) -> Columns:
        """What was written, wherever it is."""
        return read_partly_local(self._remote, self.folder)

    def _write(self, batch: Batch) -> None:
        # Gone if an earlier run of this trace was closed.
        self.folder.mkdir(parents=True, exist_ok=True)
        super()._write(batch)
        overdue = time.monotonic() - self._last_upload > _UPLOAD_SECONDS
        if overdue or any(_sealed(self.folder)):
            self._settle()

    def _settle(self) -> None:
        """Seal what there is and upload it."""
        if not self._stranded:
            self._files.roll()
            self._upload()

    def _write_rest(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        super()._write_rest()
        if not self._stranded:
            self._upload()
        if not self._stranded:
            shutil.rmtree(self.folder.parent.parent, ignore_errors=True)

    def _upload(self) -> None:
        try:
            for path in _sealed(self.folder):
                self._remote.upload(path, f"{self.folder.name}/{path.name}")
                path.unlink()
            self._last_upload = time.monotonic()
        except Exception as fault:
            # Each file system has exceptions of its own.
            self._stranded = True
            self._untold = Gap(
                "the upload from here on",
                self._remote.url,
                f"it failed ({type(fault).__name__}: {fault})",
                f"the rest stays in {self.folder.parent}; copied into {self._remote.url} it "
                "completes the trace there",
            )


def _sealed(folder: Path) -> list[Path]:
    """The sealed files of a rank in the order in which they may appear."""
    return [path for pattern in _ORDER for path in sorted(folder.glob(pattern))]


def claim_remote(
    url: str, rank: int, exist: str, environment: dict[str, Any], world_size: int
) -> tuple[RemoteFolder, Path]:
    """A place for one rank of a run, there and here: never one that holds another run."""
    manifest = new_manifest(environment, world_size)
    for candidate in candidates(url):
        remote = RemoteFolder(candidate)
        try:
            if exist == "replace":
                _make_way(remote, manifest, rank)
            if _is_ours(remote, manifest, rank):
                folder = Path(tempfile.mkdtemp(prefix="clew-")) / (remote.name or "trace")
                (folder / rank_folder(rank)).mkdir(parents=True)
                write_manifest(folder, manifest)
                remote.upload(folder / "manifest.json", "manifest.json")
                return remote, folder / rank_folder(rank)
        except ClewError:
            raise
        except Exception as fault:
            # Each file system has exceptions of its own.
            raise refused(candidate, f"{type(fault).__name__}: {fault}") from fault
    raise refused(url, "it and every name like it are taken")


def _is_ours(remote: RemoteFolder, manifest: dict[str, Any], rank: int) -> bool:
    """Whether a folder is nobody's, or this job's without this rank."""
    names = remote.names()
    if "manifest.json" not in names:
        return not names
    if any(name.startswith(f"{rank_folder(rank)}/") for name in names):
        return False
    known = _manifest(remote)
    return known is not None and same_job(known, manifest)


def _make_way(remote: RemoteFolder, manifest: dict[str, Any], rank: int) -> None:
    """Remove what an older run left, as far as it is this rank's to remove."""
    names = set(remote.names())
    known = _check_replaceable(remote, names)
    if known is None:
        return
    if same_job(known, manifest):
        # The other ranks may be there already.
        names = {name for name in names if name.startswith(f"{rank_folder(rank)}/")}
    remote.remove(names)


def _check_replaceable(remote: RemoteFolder, names: Iterable[str]) -> dict[str, Any] | None:
    """The manifest of the trace that is there, None if nothing is."""
    if not names:
        return None
    known = _manifest(remote) if "manifest.json" in names else None
    if known is None:
        raise ClewError(
            f"{remote} is there and is not a trace, so it is not replaced; choose another place"
        )
    return known


def _manifest(remote: RemoteFolder) -> dict[str, Any] | None:
    """The manifest there, None if it is none."""
    with tempfile.TemporaryDirectory(prefix="clew-") as here:
        (Path(here) / "manifest.json").write_bytes(remote.read("manifest.json"))
        try:
            return read_manifest(Path(here))
        except BadTrace:
            return None


def save_remote(columns: list[Columns], url: str, exist: str, event_rows: SavedRows) -> str:
    """Write a whole trace to a folder elsewhere; its URL, another if that is taken.

    The manifest goes up last: without it nobody takes the folder for a trace.
    """
    if exist not in EXIST:
        raise ClewError(f"exist={exist!r} is not one of {', '.join(map(repr, EXIST))}")
    with tempfile.TemporaryDirectory(prefix="clew-") as here:
        folder = save(columns, Path(here) / "trace.clew", "new", event_rows)
        for candidate in candidates(url):
            remote = RemoteFolder(candidate)
            try:
                if exist == "replace":
                    _check_replaceable(remote, remote.names())
                    remote.remove(remote.names())
                if not remote.names():
                    _upload_all(remote, folder)
                    return remote.url
            except ClewError:
                raise
            except Exception as fault:
                # Each file system has exceptions of its own.
                raise refused(candidate, f"{type(fault).__name__}: {fault}") from fault
    raise refused(url, "it and every name like it are taken")


def _upload_all(remote: RemoteFolder, folder: Path) -> None:
    for rank in sorted(folder.glob("rank=*")):
        for path in _sealed(rank):
            remote.upload(path, f"{rank.name}/{path.name}")
    remote.upload(folder / "manifest.json", "manifest.json")

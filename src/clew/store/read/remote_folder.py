"""A trace elsewhere, read: events and facts fetched when first asked for, values one by one.

In comes a `RemoteFolder`, out come the columns of each rank. The tables of a rank are copied into a
temporary folder when the rank is first read; of a shard, only the bytes of the values asked for.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from clew.errors import BadTrace
from clew.events.columns import Columns
from clew.store.format.manifest import Format, format_of, read_manifest
from clew.store.format.shards import LocalShards, open_name, shard_name
from clew.store.read.open_trace import (
    Opened,
    missing_ranks,
    rank_folders,
    read_closed,
    read_files,
)
from clew.store.remote import RemoteFolder

_PART = re.compile(r"(events|values|tables)-\d{5,9}\.(parquet|arrows)")
_RANK = re.compile(r"(rank=\d{1,9})/(.+)")


class Copies:
    """A temporary folder that goes away with the last who reads from it."""

    def __init__(self, name: str) -> None:
        above = tempfile.mkdtemp(prefix="clew-")
        weakref.finalize(self, shutil.rmtree, above, ignore_errors=True)
        self.folder = Path(above) / (name or "trace")
        self.folder.mkdir()


class RemoteShards:
    """The shards of one rank, read by ranges of bytes; from `local` what is still there."""

    def __init__(
        self,
        remote: RemoteFolder,
        rank: str,
        sizes: dict[str, int],
        copies: Copies,
        local: LocalShards | None = None,
    ) -> None:
        self._remote = remote
        self._rank = rank
        self._sizes = sizes
        # Kept: what is read besides, from copies, must not go away.
        self._copies = copies
        self._local = local

    def size(self, shard: int) -> int:
        """The size of a shard, 0 if there is none."""
        here = 0 if self._local is None else self._local.size(shard)
        return here or max(self._sizes.get(name, 0) for name in _names(shard))

    def read(self, shard: int, offset: int, length: int) -> bytes:
        """Bytes of a shard; OSError where they are not there."""
        if self._local is not None and self._local.size(shard):
            return self._local.read(shard, offset, length)
        for name in _names(shard):
            if 0 <= offset <= offset + length <= self._sizes.get(name, -1):
                path = f"{self._rank}/{name}"
                return self._remote.read_range(path, offset, offset + length) if length else b""
        raise OSError(f"shard {shard} has no bytes {offset} to {offset + length}")


def _names(shard: int) -> tuple[str, str]:
    return shard_name(shard), open_name(shard)


def open_remote(url: str) -> Opened:
    """Open a trace elsewhere: each rank is fetched when it is first asked for."""
    remote = RemoteFolder(url)
    copies = Copies(remote.name)
    mirror = copies.folder
    manifest, names = remote_contents(remote, mirror)
    for match in filter(None, map(_RANK.fullmatch, names)):
        (mirror / match[1]).mkdir(exist_ok=True)
    ranks = rank_folders(mirror)
    if not ranks:
        raise BadTrace(f"{url} holds no rank=* folder: nothing was recorded into it")
    alone, form = len(ranks) == 1, format_of(manifest)
    reads: dict[int, Callable[[], Columns]] = {
        rank: partial(_fetched, remote, copies, path, form, alone) for rank, path in ranks.items()
    }
    return reads, missing_ranks(manifest, list(ranks))


def remote_contents(remote: RemoteFolder, mirror: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """The manifest of a trace elsewhere, copied into a local folder, and all its files."""
    try:
        (mirror / "manifest.json").write_bytes(remote.read("manifest.json"))
        names = remote.names()
    except FileNotFoundError:
        raise BadTrace(
            f"{remote} is not a trace: it has no manifest.json; give the folder that "
            "clew.trace(out=...) or Trace.save() wrote"
        ) from None
    except Exception as failed:
        # Each file system has exceptions of its own.
        raise BadTrace(f"{remote} cannot be read: {type(failed).__name__}: {failed}") from failed
    return read_manifest(mirror), names


def _fetched(
    remote: RemoteFolder, copies: Copies, folder: Path, form: Format, alone: bool
) -> Columns:
    try:
        sizes = _fetch_tables(remote, folder)
    except Exception as failed:
        # Each file system has exceptions of its own.
        raise BadTrace(
            f"{remote}/{folder.name} cannot be read: {type(failed).__name__}: {failed}"
        ) from failed
    shards = RemoteShards(remote, folder.name, sizes, copies)
    return read_closed(folder, form, alone, shards)


def _fetch_tables(remote: RemoteFolder, folder: Path) -> dict[str, int]:
    """Copy the tables of a rank into a folder of its name; the sizes of all its files."""
    prefix = f"{folder.name}/"
    sizes = {n.removeprefix(prefix): s for n, s in remote.names().items() if n.startswith(prefix)}
    for name in sorted(sizes):
        if _PART.fullmatch(name) and not (folder / name).exists():
            remote.download(prefix + name, folder / name)
    return sizes


def read_partly_local(remote: RemoteFolder, local: Path) -> Columns:
    """The columns of a rank that is being uploaded: what is there, and what is still here."""
    copies = Copies(remote.name)
    folder = copies.folder / local.name
    folder.mkdir()
    for path in local.iterdir() if local.is_dir() else ():
        if _PART.fullmatch(path.name):
            (folder / path.name).symlink_to(path)
    try:
        sizes = _fetch_tables(remote, folder)
    except Exception:
        # Out of reach: that was said when the upload failed.
        sizes = {}
    shards = RemoteShards(remote, local.name, sizes, copies, LocalShards(local))
    return read_files(folder, shards=shards)[0]

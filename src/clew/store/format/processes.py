"""Which process writes a trace, and whether it still runs."""

from __future__ import annotations

import functools
import os
import platform
from hashlib import blake2b
from pathlib import Path
from typing import Any


def this_process() -> dict[str, Any]:
    """Return facts that identify this process: host, process id, and when it began."""
    return _process(os.getpid())


def parent_process() -> dict[str, Any]:
    """Return facts that identify the process that started this one."""
    return _process(os.getppid())


def _process(pid: int) -> dict[str, object]:
    return {"host": this_host(), "pid": pid, "began": _began(pid)}


@functools.cache
def this_host() -> str:
    """Return a hash that identifies this host without revealing its name."""
    try:
        booted = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        booted = ""
    return blake2b(f"{platform.node()} {booted}".encode(), digest_size=8).hexdigest()


def runs_here(process: dict[str, object]) -> bool:
    """Return whether a process of this host, as `this_process` described it, still runs."""
    pid = process.get("pid")
    if process.get("host") != this_host() or type(pid) is not int or not 0 < pid < 1 << 31:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it belongs to another user
    # The process id may have been reused since.
    return process.get("began") == _began(pid)


def _began(pid: int) -> str | None:
    """Return when a process began, in the system's units, None if that is not known."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    # A zombie process no longer writes.
    return None if not fields or fields[0] in "ZX" else fields[19]

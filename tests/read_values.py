"""Reads the values of a trace in every way: `python -m tests.read_values TRACE FOLDER`.

Prints as JSON what came of each reading of each address, what whole-trace calls did, and by how
many bytes the peak memory grew over that of reading the addresses that begin with `honest`. Data
or a ClewError is fine; anything else ends the program. Runs in a process of its own, which an
alarm ends if something hangs.
"""

from __future__ import annotations

import contextlib
import io
import json
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import clew
from clew.cli.main import main

PATIENCE = 120
ADDRESS_SPACE = 16 << 30
FORMATS = ("hdf5", "zarr", "pt", "json", "csv", "parquet", "chrome")


def outcome(read: Callable[[], Any]) -> str:
    """Say "data", or what was refused and why."""
    try:
        read()
    except clew.ClewError as refused:
        return f"{type(refused).__name__}: {refused}"
    return "data"


def read_value(value: Any, trace: Path, address: str) -> dict[str, str]:
    ways = {
        "array": value.array, "tensor": value.tensor, "item": value.item,
        "str": lambda: str(value), "repr": lambda: repr(value), "dict": value.to_dict,
        "stats": lambda: value.stats, "notebook": lambda: value._repr_mimebundle_(),
        "command": lambda: command(["value", str(trace), address]),
        "json": lambda: command(["value", str(trace), address, "--json"]),
    }  # fmt: skip
    return {way: outcome(read) for way, read in ways.items()}


def command(words: list[str]) -> None:
    """Run a command, which must print its answer or an error in a line."""
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        main(words)
    assert "Traceback" not in said.getvalue(), said.getvalue()


def read_trace(t: clew.Trace, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    folder.mkdir(parents=True)
    ways: dict[str, Callable[[], Any]] = {
        "print": lambda: str(t), "table": lambda: str(t.table()), "code": lambda: str(t.code()),
        "dict": t.to_dict, "html": lambda: t.html(folder / "t.html"),
    }  # fmt: skip
    found: dict[str, Any] = {way: outcome(read) for way, read in ways.items()}
    for fmt in FORMATS:
        asked = options if fmt in ("hdf5", "zarr", "pt") else {}
        found[fmt] = list(t.export(fmt, folder / fmt, **asked).left_out)
    return found


def peak() -> int:
    """The most memory this process had; `ru_maxrss` would begin with that of its parent."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def run(trace: Path, folder: Path) -> dict[str, Any]:
    t = clew.load(trace)
    values = {e.address.partition("#")[0]: v for e in t.events for v in e.outputs.values()}
    honest = [address for address in values if address.startswith("honest")]
    read = {address: read_value(values[address], trace, address) for address in honest}
    read_trace(t, folder / "honest", {"addresses": honest})
    before = peak()
    read |= {a: read_value(value, trace, a) for a, value in values.items() if a not in honest}
    whole = read_trace(t, folder / "all", {})
    return {"values": read, "trace": whole, "grown": peak() - before}


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    signal.alarm(PATIENCE)
    sys.stdout.write(json.dumps(run(Path(sys.argv[1]), Path(sys.argv[2]))))

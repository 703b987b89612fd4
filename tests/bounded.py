"""Measures reading calls on hostile traces: `python -m tests.bounded FOLDER [ATTACK …] [CALL …]`.

Each call reads each trace in a forked process of its own, in little memory and time. Prints one
JSON object a line: attack, call, bytes of the trace, peak of memory in bytes above a process that
has read a small honest trace in the same way, what that may be, CPU seconds, and what came of it:
`data`, `refused` for a ClewError, or the exception that should not have been. An attack may be the
path of a trace. Without calls each attack is read by a few of them, which differ from attack to
attack; `all` stands for all calls.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

sys.modules["torch"] = None  # type: ignore[assignment]

import clew
from clew.store.read.allowance import MEMORY_PER_BYTE
from tests import attacks
from tests.reading_calls import CALLS

# The memory that a call may take beside what it takes for a small honest trace: so much, and so
# much for each byte of the trace. Plain data has an object for every fact.
SPARE = 64 << 20
LIMIT = dict.fromkeys(CALLS, MEMORY_PER_BYTE) | {"dict": 4 * MEMORY_PER_BYTE}
# What no call may come near.
ADDRESS_SPACE = 6 << 30
SECONDS = 60


def size_of(trace: Path) -> int:
    """The bytes of all files of a trace."""
    return sum(path.stat().st_size for path in trace.rglob("*") if path.is_file())


def memory(field: str) -> int:
    """A figure of this process's memory, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def outcome(call: str, trace: Path, folder: Path) -> str:
    """Run a call and say what came of it."""
    try:
        CALLS[call](clew.load(trace), folder)
        return "data"
    except clew.ClewError as refused:
        return f"refused: {str(refused)[:200]}"
    except BaseException as broken:
        where = traceback.extract_tb(broken.__traceback__)[-1]
        return f"{type(broken).__name__}: {str(broken)[:200]} at {where.filename}:{where.lineno}"


def measured(call: str, trace: Path) -> dict[str, Any]:
    """Run a call in a forked process; its peak above this process, its CPU time, its outcome."""
    with tempfile.TemporaryDirectory(dir=trace.parent) as place:
        answer = Path(place) / "answer.json"
        child = os.fork()
        if child == 0:
            _answer(call, trace, Path(place))
        _, status, used = os.wait4(child, 0)
        cpu = used.ru_utime + used.ru_stime
        if not answer.exists():
            code = os.waitstatus_to_exitcode(status)
            how = "hang" if code == -signal.SIGXCPU else f"ended with {code}"
            return {"call": call, "peak": used.ru_maxrss * 1024, "seconds": cpu, "out": how}
        return {"call": call, "seconds": cpu, **json.loads(answer.read_text())}


def _answer(call: str, trace: Path, place: Path) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    try:
        (place / "honest").mkdir()
        outcome(call, attacks.HONEST, place / "honest")
        # The peak begins anew.
        Path("/proc/self/clear_refs").write_text("5")
        before = memory("VmRSS")
        out = outcome(call, trace, place)
        (place / "answer.json").write_text(
            json.dumps({"peak": memory("VmHWM") - before, "out": out})
        )
    finally:
        os._exit(0)


def warm_up(folder: Path) -> None:
    """Read an honest trace in every way, so that everything is imported."""
    for number, call in enumerate(CALLS):
        (place := folder / f"warm{number}").mkdir()
        outcome(call, attacks.HONEST, place)
        shutil.rmtree(place)


def main(folder: Path, names: list[str], calls: list[str]) -> None:
    warm_up(folder)
    for number, name in enumerate(names):
        is_path = name not in attacks.ATTACKS
        trace = Path(name) if is_path else attacks.make(name, folder)
        size = size_of(trace)
        for call in calls or some_calls(number):
            facts = {"attack": name, "size": size, "limit": SPARE + LIMIT[call] * size}
            print(json.dumps(facts | measured(call, trace)), flush=True)
        if not is_path:
            shutil.rmtree(trace)


def some_calls(number: int) -> list[str]:
    """Give calls for an attack: one that reads and writes everything, and another for each."""
    others = [call for call in CALLS if call != "save"]
    return ["save", others[number % len(others)]]


if __name__ == "__main__":
    given = sys.argv[2:]
    wanted = [name for name in given if name not in CALLS and name != "all"]
    called = list(CALLS) if "all" in given else [name for name in given if name in CALLS]
    main(Path(sys.argv[1]), wanted or list(attacks.ATTACKS), called)

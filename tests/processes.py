"""Processes that tests start: programs of several ranks over gloo, and Pythons of their own.

How long anything takes is the machine's business: no test passes or fails by it. `HANG_GUARD` is
for what would otherwise never end, and the only time limit there is.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

# Seconds after which something is taken to hang. No machine is as slow as that.
HANG_GUARD = 1200.0

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"

PREAMBLE = f"""
import datetime, json, os, sys, time, warnings
from pathlib import Path
import torch, torch.distributed as dist
from torch import nn
import clew
from clew import Callbacks, callbacks
torch.set_num_threads(1)
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds={HANG_GUARD}))
torch.manual_seed(0)

def reached(name):
    Path(name).touch()

def wait_for(name):
    while not Path(name).exists():
        time.sleep(0.01)
"""

# The timeout of the program's group, once all ranks have met: to meet may take any time.
TIMEOUT = """
dist.barrier()
backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
backend.options._timeout = datetime.timedelta(seconds={seconds})
"""


def run_ranks(
    script: str, size: int, tmp_path: Path, dead: tuple[int, ...] = ()
) -> list[tuple[str, str]]:
    """Run a script on several ranks in a folder; all but `dead` must end well.

    Returns what each rank printed to its output and to its error stream.
    """
    program = tmp_path / "program.py"
    program.write_text(script)
    with tempfile.TemporaryDirectory() as printed:
        task = {
            "program": str(program), "folder": str(tmp_path), "size": size, "port": _free_port(),
            "printed": printed,
        }  # fmt: skip
        codes = _run_in_nursery(task)
        found = [
            (Path(printed, f"{rank}.out").read_text(), Path(printed, f"{rank}.err").read_text())
            for rank in range(size)
        ]
    for rank, code in enumerate(codes):
        assert (code == 0) == (rank not in dead), found[rank][1]
    return found


def answers(
    script: str,
    size: int,
    tmp_path: Path,
    timeout: float | None = None,
    dead: tuple[int, ...] = (),
) -> list[Any]:
    """Run a script on several ranks; the `answer` of each, None of those that die.

    `timeout` is that of the program's process group, in seconds. In the script, `reached(name)` and
    `wait_for(name)` put things that ranks do in order.
    """
    preamble = PREAMBLE + ("" if timeout is None else TIMEOUT.format(seconds=timeout))
    ending = "\nprint(json.dumps(answer))\ndist.destroy_process_group()\n"
    found = run_ranks(preamble + script + ending, size, tmp_path, dead=dead)
    return [
        None if rank in dead else json.loads(out.splitlines()[-1])
        for rank, (out, _) in enumerate(found)
    ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@functools.cache
def _nursery() -> subprocess.Popen[str]:
    """The process that forks all ranks of this test run, see tests/nursery.py."""
    nursery = subprocess.Popen(
        [sys.executable, "-m", "tests.nursery"], cwd=ROOT, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, bufsize=1,
        env={**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    atexit.register(_end, nursery, [])
    return nursery


def _run_in_nursery(task: dict[str, Any]) -> list[int]:
    """Exit codes of the ranks of a task."""
    nursery = _nursery()
    assert nursery.stdin
    nursery.stdin.write(json.dumps(task) + "\n")
    processes = _line(nursery)
    try:
        codes: list[int] = _line(nursery)
    except BaseException:
        _end(nursery, processes)
        raise
    return codes


def _line(nursery: subprocess.Popen[str]) -> Any:
    assert nursery.stdout
    readable, _, _ = select.select([nursery.stdout], [], [], HANG_GUARD)
    line = nursery.stdout.readline() if readable else ""
    assert line, "the process that forks ranks has ended" if readable else "the ranks hang"
    return json.loads(line)


def _end(nursery: subprocess.Popen[str], processes: list[int]) -> None:
    """End the nursery, and ranks of it that still run."""
    for process in (*processes, nursery.pid):
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            pass
    with nursery:  # waits for it, and closes its pipes
        _nursery.cache_clear()

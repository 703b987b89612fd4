"""Programs of several ranks: real processes over gloo on this machine, each with a time limit."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

SRC = Path(__file__).parents[1] / "src"

PREAMBLE = """
import datetime, json, os, sys, time, warnings
import torch, torch.distributed as dist
from torch import nn
import clew
from clew import Callbacks, callbacks
torch.set_num_threads(1)
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=TIMEOUT))
torch.manual_seed(0)
"""


def run_ranks(
    script: str, size: int, tmp_path: Path, seconds: float = 120.0, dead: tuple[int, ...] = ()
) -> list[tuple[str, str]]:
    """What each rank prints to its output and error streams; all but `dead` must end well."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = tmp_path / "program.py"
    program.write_text(script)
    common = {
        **os.environ, "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    processes = [
        subprocess.Popen(
            [sys.executable, str(program)], env={**common, "RANK": str(rank)}, cwd=tmp_path,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(size)
    ]  # fmt: skip
    try:
        found = [process.communicate(timeout=seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for rank, process in enumerate(processes):
        assert (process.returncode == 0) == (rank not in dead), found[rank][1]
    return found


def answers(
    script: str, size: int, tmp_path: Path, timeout: float = 20.0, dead: tuple[int, ...] = ()
) -> list[Any]:
    """What each rank's `answer` is when it has run a script; None for those that die."""
    preamble = PREAMBLE.replace("TIMEOUT", str(timeout))
    ending = "\nprint(json.dumps(answer))\ndist.destroy_process_group()\n"
    found = run_ranks(preamble + script + ending, size, tmp_path, dead=dead)
    return [
        None if rank in dead else json.loads(out.splitlines()[-1])
        for rank, (out, _) in enumerate(found)
    ]

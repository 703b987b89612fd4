"""`python -m tests.nursery`: import torch and Clew once, then fork the ranks of many programs.

A line of JSON comes in for each program: its path, the folder it runs in, its number of ranks, the
port they meet at and the folder for what they print. Two lines go out: the process ids of the
ranks, and their exit codes. It ends with its input.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

import pandas  # noqa: F401  pyarrow loads it with the first column
import torch
import torch._dynamo  # DistributedDataParallel loads it
import torch.distributed.fsdp
import torch.distributed.tensor.parallel

import clew
from clew.callbacks import rank_mailbox
from tests.processes import HANG_GUARD

# Everything is imported before the first fork. Nothing runs here: autograd does not survive one.
for module in pkgutil.walk_packages(clew.__path__, "clew."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
torch.set_num_threads(1)
# How long rank 0 waits for others is a promise only where a program sets the timeout of its group;
# everywhere else a rank on a busy machine may take as long as it takes.
rank_mailbox._PATIENCE = rank_mailbox._PATIENCE_TO_BEGIN = HANG_GUARD / 2


def main() -> None:
    gc.freeze()  # so that no collection in a rank copies what the nursery holds
    for line in sys.stdin:
        task = json.loads(line)
        started = [start(task, rank) for rank in range(task["size"])]
        print(json.dumps(started), flush=True)
        codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in started]
        print(json.dumps(codes), flush=True)


def start(task: dict[str, Any], rank: int) -> int:
    """Fork a rank that runs a program as `python program.py` would; its process id."""
    process = os.fork()
    if process:
        return process
    print_to(Path(task["printed"]), rank)
    os.chdir(task["folder"])
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(task["size"]),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(task["port"]),
    )  # fmt: skip
    sys.path.insert(0, task["folder"])
    sys.argv = [task["program"]]
    code = 0
    try:
        runpy.run_path(task["program"], run_name="__main__")
    except BaseException:
        traceback.print_exc()
        code = 1
    # As Python ends, except that nothing is freed: that would copy all memory of the nursery.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def print_to(folder: Path, rank: int) -> None:
    """Send what this process prints to files, and give it an empty input."""
    names = {0: os.devnull, 1: str(folder / f"{rank}.out"), 2: str(folder / f"{rank}.err")}
    for stream, name in names.items():
        opened = os.open(name, os.O_RDONLY if stream == 0 else os.O_WRONLY | os.O_CREAT, 0o644)
        os.dup2(opened, stream)
        os.close(opened)


if __name__ == "__main__":
    main()

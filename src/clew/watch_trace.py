"""The trace of a watch that runs outside any `clew.trace`: variables, with NumPy alone or torch.

Joins capture and a store in memory, as `session` does for a whole trace, without needing torch.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import math
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from clew.keep.budget import Budget
from clew.keep.python_values import NoTensors
from clew.observe.dataloader import merge, worker_name
from clew.observe.variables.frames import monitoring, tracing
from clew.record.encoder import Encoder, Surroundings
from clew.record.gaps import Gaps
from clew.record.recorder import Recorder
from clew.request.interest import Interest
from clew.request.limits import Limits
from clew.run.live_derived import LiveDerived
from clew.run.run import Run, run_of
from clew.session.batching import Deferred, Direct, Unkept
from clew.session.environment import Environment, rank_and_size, source_text
from clew.session.memory_trace import module_rows
from clew.store.read.worker_files import WorkerFiles
from clew.store.write.memory_sink import MemoryStore
from clew.store.write.worker_file import WorkerFile
from clew.traces import Trace


class WatchTrace(Trace):
    """Variables that a watch has recorded; grows for as long as the watch is used.

    Without `keeps` they are only sent to the output, and the trace stays empty.
    """

    def __init__(self, keys: list[str], keeps: bool = True) -> None:
        super().__init__()
        self._identity = object()
        self._derived = LiveDerived()
        self._process = os.getpid()
        self._environment = Environment()
        self.gaps = Gaps("watch", "a value", warns=True)
        self._knows_torch = False
        self._crash: str | None = None
        self._store = MemoryStore()
        self._keys = keys if keeps else []
        self._inboxes: dict[str, WorkerFiles] = {}
        # In a child process everything goes to the parent.
        self.sink: WorkerFile | None = None
        if self._keys and is_child():
            place = folder_of(self._keys[0], _parent_process())
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.sink = WorkerFile(place, own_worker() or f"process {os.getpid()}")
        encoder = Encoder(self._around)
        direct = Direct(encoder, self._store)
        self._deferred = (Deferred if keeps else Unkept)(lambda: direct)
        self.recorder: Recorder = Recorder(
            self._deferred if self.sink is None else Direct(encoder, self.sink),
            time.perf_counter_ns,
            NoTensors,
            Budget(Limits(), self.gaps.add),
            self.gaps,
            batch=math.inf if keeps else Unkept.BATCH,
        )

    @property
    def is_foreign(self) -> bool:
        """Return whether another process made it, of which this one is a fork."""
        return os.getpid() != self._process

    def learn_torch(self) -> None:
        """Record tensors too, once the program has imported torch."""
        if self._knows_torch or not has_torch():
            return
        # These import torch, which the program has done by now.
        from clew.keep import fast_summaries  # noqa: F401 - importing it registers it
        from clew.keep.identity import TensorTable
        from clew.keep.keeper import Keeper
        from clew.torch_compat import keep_from_dynamo

        recorder = self.recorder
        self._knows_torch = True
        keep_from_dynamo((monitoring, tracing))
        table = TensorTable(recorder.modules)
        table.values = recorder.values.tensors.values
        recorder.values.tensors = table
        values = recorder.values
        values.keep(
            lambda: Keeper("meta", Interest(), values.budget, self.gaps.add, values.kept), False
        )

    def crashed(self, error: BaseException) -> None:
        """Record the exception that left the watched code."""
        try:
            self._crash = self.recorder.crashed(error)
        except Exception as fault:
            self.gaps.fault(fault, "the exception that ended the call")

    def _current_run(self) -> Run:
        self._merge()
        self.recorder.drain()
        self._deferred.settle()
        columns = self._store.read(rank_and_size()[0])
        columns.derived = self._derived.of(columns)
        return run_of(columns, self._identity)

    def _around(self) -> Surroundings:
        environment = {
            **self._environment.facts("watch"),
            "level": "variables",
            "values": "stats",
            "crash": self._crash,
        }
        recorder = self.recorder
        return Surroundings(
            module_rows(recorder), list(recorder.modules.parameters),
            list(recorder.threads.names), list(recorder.values.tensors.generator_names),
            lambda step: {},
            list(self.gaps), source_text, environment,
        )  # fmt: skip

    def _merge(self) -> None:
        """Read in what child processes have recorded since the last time."""
        for key in self._keys if self.sink is None else ():
            inbox = self._inboxes.get(key)
            if inbox is None:
                inbox = self._inboxes[key] = WorkerFiles(folder_of(key, os.getpid()))
            merge(inbox, self.recorder)


def has_torch() -> bool:
    """Return whether torch has been imported; while its import still runs, it has not."""
    torch: Any = sys.modules.get("torch")
    spec = getattr(torch, "__spec__", None)
    return (
        torch is not None and hasattr(torch, "Tensor") and not getattr(spec, "_initializing", False)
    )


# Processes


def is_child() -> bool:
    """Return whether `multiprocessing` started this process, as it does workers of DataLoaders."""
    return multiprocessing.parent_process() is not None


def _parent_process() -> int:
    parent = multiprocessing.parent_process()
    return os.getpid() if parent is None or parent.pid is None else parent.pid


def own_worker() -> str:
    """Return the name of this process, if it is a DataLoader's worker."""
    return worker_name()


def _base(process: int) -> Path:
    user = os.getuid() if hasattr(os, "getuid") else 0
    return Path(tempfile.gettempdir()) / f"clew-watch-{user}-{process}"


def folder_of(key: str, process: int) -> Path:
    """Return where child processes write what a watched function did, the same in each of them."""
    return _base(process) / hashlib.blake2b(key.encode(), digest_size=8).hexdigest()


@functools.cache
def remove_at_exit() -> None:
    """Delete the folders of child processes when this process ends."""
    process = os.getpid()

    def remove() -> None:
        if os.getpid() == process:
            shutil.rmtree(_base(process), ignore_errors=True)

    atexit.register(remove)

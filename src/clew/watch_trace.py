"""The trace of a watch that runs outside any `clew.trace`: variables, with NumPy alone or torch.

Joins capture and a store in memory, as `session` does for a whole trace, without needing torch.
"""

from __future__ import annotations

import math
import os
import sys
import time
from typing import Any

from clew.keep.budget import Budget
from clew.keep.python_values import NoTensors
from clew.record.encoder import Encoder, Surroundings
from clew.record.gaps import Gaps
from clew.record.recorder import Recorder
from clew.request.limits import Limits
from clew.run.live_derived import LiveDerived
from clew.run.run import Run, run_of
from clew.session.batching import Deferred, Direct, Unkept
from clew.session.environment import Environment, rank_and_size, source_text
from clew.session.memory_trace import module_rows
from clew.store.write.memory_sink import MemoryStore
from clew.traces import Trace
from clew.watch_processes import ChildFiles, file_for_parent, is_child


class WatchTrace(Trace):
    """Variables that a watch has recorded; grows for as long as the watch is used.

    Without `keeps` they are only sent to the output, and the trace stays empty.
    """

    def __init__(self, keys: list[str], values: str, keeps: bool = True) -> None:
        super().__init__()
        self._values = values
        self._identity = object()
        self._derived = LiveDerived()
        self._process = os.getpid()
        self._environment = Environment()
        self.gaps = Gaps("watch", "a value", warns=True)
        self._knows_torch = False
        self._crash: str | None = None
        self._store = MemoryStore()
        # In a child process everything goes to the parent.
        self.sink = file_for_parent(keys[0]) if keeps and keys and is_child() else None
        self._children = ChildFiles(keys if keeps and self.sink is None else ())
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
        from clew.watch_tensors import record_tensors  # imports torch, as the program has by now

        self._knows_torch = True
        record_tensors(self.recorder)

    def crashed(self, error: BaseException) -> None:
        """Record the exception that left the watched code."""
        try:
            self._crash = self.recorder.crashed(error)
        except Exception as fault:
            self.gaps.fault(fault, "the exception that ended the call")

    def _current_run(self) -> Run:
        self._children.merge(self.recorder)
        self.recorder.drain()
        self._deferred.settle()
        columns = self._store.read(rank_and_size()[0])
        columns.derived = self._derived.of(columns)
        return run_of(columns, self._identity)

    def _around(self) -> Surroundings:
        environment = {
            **self._environment.facts("watch"),
            "level": "variables",
            "values": self._values,
            "crash": self._crash,
        }
        recorder = self.recorder
        return Surroundings(
            module_rows(recorder), list(recorder.modules.parameters),
            list(recorder.threads.names), list(recorder.values.tensors.generator_names),
            lambda step: {},
            list(self.gaps), source_text, environment,
        )  # fmt: skip


def has_torch() -> bool:
    """Return whether torch has been imported; while its import still runs, it has not."""
    torch: Any = sys.modules.get("torch")
    spec = getattr(torch, "__spec__", None)
    return (
        torch is not None and hasattr(torch, "Tensor") and not getattr(spec, "_initializing", False)
    )

"""The recording of a DataLoader's worker: what its parent asks for, handed back through a file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clew.address import parse
from clew.callbacks import reducer
from clew.events.model import Gap
from clew.events.settings import Limits
from clew.session.batching import Direct
from clew.session.surroundings import source_text
from clew.store.write.worker_file import WorkerFile

if TYPE_CHECKING:
    from clew.capture.encoder import Surroundings
    from clew.capture.recording import Recording
    from clew.capture.workers import WorkerPlan


def worker_surroundings(recording: Recording) -> Surroundings:
    """What the recording of a worker knows besides its records; the rest is its parent's."""
    from clew.capture.encoder import Surroundings

    threads = list(recording.thread_names)
    return Surroundings([], [], threads, [], lambda step: {}, [], source_text, {})


def begin_worker(plan: WorkerPlan, folder: Path, worker: str) -> tuple[WorkerFile, Recording]:
    """Record in a worker of a DataLoader: taps, and the variables that the parent asks for."""
    from clew.capture.budget import Budget
    from clew.capture.encoder import Encoder
    from clew.capture.named import Named, TapSource
    from clew.capture.recording import Recording
    from clew.capture.scope import Scope
    from clew.capture.steps import Steps
    from clew.capture.tensors import TensorTable
    from clew.capture.values import Keeper
    from clew.capture.variables import VariableSource
    from clew.capture.watched_variables import Wants
    from clew.capture.watching import WatchSource
    from clew.capture.wishes import Wishes

    def ignore(gap: Gap) -> bool:
        return False  # the parent tells what is not recorded in workers

    budget = Budget(Limits(), ignore)
    file = WorkerFile(folder, worker)
    encoder = Encoder(lambda: worker_surroundings(recording))
    recording = Recording(Direct(encoder, file), time.perf_counter_ns, TensorTable, budget)
    recording.keep(Keeper("meta", [], budget, ignore, recording.kept), every=False)
    functions = [a for a in map(parse, plan.capture) if a.kind == "function"]
    named = Named(recording, [], Steps(), lambda: None, ignore)
    sources: list[Any] = [TapSource(recording, named, reducer, [], ignore)]
    if functions:
        sources.append(VariableSource(recording, functions, named, ignore))
    if plan.watch is not None:
        values = "stats" if plan.values == "meta" else plan.values
        wants = Wants(Wishes(plan.watch), values, on_change=plan.on_change)
        sources.append(WatchSource(recording, wants, Scope(plan.scope), everywhere=True))
    for source in sources:
        source.start()
    return file, recording

"""The recording of a DataLoader's worker: what its parent asks for, handed back through a file."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

from clew.address import parse
from clew.callbacks.apply import Named
from clew.keep.budget import Budget
from clew.keep.identity import TensorTable
from clew.keep.keeper import Keeper
from clew.observe.dataloader import WorkerPlan
from clew.observe.tap_source import TapSource
from clew.observe.variables.captured import VariableSource
from clew.observe.variables.selector import watched_names
from clew.observe.variables.user_code import Scope
from clew.observe.variables.watched import WatchSource
from clew.observe.variables.watched_calls import WatchOptions
from clew.record.encoder import Encoder, Surroundings
from clew.record.gaps import WorkerGaps
from clew.record.recorder import Recorder
from clew.record.steps import Steps
from clew.request.interest import Interest
from clew.request.ledger import Ledger
from clew.request.limits import Limits
from clew.session.batching import Direct
from clew.session.environment import source_text
from clew.store.write.worker_file import WorkerFile
from clew.stream.worker_faults import write_fault


def worker_surroundings(recorder: Recorder) -> Surroundings:
    """Return what the recording of a worker knows besides its records; its parent has the rest."""
    threads = list(recorder.threads.names)
    return Surroundings([], [], threads, [], lambda step: {}, [], source_text, {})


def begin(plan: WorkerPlan, folder: Path, worker: str) -> tuple[WorkerFile, Recorder]:
    """Record in a worker of a DataLoader: taps, and the variables that the parent asks for."""
    gaps = WorkerGaps(functools.partial(write_fault, folder, worker))
    budget = Budget(Limits(), gaps.add)
    file = WorkerFile(folder, worker)
    encoder = Encoder(lambda: worker_surroundings(recorder))
    recorder = Recorder(Direct(encoder, file), time.perf_counter_ns, TensorTable, budget, gaps)
    interest = Interest()
    recorder.values.keep(
        lambda: Keeper("meta", interest, budget, gaps.add, recorder.values.kept), every=False
    )
    functions = [a for a in map(parse, plan.capture) if a.kind == "function"]
    named = Named(recorder, interest, Steps(), lambda: None, gaps.add)
    sources: list[Any] = [TapSource(recorder, named, gaps.add)]
    watched, captured = watched_names(plan.watch or ()), Ledger(functions)
    if functions:
        sources.append(VariableSource(recorder, functions, named, captured, gaps.add))
    if plan.watch is not None:
        values = "stats" if plan.values == "meta" else plan.values
        options = WatchOptions(watched, values, on_change=plan.on_change)
        sources.append(WatchSource(recorder, options, Scope(plan.scope), everywhere=True))
    file.met = lambda: watched.ledger.came | captured.came
    for source in sources:
        source.start()
    return file, recorder

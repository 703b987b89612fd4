"""The recording of a DataLoader's worker: what its parent asks for, handed back through a file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clew.address import parse
from clew.callbacks import reducer
from clew.events.settings import Limits
from clew.session.batching import Direct
from clew.session.surroundings import source_text
from clew.store.write.worker_file import WorkerFile

if TYPE_CHECKING:
    from clew.capture.encoder import Surroundings
    from clew.capture.recorder import Recorder
    from clew.capture.workers import WorkerPlan


def worker_surroundings(recorder: Recorder) -> Surroundings:
    """What the recording of a worker knows besides its records; the rest is its parent's."""
    from clew.capture.encoder import Surroundings

    threads = list(recorder.lanes.names)
    return Surroundings([], [], threads, [], lambda step: {}, [], source_text, {})


def begin_worker(plan: WorkerPlan, folder: Path, worker: str) -> tuple[WorkerFile, Recorder]:
    """Record in a worker of a DataLoader: taps, and the variables that the parent asks for."""
    from clew.capture.encoder import Encoder
    from clew.capture.gaps import UnreadGaps
    from clew.capture.named import Named, TapSource
    from clew.capture.recorder import Recorder
    from clew.capture.scope import Scope
    from clew.capture.steps import Steps
    from clew.capture.variables import VariableSource
    from clew.capture.watched_variables import Wants
    from clew.capture.watching import WatchSource
    from clew.capture.wishes import Wishes
    from clew.keep.budget import Budget
    from clew.keep.identity import TensorTable
    from clew.keep.keeper import Keeper

    gaps = UnreadGaps()
    budget = Budget(Limits(), gaps.add)
    file = WorkerFile(folder, worker)
    encoder = Encoder(lambda: worker_surroundings(recorder))
    recorder = Recorder(Direct(encoder, file), time.perf_counter_ns, TensorTable, budget, gaps)
    recorder.values.keep(Keeper("meta", [], budget, gaps.add, recorder.values.kept), every=False)
    functions = [a for a in map(parse, plan.capture) if a.kind == "function"]
    named = Named(recorder, [], Steps(), lambda: None, gaps.add)
    sources: list[Any] = [TapSource(recorder, named, reducer, [], gaps.add)]
    variables, wishes = None, Wishes(plan.watch or ())
    if functions:
        variables = VariableSource(recorder, functions, named, gaps.add)
        sources.append(variables)
    if plan.watch is not None:
        values = "stats" if plan.values == "meta" else plan.values
        wants = Wants(wishes, values, on_change=plan.on_change)
        sources.append(WatchSource(recorder, wants, Scope(plan.scope), everywhere=True))
    file.met = lambda: wishes.matched if variables is None else wishes.matched | variables.met
    for source in sources:
        source.start()
    return file, recorder

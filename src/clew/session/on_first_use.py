"""The parts of a recording that most traces have no use for, each loaded when it is first used.

Comes in: a name. Goes out: what has it, from its module. Many traces are never read, written to a
folder or ended by a crash; to load what that needs would take longer than to record them. Files
that are loaded without torch, to say that it is missing, name here what needs it.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

from clew.lazy_names import lazy_names

if TYPE_CHECKING:
    from clew.analysis.failures import failing_event as failing_event
    from clew.analysis.guard_alarm import GuardRule as GuardRule
    from clew.analysis.guard_alarm import first_alarm as first_alarm
    from clew.analysis.half_range import range_warnings as range_warnings
    from clew.analysis.nonfinite import nonfinite_of as nonfinite_of
    from clew.callbacks.gather import Gather as Gather
    from clew.callbacks.isolation import undisturbed as undisturbed
    from clew.keep.keeper import Keeper as Keeper
    from clew.keep.keeper import numbers as numbers
    from clew.keep.native_values import NativeTensors as NativeTensors
    from clew.native.loading import loaded as loaded
    from clew.observe.gradients import GradSource as GradSource
    from clew.observe.guard_places import GuardPlaces as GuardPlaces
    from clew.observe.guard_places import all_finite as all_finite
    from clew.observe.native_asked import AskedOps as AskedOps
    from clew.observe.native_ops import NativeOps as NativeOps
    from clew.observe.variables.captured import VariableSource as VariableSource
    from clew.observe.variables.frames.functions import missing as missing
    from clew.record.live_feed import LiveFeed as LiveFeed
    from clew.record.native_rows import NativeNumbers as NativeNumbers
    from clew.run.writing import LiveEventRows as LiveEventRows
    from clew.session.flight_next_step import NextStep as NextStep
    from clew.session.flight_watch import FlightWatch as FlightWatch
    from clew.session.live_crash import LiveCrash as LiveCrash
    from clew.session.memory_trace import MemoryTrace as MemoryTrace
    from clew.session.memory_trace import empty_run as empty_run
    from clew.session.memory_trace import encoder_of as encoder_of
    from clew.session.memory_trace import run_with_gaps as run_with_gaps
    from clew.session.memory_trace import surroundings_of as surroundings_of
    from clew.session.rank_mail import SampleMail as SampleMail
    from clew.session.session import Session as Session
    from clew.session.watch_source import watch_source as watch_source
    from clew.store.format.payload_numpy import decode as decode
    from clew.store.read.worker_files import WorkerFiles as WorkerFiles
    from clew.store.storage import is_url as is_url
    from clew.store.write.claim import claim as claim
    from clew.store.write.disk_sink import DiskSink as DiskSink
    from clew.store.write.remote_sink import RemoteSink as RemoteSink
    from clew.torch_compat import compiled_graph_count as compiled_graph_count
    from clew.views.text.live import LivePrinter as LivePrinter
    from clew.views.text.nonfinite_report import nonfinite_report as nonfinite_report

_HOMES = {
    "clew.analysis.failures": ("failing_event",),
    "clew.analysis.guard_alarm": ("GuardRule", "first_alarm"),
    "clew.analysis.half_range": ("range_warnings",),
    "clew.analysis.nonfinite": ("nonfinite_of",),
    "clew.callbacks.gather": ("Gather",),
    "clew.callbacks.isolation": ("undisturbed",),
    "clew.keep.keeper": ("Keeper", "numbers"),
    "clew.keep.native_values": ("NativeTensors",),
    "clew.native.loading": ("loaded",),
    "clew.observe.gradients": ("GradSource",),
    "clew.observe.guard_places": ("GuardPlaces", "all_finite"),
    "clew.observe.native_asked": ("AskedOps",),
    "clew.observe.native_ops": ("NativeOps",),
    "clew.observe.variables.captured": ("VariableSource",),
    "clew.observe.variables.frames.functions": ("missing",),
    "clew.record.live_feed": ("LiveFeed",),
    "clew.record.native_rows": ("NativeNumbers",),
    "clew.run.writing": ("LiveEventRows",),
    "clew.session.flight_next_step": ("NextStep",),
    "clew.session.flight_watch": ("FlightWatch",),
    "clew.session.live_crash": ("LiveCrash",),
    "clew.session.memory_trace": (
        "MemoryTrace",
        "empty_run",
        "encoder_of",
        "run_with_gaps",
        "surroundings_of",
    ),
    "clew.session.rank_mail": ("SampleMail",),
    "clew.session.session": ("Session",),
    "clew.session.watch_source": ("watch_source",),
    "clew.store.format.payload_numpy": ("decode",),
    "clew.store.read.worker_files": ("WorkerFiles",),
    "clew.store.storage": ("is_url",),
    "clew.store.write.claim": ("claim",),
    "clew.store.write.disk_sink": ("DiskSink",),
    "clew.store.write.remote_sink": ("RemoteSink",),
    "clew.torch_compat": ("compiled_graph_count",),
    "clew.views.text.live": ("LivePrinter",),
    "clew.views.text.nonfinite_report": ("nonfinite_report",),
}

_found = lazy_names(globals(), {name: home for home, names in _HOMES.items() for name in names})


def __getattr__(name: str) -> Any:
    # To load modules makes no garbage, but hundreds of objects: they would set off a full
    # collection, which takes a tenth of a second once torch is imported.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return _found(name)
    finally:
        if was_enabled:
            gc.enable()

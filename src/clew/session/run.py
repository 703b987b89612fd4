"""One recording from first start to last stop: sources on one side, store on the other.

The one place that joins capture and store.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from clew.address import Address, compile_pattern, nearest, parse
from clew.analysis.crash import crash_note, failing_event
from clew.callbacks import Callbacks, reducer
from clew.events.columns import Columns, ModuleRow, Place
from clew.events.model import Gap
from clew.events.outputs import Hdf5
from clew.events.records import Sink, Step
from clew.events.settings import Limits
from clew.session.settings import ROLES_BEYOND_CALLS, TENSOR_ROLES, Settings
from clew.session.surroundings import (
    add_note,
    module_rows,
    rank_and_size,
    recorded_columns,
    source_text,
    surroundings,
    warn,
)
from clew.store.memory import MemoryStore
from clew.store.reader import Reader
from clew.store.remote import is_url

if TYPE_CHECKING:
    from torch import nn

    from clew.capture.names import ModuleName
    from clew.capture.recording import Lane, Recording
    from clew.capture.variables import VariableSource
    from clew.capture.watching import WatchSource
    from clew.capture.workers import WorkerPlan
    from clew.store.disk import DiskStore, Surroundings
    from clew.views.export.hdf5_store import Hdf5Store


_log = logging.getLogger("clew")


class Source(Protocol):
    """Something that makes events while it is switched on."""

    def start(self) -> None: ...
    def stop(self) -> None: ...


class Session:
    """One recording from first start to last stop: sources on one side, store on the other."""

    def __init__(self, models: dict[str, nn.Module], settings: Settings) -> None:
        from clew.capture.budget import Budget
        from clew.capture.gather import Gather
        from clew.capture.grads import GradSource
        from clew.capture.live import LiveFeed
        from clew.capture.named import Named, TapSource, Treated
        from clew.capture.recording import Recording
        from clew.capture.steps import Steps
        from clew.capture.tensors import TensorTable
        from clew.capture.torch_compat import is_compiling
        from clew.capture.values import Keeper
        from clew.capture.variables import VariableSource
        from clew.capture.workers import LoaderSource, WorkerPlan
        from clew.store.decode import decode

        self._settings = settings
        self._roots = {path: type(model).__name__ for path, model in models.items()}
        self._sees_ops = settings.level == "ops"
        self._clock = time.perf_counter_ns()
        self._time = time.time()
        self._steps = Steps()
        self._rank, self._size = rank_and_size()
        self._reader: Reader | None = None
        self._gaps: dict[tuple[str, str], Gap] = {}
        self._faulted = False
        self._modes: dict[int, Any] = {}
        self._sources: list[Source] = []
        self._running = False
        self._paused = False
        self._undo: list[Callable[[], None]] = []
        self._main = 0
        self._error: BaseException | None = None
        self.crash_text: str | None = None
        self.store: MemoryStore | Hdf5Store = MemoryStore()
        self.disk: DiskStore | None = None
        # Whatever has a thread that writes: `disk`, or an HDF5 file that `store` has.
        self._writer: DiskStore | None = None
        sink: Sink = self.store
        if isinstance(settings.out, Hdf5):
            sink = self.store = self._writer = self._open_hdf5(settings.out, settings.exist)
        elif settings.out is not None:
            sink = self.disk = self._writer = self._open_disk(settings.out, settings.exist)
        most_events = math.inf if settings.limits.events is None else settings.limits.events
        budget = Budget(settings.limits, self._gap)
        self.recording = Recording(sink, time.perf_counter_ns, TensorTable, budget, most_events)
        self.recording.on_halt = self._halted
        self.recording.on_fault = self._fault
        self._given: dict[str, list[ModuleName]] = {}
        names = self.recording.modules.names
        for path, model in models.items():
            known = len(names)
            self.recording.modules.register(model, path)
            self._given[path] = names[known:]
        if settings.live is not None:
            feed = LiveFeed(self.recording, settings.live)
            self.recording.listen(feed.entered, feed.ended)
        # Without a model it shows only as it runs what is a module and what a variable.
        kept = [a for a in settings.capture if a.text not in settings.followed]
        calls = [a for a in kept if not models or not self._may_be_variable(a)]
        keeper = Keeper(settings.values, calls, budget, self._gap, self.recording.kept)
        treated = [Treated(a, how, records=True) for a, how in settings.followed.values()]
        if settings.gather is not None:
            treated += [Treated(a, Callbacks(), records=False) for a in kept]
        named = self._named = Named(self.recording, treated, self._steps, self._training, self._gap)
        self._gather = Gather(
            self.recording, settings.gather, self._steps, named.treatment_of, decode, self._gap,
            self._trouble, named.only,
        )  # fmt: skip
        named.collect = self._gather.collect
        if named.calls or named.ops:
            self.recording.calls = named
        every = settings.values != "meta" or keeper.is_asked or bool(named.ops)
        self.recording.keep(keeper, every=every)
        self._matchers: list[Any] = [keeper, named]
        asked = settings.addresses
        if any(address.role in ROLES_BEYOND_CALLS for address in asked):
            grads = self.recording.grads = GradSource(self.recording, asked, named, self._gap)
            self._matchers.append(grads)
        self._variables: VariableSource | None = None
        variables = [address for address in asked if self._may_be_variable(address)]
        if variables:
            self._variables = VariableSource(
                self.recording, variables, named, self._gap, is_compiling
            )
            self._matchers.append(self._variables)
        self._taps = TapSource(self.recording, named, reducer, asked, self._gap)
        self._matchers.append(self._taps)
        self._watch = self._watch_source() if settings.watch else None
        self._workers = LoaderSource(
            self.recording,
            WorkerPlan(
                capture=tuple(address.text for address in asked),
                watch=settings.watch or None,
                values=settings.values,
            ),
            begin_worker,
            self._gap,
        )

    def _watch_source(self) -> WatchSource:
        """Follows variables by name; told with the rest of what is live."""
        from clew.capture.frames import monitoring, tracing
        from clew.capture.scope import Scope
        from clew.capture.torch_compat import keep_from_dynamo
        from clew.capture.watching import Wants, WatchSource
        from clew.capture.wishes import Wishes

        keep_from_dynamo((monitoring, tracing))
        kept = "full" if self._settings.values == "full" else "stats"
        wants = Wants(Wishes(self._settings.watch), kept)
        tell = None
        if self._settings.live:
            from clew.watch_output import output_for

            output = output_for(None, 3, False)
            tell = None if output is None else output.tell
        return WatchSource(self.recording, wants, Scope(), tell, self._gap, everywhere=True)

    def _may_be_variable(self, address: Address) -> bool:
        """Whether an address may name a variable: it does if no module has its name."""
        if address.kind == "function":
            return True
        if address.kind != "path" or address.role is not None:
            return False
        named = compile_pattern(address.path)
        return not any(named(name.path) for name in self.recording.modules.names)

    def start(self, frame: FrameType | None, nested: bool) -> None:
        """Install everything."""
        from clew.capture.compiled import CompiledSource
        from clew.capture.modules import ModuleSource
        from clew.capture.sources import boundary_of
        from clew.capture.torch_compat import on_swap

        recording = self.recording
        if nested:
            self._gap(Gap("nested trace", "", "another trace was already recording",
                          "its times include the cost of this one"))  # fmt: skip
        self._reader = None
        self._main = threading.get_ident()
        lane = recording.lane(boundary_of(frame))
        modules = ModuleSource(recording, self._sees_ops, self._on_thread, self._on_idle)
        compiled = CompiledSource(recording, self._settings.compiled, self._gap)
        self._sources = [modules, self._taps, self._workers]
        if recording.grads is not None:
            self._sources.insert(0, recording.grads)
        if self._variables is not None:
            self._sources.insert(0, self._variables)
        if self._watch is not None:
            # Last in, first out: nothing of the other sources is followed.
            self._sources.append(self._watch)
        self._undo = [on_swap(recording.tensors.forget), compiled.stop, self._stop_sources]
        compiled.start()
        self._start_sources()
        self._push_mode(lane)
        self._paused = False
        self._follow_schedule()

    def stop(self) -> None:
        """Take everything away and hand over the rest."""
        if self._writer is None:
            # torch.distributed may have come up since the start, and may be gone afterwards.
            self._rank, self._size = rank_and_size((self._rank, self._size))
        lane = self.recording.lanes.get(self._main)
        if lane is not None:
            self._pop_mode(lane)
        for undo in reversed(self._undo):
            undo()
        self._undo = []
        self._workers.close()
        try:
            self._gather.finish(crashed=self.crash_text is not None)
        except Exception as fault:
            self._fault(fault, "gathered values")
        self.recording.close()
        self._reader = None
        self._check_anything_ran()
        self._check_models_ran()
        self._named.tell_missing()
        self._check_captured()
        if self._watch is not None:
            self._watch.say_missed()
        if self._writer is not None:
            self._writer.close()

    @property
    def is_recording(self) -> bool:
        """Whether events are recorded now: started, and not between two steps of a schedule."""
        return bool(self._undo) and not self._paused and not self.recording.halted

    def failed_to_start(self, fault: BaseException) -> None:
        """Undo what was installed and say so; the program runs on, unrecorded."""
        self._fault(fault, "anything")
        for undo in reversed(self._undo):
            undo()
        self._undo = []

    def abandon(self) -> None:
        """Stop in a process that inherited the recording by a fork."""
        self.recording.halt()
        if self._writer is not None:
            self._writer.abandon()
        for undo in reversed(self._undo):
            undo()
        self._undo = []

    def forked(self) -> None:
        """Say that another process runs unseen; workers of a DataLoader tell what they do."""
        if self._workers.is_starting:
            return
        self._gap(
            Gap(
                "a forked process",
                "",
                "what runs in it is not recorded",
                "open a clew.trace in the process",
            )
        )

    def step(self) -> int:
        """Begin the next step."""
        if self.recording.grads is not None and not self._paused:
            self.recording.grads.look_around()
        self._workers.merge()
        number = self._steps.begin()
        self._gather.stepped()
        self._follow_schedule()
        if not self._paused:
            self.recording.mark(Step(number))
        if self._writer is not None:
            self.recording.drain()
        return number

    def _follow_schedule(self) -> None:
        """Take the sources away for steps that are not recorded, and bring them back."""
        schedule = self._settings.schedule
        pause = schedule is not None and not schedule(self._steps.number)
        if pause == self._paused:
            return
        self._paused = pause
        lane = self.recording.lane()
        if pause:
            self._stop_sources()
            self._pop_mode(lane)
        else:
            self._start_sources()
            self._push_mode(lane)

    def _start_sources(self) -> None:
        self._running = True
        for source in self._sources:
            source.start()

    def _stop_sources(self) -> None:
        if self._running:
            self._running = False
            for source in reversed(self._sources):
                source.stop()

    def _halted(self) -> None:
        self._gap(
            Gap(
                "events",
                "",
                f"the limit of {self._settings.limits.events} events was reached",
                "raise it with clew.trace(limits=Limits(events=...))",
            )
        )

    def flush(self) -> None:
        """Make everything so far readable."""
        if self._undo:
            self._workers.merge()
            self.recording.drain()
            self._reader = None
            if self._writer is not None:
                self._writer.flush()

    def crashed(self, error: BaseException) -> None:
        """Record the exception that ends the block, and tell the user where it came from."""
        try:
            self.crash_text = self.recording.crashed(error)
            self.flush()
            event = failing_event(self.reader())
            add_note(error, crash_note(event, self.crash_text))
        except Exception as fault:
            self._fault(fault, "the exception that ended the block")

    def reader(self) -> Reader:
        """A reader of everything so far."""
        self.flush()
        if self._reader is None:
            if self.disk is not None:
                columns = self.disk.read()
                # What went wrong since, the writing itself too, is not in the files.
                columns.gaps += [g for g in self._gaps.values() if g not in columns.gaps]
                self._reader = Reader(columns)
            else:
                self._reader = Reader(self._columns())
        return self._reader

    def _open_disk(self, out: str | os.PathLike[str], exist: str) -> DiskStore:
        from clew.store.disk import DiskStore
        from clew.store.save import claim

        if isinstance(out, str) and is_url(out):
            from clew.store.remote_store import RemoteStore, claim_remote

            place = claim_remote(out, self._rank, exist, self._environment(), self._size)
            return RemoteStore(*place, self._rank, self._around, self._trouble)
        folder = claim(Path(out), self._rank, exist, self._environment(), self._size)
        return DiskStore(folder, self._rank, self._around, self._trouble)

    def _open_hdf5(self, out: Hdf5, exist: str) -> Hdf5Store:
        from clew.views.export.hdf5_store import open_hdf5

        environment = self._environment()
        return open_hdf5(out, self._rank, exist, environment, self._around, self._trouble)

    @property
    def path(self) -> Path | str | None:
        """What is written to."""
        return None if self._writer is None else self._writer.place

    def _around(self, nodes: list[Any]) -> Surroundings:
        from clew.store.disk import Surroundings

        recording = self.recording
        return Surroundings(
            self._places(nodes),
            self._module_rows(),
            list(recording.modules.parameters),
            list(recording.thread_names),
            dict(self._steps.modes),
            list(self._gaps.values()),
            (lambda file: None) if self._settings.redact else source_text,
            self._environment(),
        )

    def _places(self, nodes: list[Any]) -> list[Place]:
        from clew.capture.sources import places_of

        return places_of(nodes)

    def _module_rows(self) -> list[ModuleRow]:
        return module_rows(self.recording)

    def _columns(self) -> Columns:
        return recorded_columns(
            self.store, self.recording, self._steps.modes, self._gaps.values(),
            self._environment(), self._settings.redact, self._rank,
        )  # fmt: skip

    def _environment(self) -> dict[str, Any]:
        return {
            **surroundings(self._settings.name, self._clock, self._time),
            "level": self._settings.level,
            "values": self._settings.values,
            "crash": self.crash_text,
        }

    def _push_mode(self, lane: Lane) -> None:
        if self._sees_ops:
            from clew.capture.ops import OpMode

            mode = self._modes[lane.ident] = OpMode(self.recording, lane)
            mode.start()

    def _pop_mode(self, lane: Lane) -> None:
        mode = self._modes.pop(lane.ident, None)
        if mode is not None:
            if mode.stop():
                mode.release()
            else:
                # On another thread than the one it was started on: all that can be done from
                # here is to let ops pass.
                lane.mute = True

    def _on_thread(self, lane: Lane) -> None:
        """A module runs on a thread that the trace was not started on."""
        if lane.ident not in self._modes:
            self._push_mode(lane)

    def _on_idle(self, lane: Lane, module: nn.Module) -> None:
        """The outermost module call of a thread is over: leave no mode behind on it."""
        if not self._steps.is_settled:
            root = self._root()
            self._steps.settle((module if root is None else root).training)
        if lane.ident != self._main:
            self._pop_mode(lane)
            if self._sees_ops:
                self._gap(
                    Gap(
                        "ops outside module calls",
                        f"thread {lane.name}",
                        "ops are recorded on the thread that opened the trace; elsewhere only "
                        "inside module calls",
                        "open a clew.trace inside that thread",
                    )
                )

    def _root(self) -> nn.Module | None:
        """The model whose names are used, which says what kind of step one is."""
        given = next(iter(self._given.values()), None)
        return None if not given else given[0].entry.ref()

    def _training(self) -> bool | None:
        """Whether this is a train step, as far as that can be told while a model runs."""
        if self._steps.is_settled:
            return None
        root = self._root()
        running = self.recording.lane().outermost
        root = running if root is None else root
        if root is not None and running is not None:
            self._steps.settle(root.training)
        return None if root is None else root.training

    def _check_anything_ran(self) -> None:
        if not self._roots and self.recording.is_empty() and self._settings.schedule is None:
            gap = Gap("events", "", "nothing ran inside the trace that torch would show",
                      "run the model or the ops inside the block, on this thread")  # fmt: skip
            if self._gap(gap):
                warn(str(gap))

    def _check_captured(self) -> None:
        modules = self.recording.modules
        called = [name.path for name in modules.names if name.entry.calls]
        owned = [path for path, _ in modules.tensors()]
        matched = {text for source in self._matchers for text in source.matched}
        for address in self._settings.addresses:
            if address.text not in matched:
                among = owned if address.role in TENSOR_ROLES else called
                if self._variables is not None:
                    among = [*among, *self._variables.candidates(address)]
                close = ", ".join(nearest(address.path, among)) or "none"
                self._gap(Gap("an address to capture", address.text, "nothing that ran matches it",
                              f"the nearest that ran: {close}"))  # fmt: skip

    def _check_models_ran(self) -> None:
        names = self.recording.modules.names
        for path, cls in self._roots.items():
            ran = sorted({name.path for name in names if name.entry.calls})
            # By path, as a wrapper that was made before the trace has the name of what it wraps.
            if {name.path for name in self._given[path]} & set(ran):
                continue
            listed = ", ".join(ran[:5]) or "no module at all"
            gap = Gap(
                f"model {path or cls!r}",
                "",
                f"it never ran inside the trace; what ran: {listed}",
                "call this model object inside the block, or trace the one that runs",
            )
            if self._gap(gap):
                warn(str(gap))

    def _gap(self, gap: Gap) -> bool:
        new = (gap.what, gap.where) not in self._gaps
        self._gaps.setdefault((gap.what, gap.where), gap)
        self._reader = None
        return new

    def _trouble(self, gap: Gap) -> None:
        if self._gap(gap):
            warn(str(gap))

    def _fault(self, fault: BaseException, where: str) -> None:
        """A failure of Clew's own: said once, noted, never raised."""
        text = f"{type(fault).__name__}: {fault}"
        self._gap(
            Gap("an event", where, f"Clew failed while recording it ({text})", "please report it")
        )
        if not self._faulted:
            self._faulted = True
            _log.debug("a fault while recording %s", where, exc_info=fault)
            warn(f"Clew could not record {where}: {text}; the program goes on")


def begin_worker(plan: WorkerPlan, sink: Sink) -> Recording:
    """Record in a worker of a DataLoader: taps, and the variables that the parent asks for."""
    from clew.capture.budget import Budget
    from clew.capture.named import Named, TapSource
    from clew.capture.recording import Recording
    from clew.capture.scope import Scope
    from clew.capture.steps import Steps
    from clew.capture.tensors import TensorTable
    from clew.capture.values import Keeper
    from clew.capture.variables import VariableSource
    from clew.capture.watching import Wants, WatchSource
    from clew.capture.wishes import Wishes

    def ignore(gap: Gap) -> bool:
        return False  # the parent tells what is not recorded in workers

    budget = Budget(Limits(), ignore)
    recording = Recording(sink, time.perf_counter_ns, TensorTable, budget)
    recording.keep(Keeper("meta", [], budget, ignore, recording.kept), every=False)
    functions = [a for a in map(parse, plan.capture) if a.kind == "function"]
    named = Named(recording, [], Steps(), lambda: None, ignore)
    sources: list[Source] = [TapSource(recording, named, reducer, [], ignore)]
    if functions:
        sources.append(VariableSource(recording, functions, named, ignore))
    if plan.watch is not None:
        values = "stats" if plan.values == "meta" else plan.values
        wants = Wants(Wishes(plan.watch), values, on_change=plan.on_change)
        sources.append(WatchSource(recording, wants, Scope(plan.scope), everywhere=True))
    for source in sources:
        source.start()
    return recording

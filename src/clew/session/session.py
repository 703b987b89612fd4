"""One recording from first start to last stop: sources on one side, store on the other.

The one place that joins capture and store.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from clew.analysis.crash import crash_note, failing_event
from clew.errors import ClewError, warn
from clew.events.columns import Columns
from clew.events.live import Listener
from clew.events.model import Gap
from clew.record.gaps import Gaps
from clew.request.request import Request
from clew.run.live_derived import LiveDerived
from clew.run.run import Run, run_of
from clew.run.writing import LiveEventRows
from clew.session.assembly import Assembly
from clew.session.batching import Deferred, Unkept, WriterThread
from clew.session.surroundings import (
    module_rows,
    rank_and_size,
    source_text,
    surroundings,
)
from clew.session.unmatched import Unmatched
from clew.store.storage import is_url
from clew.store.write.memory_ring import MemoryRing
from clew.store.write.memory_sink import MemoryStore
from clew.stream.batch import Observer
from clew.stream.records import Step
from clew.stream.redact import redacted_gap
from clew.stream.ring import ring_piece

if TYPE_CHECKING:
    from torch import nn

    from clew.record.encoder import Encoder, Surroundings
    from clew.record.module_registry import ModuleName
    from clew.record.recorder import Recorder
    from clew.record.thread_state import Lane
    from clew.store.write.disk_sink import DiskSink


_EXPORTED = Gap(
    "what runs while a program is exported",
    "",
    "what records it would become part of the program, or keep it from being made",
    "run the model itself inside the block, or what was exported",
)
_NOTHING_KEPT = Gap(
    "events",
    "",
    "out=False keeps none of them",
    "leave out= away to keep them in memory, or name a folder",
)

# Templates at hand to be used again while a trace is written: those with a number that changes at
# each step never are.
_TEMPLATES = 1024


class Session:
    """One recording from first start to last stop: sources on one side, store on the other."""

    def __init__(self, models: dict[str, nn.Module], request: Request) -> None:
        from clew.keep.budget import Budget
        from clew.observe.automatic_steps import AutomaticSteps
        from clew.record.live_feed import LiveFeed
        from clew.record.steps import Steps

        self._rank, self._size = rank_and_size()
        self._request = request = request.on_rank(self._rank)
        self._sees_ops = request.level == "ops"
        self._clock = time.perf_counter_ns()
        self._time = time.time()
        self._steps = Steps()
        # When the step that runs began, and threads with a call open that began before.
        self._step_began = 0
        self._straddling: set[int] = set()
        self.gaps = Gaps()
        self._run: Run | None = None
        self._identity = object()
        last = request.limits.last
        self._derived = LiveDerived(forgets=last is not None)
        self._gaps_read = 0
        self._modes: dict[int, Any] = {}
        self._sources: list[Observer] = []
        # Whether the sources run, and whether they ever did.
        self._running = False
        self._has_run = False
        self._paused = False
        self._process = os.getpid()
        self._abandoned = False
        # The thread that exports a program now, which is not recorded.
        self._exports_on: Lane | None = None
        self._undo: list[Callable[[], None]] = []
        self._main = 0
        self.crash_text: str | None = None
        self._budget = Budget(request.limits, self.gaps.add)
        self._memory: MemoryStore | MemoryRing = (
            MemoryStore()
            if last is None
            else MemoryRing(last, self._derived.of, self._budget.give_back)
        )
        self.disk: DiskSink | None = None
        self._automatic = AutomaticSteps(self._begin_step, self._root, self.gaps.fault)
        self.recorder = self._begin_recorder()
        self._given = self._register(models)
        if request.live is not False:
            self.recorder.listen(LiveFeed(self.recorder, _listener(request.live)))
        self._assembly = Assembly(
            self.recorder, request, bool(models), self._steps, self._training, self.gaps
        )
        self._unmatched = Unmatched(self.recorder, self._assembly, self._given, self.gaps)

    def _begin_recorder(self) -> Recorder:
        from clew.keep.identity import TensorTable
        from clew.record.encoder import Encoder
        from clew.record.recorder import Recorder

        request, limits = self._request, self._request.limits
        grows = request.out is None and limits.last is None
        templates = math.inf if grows else _TEMPLATES
        encoder = Encoder(self._around, request.redact, templates)
        self._writer = self._open_writer(encoder)
        unkept = request.out is False
        self._deferred = (
            Unkept(encoder, self._memory) if unkept else Deferred(encoder, self._memory)
        )
        most_events = math.inf if limits.events is None else limits.events
        piece = math.inf if limits.last is None else ring_piece(limits.last)
        if self._writer is not None:
            self._budget.is_behind = self._writer.is_behind
        return Recorder(
            self._writer or self._deferred, time.perf_counter_ns, TensorTable, self._budget,
            self.gaps, most_events, Unkept.BATCH if unkept else piece,
            keeps_calls=request.level != "values", on_halt=self._halted,
            on_direct=self._on_direct,
        )  # fmt: skip

    def _register(self, models: dict[str, nn.Module]) -> dict[str, tuple[str, list[ModuleName]]]:
        """The class of each model and the names in it, by its path."""
        given = {}
        modules = self.recorder.modules
        for path, model in models.items():
            known = len(modules.names)
            modules.register(model, path)
            given[path] = (type(model).__name__, modules.names[known:])
        return given

    def start(self, frame: FrameType | None, nested: bool) -> None:
        """Install everything."""
        from clew.observe.compiled import CompiledSource
        from clew.observe.modules import ModuleSource
        from clew.observe.optimizers import OptimizerSource
        from clew.observe.other_threads import ThreadSource
        from clew.record.stacks import boundary_of
        from clew.torch_compat import on_export, on_swap

        recorder = self.recorder
        if nested:
            self.gaps.add(Gap("nested trace", "", "another trace was already recording",
                          "its times include the cost of this one"))  # fmt: skip
        self._run = None
        self._main = threading.get_ident()
        lane = recorder.lanes.of_thread(boundary_of(frame))
        assembly = self._assembly
        modules = ModuleSource(
            recorder, self._sees_ops, self._on_thread, self._on_idle, self._on_outermost,
            assembly.grads, assembly.called,
        )  # fmt: skip
        compiled = CompiledSource(
            recorder, self._request.compiled, self.gaps.add, assembly.variables is not None
        )
        self._sources = [OptimizerSource(recorder), *self._assembly.observers(modules)]
        if self._sees_ops:
            self._sources.append(ThreadSource(recorder, self.gaps.add))
        self._undo = [
            on_swap(recorder.values.tensors.forget), compiled.stop, self._stop_sources,
            self._automatic.stop,
            on_export(self._exporting),
        ]  # fmt: skip
        self._assembly.gather.begin()
        compiled.start()
        self._automatic.start(modules.enter)
        self._paused = self._is_left_out(self._steps.number)
        if self._paused:
            self._automatic.skip(True)
        else:
            self._start_sources()
            self._push_mode(lane)

    def stop(self) -> None:
        """Take everything away and hand over the rest."""
        assembly, crashed = self._assembly, self.crash_text is not None
        with contextlib.ExitStack() as rest:  # an interrupt ends one part, not the others
            if self._writer is not None:
                rest.callback(self._try, self._writer.close, "the last events")
            rest.callback(self._try, self._say_missed, "what was asked for and never came")
            rest.callback(self._try, self._close_recording, "the last events")
            rest.callback(self._try, lambda: assembly.gather.finish(crashed), "gathered values")
            rest.callback(self._try, assembly.workers.close, "the events of workers")
            rest.callback(self._uninstall)
            for lane in self.recorder.lanes:
                self._pop_mode(lane)
            if self.disk is None:
                # torch.distributed may have come up since the start, and may be gone afterwards.
                self._rank, self._size = rank_and_size((self._rank, self._size))

    def _close_recording(self) -> None:
        self.recorder.close()
        self._run = None

    def _uninstall(self) -> None:
        """Take away all that was installed, whatever becomes of each."""
        undo, self._undo = self._undo, []
        with contextlib.ExitStack() as rest:
            for action in undo:
                rest.callback(self._try, action, "the end of the trace")

    def _try(self, action: Callable[[], object], where: str) -> None:
        """Do something the program does not know of and must not hear of if it fails."""
        try:
            action()
        except Exception as fault:
            self.gaps.fault(fault, where)

    def _say_missed(self) -> None:
        """Say what was asked for and never came."""
        from clew.torch_compat import compiled_graph_count

        if self.recorder.halted:
            return  # it may have come past the limit
        if self._paused and not self._has_run:
            self._unmatched.report_all_left_out(self._steps.number)
            return  # what was asked for may have come
        self._unmatched.report(self._request.schedule is not None, compiled_graph_count() > 0)

    def _warn_unmatched(self) -> None:
        self._unmatched.warn_after_step(self._steps.number)

    @property
    def is_recording(self) -> bool:
        """Whether events are recorded now: started, and not between two steps of a schedule."""
        return bool(self._undo) and not self._paused and not self.recorder.halted

    def failed_to_start(self, fault: BaseException) -> None:
        """Undo what was installed and say so; the program runs on, unrecorded."""
        self.gaps.fault(fault, "anything")
        self._uninstall()

    def abandon(self) -> None:
        """Stop in a process that inherited the recording by a fork: write and say nothing."""
        self._abandoned = True
        self.recorder.abandon()
        if self._writer is not None:
            self._writer.abandon()
        if self._assembly.watch is not None:
            self._try(self._assembly.watch.abandon, "the end of the trace")
        mode = self._modes.pop(threading.get_ident(), None)
        if mode is not None:
            self._try(mode.stop, "the end of the trace")
        self._uninstall()

    @property
    def is_foreign(self) -> bool:
        """Whether another process, of which this one is a fork, is the only one to record here."""
        return self._abandoned or (self.disk is not None and self._process != os.getpid())

    def forked(self) -> None:
        """Say that another process runs unseen; workers of a DataLoader tell what they do."""
        if self._assembly.workers.is_starting:
            return
        self.gaps.add(
            Gap(
                "a forked process",
                "",
                "what runs in it is not recorded",
                "open a clew.trace in the process",
            )
        )

    def step(self) -> int:
        """Begin the next step, because the program says so: no other begins by itself."""
        self._automatic.end()
        return self._begin_step()

    def _begin_step(self, hand_over: bool = True) -> int:
        if self._abandoned:
            return self._steps.begin()
        if self.recorder.halted:
            number = self._steps.begin()
            self._assembly.gather.stepped()
            return number
        if self._assembly.grads is not None and not self._paused:
            self._assembly.grads.look_around()
        self._assembly.workers.merge()
        if not self._paused:
            self._try(self._warn_unmatched, "addresses without a match")
        number = self._steps.begin()
        self._step_began = self.recorder.clock()
        self.recorder.buffer.turn[0] += 1
        lane = self.recorder.lane()
        if lane.outermost is not None:  # a wrapper, say, whose model has ended the step
            self._straddling.add(lane.ident)
        self._assembly.gather.stepped()
        if self.disk is not None and hand_over:
            self.recorder.drain()
        if not self._is_left_out(number):
            # Handed over with what is in the step, so that both fall out of a ring together; and
            # before the sources come back, which look at what is there.
            self.recorder.mark(Step(number), hand_over)
        self._follow_schedule()
        return number

    def _is_left_out(self, step: int) -> bool:
        schedule = self._request.schedule
        return schedule is not None and not schedule(step)

    def _follow_schedule(self) -> None:
        """Take the sources away for steps that are not recorded, and bring them back."""
        pause = self._is_left_out(self._steps.number)
        if pause == self._paused:
            return
        self._paused = pause
        self._automatic.skip(pause)
        lane = self.recorder.lane()
        if pause:
            self._stop_sources()
            self._pop_mode(lane)
        else:
            self._start_sources()
            self._push_mode(lane)

    def _start_sources(self) -> None:
        self._running = self._has_run = True
        for source in self._sources:
            source.start()

    def _stop_sources(self) -> None:
        if self._running:
            self._running = False
            with contextlib.ExitStack() as rest:
                for source in self._sources:
                    rest.callback(source.stop)

    def _exporting(self, begins: bool) -> None:
        """Record nothing while a program is exported: what looks on would become part of it."""
        self._automatic.exporting(begins)
        lane = self.recorder.lane()
        if begins and self._running and not lane.mute:
            self._exports_on = lane
            self.gaps.add(_EXPORTED)
            lane.mute = True
            for source in filter(self._assembly.is_inside, self._sources):
                self._try(source.stop, "what is exported")
        elif not begins and self._exports_on is not None:
            self._exports_on.mute = self.recorder.halted
            self._exports_on = None
            for source in filter(self._assembly.is_inside, self._sources):
                self._try(source.start, "what comes after an export")

    def _halted(self) -> None:
        """Take away what records: the most events there may be are there."""
        for mode in list(self._modes.values()):
            mode.retire()
        self._try(self._stop_sources, "the end of the events")
        self._automatic.skip(True)
        self.gaps.add(
            Gap(
                "events",
                "",
                f"the limit of {self._request.limits.events} events was reached",
                "raise it with clew.trace(limits=Limits(events=...))",
            )
        )

    def flush(self) -> None:
        """Make everything so far readable."""
        if self._abandoned and self.disk is None:
            self.recorder.drain()
        if self._undo:
            self._assembly.workers.merge()
            self.recorder.drain()
            self._run = None
            if self._writer is not None:
                self._writer.flush()

    def crashed(self, error: BaseException) -> None:
        """Record the exception that ends the block, and tell the user where it came from."""
        from clew.program_errors import add_note

        try:
            self.crash_text = self.recorder.crashed(error)
            self.flush()
            run = self.run()
            add_note(error, crash_note(run, failing_event(run), self.crash_text))
        except Exception as fault:
            self.gaps.fault(fault, "the exception that ended the block")

    def run(self) -> Run:
        """Give everything so far, to be read."""
        self.flush()
        if self._run is None or self._gaps_read != len(self.gaps):
            columns = self._columns()
            # What went wrong since, the writing itself too, is not in the files.
            gaps = map(redacted_gap, self.gaps) if self._request.redact else self.gaps
            columns.gaps += [gap for gap in gaps if gap not in columns.gaps]
            if self._request.out is False:
                columns.gaps.append(_NOTHING_KEPT)
            run = run_of(columns, self._identity)
            self._run, self._gaps_read = run, len(self.gaps)
        return self._run

    def rewritten(self) -> None:
        """Read the folder anew: the whole trace was saved onto it."""
        assert self.disk is not None
        self.disk.claim.check.renew()
        self._run = None

    def _open_writer(self, encoder: Encoder) -> WriterThread | None:
        """Open the trace on disk; None if there is none to be."""
        out = self._request.out
        if out is None or out is False:
            return None
        try:
            return self._open_disk(out, self._request.exist, encoder)
        except ClewError as refused:
            if not isinstance(refused.__cause__, OSError):
                raise
            why = f"{refused}; the trace is kept in memory"
            self.gaps.tell(Gap("the trace on disk", "", why, "save it, or choose another out="))
            return None

    def _open_disk(self, out: str | os.PathLike[str], exist: str, encoder: Encoder) -> WriterThread:
        from clew.store.write.claim import claim
        from clew.store.write.disk_sink import DiskSink

        claimed = claim(out, self._rank, exist, self._environment(), self._size)
        if claimed.said is not None:
            warn(claimed.said)
        ring = self._request.limits.last, self._budget.give_back
        try:
            if is_url(out):
                from clew.store.write.remote_sink import RemoteSink

                self.disk = RemoteSink(
                    claimed, self._rank, LiveEventRows(), *ring, self._tell_later
                )
            else:
                self.disk = DiskSink(claimed, self._rank, LiveEventRows(), *ring)
        except OSError as refused:
            raise ClewError(f"cannot write a trace to {claimed.storage}: {refused}") from refused
        most, where = self._request.limits.queue, str(claimed.folder)
        return WriterThread(encoder, self.disk, most, where, self.gaps.tell)

    def _tell_later(self, gap: Gap) -> None:
        assert self._writer is not None
        self._writer.tell_later(gap)

    @property
    def path(self) -> Path | str | None:
        """What is written to."""
        return None if self.disk is None else self.disk.place

    def _around(self) -> Surroundings:
        from clew.record.encoder import Surroundings

        recorder = self.recorder
        return Surroundings(
            module_rows(recorder),
            list(recorder.modules.parameters),
            list(recorder.lanes.names),
            list(recorder.values.tensors.generator_names),
            self._steps.modes.after,
            list(self.gaps),
            source_text,
            self._environment(),
        )

    def _columns(self) -> Columns:
        if self.disk is not None:
            return self.disk.read()
        self._deferred.settle()
        columns = self._memory.read(self._rank)
        columns.derived = self._derived.of(columns)
        return columns

    def _environment(self) -> dict[str, Any]:
        return {
            **surroundings(self._request.name, self._clock, self._time),
            "level": self._request.level,
            "values": self._request.values,
            "steps": self._automatic.rule,
            "crash": self.crash_text,
        }

    def _push_mode(self, lane: Lane) -> None:
        lane.followed = True
        if self._sees_ops:
            from clew.observe.dispatch import OpMode

            mode = self._modes[lane.ident] = OpMode(self.recorder, lane, self._assembly.called)
            mode.start()

    def _pop_mode(self, lane: Lane) -> None:
        lane.followed = False
        mode = self._modes.pop(lane.ident, None)
        if mode is not None and not mode.stop():
            self.gaps.add(_stopped_elsewhere(lane.name))

    def _on_thread(self, lane: Lane) -> None:
        """A module runs on a thread that is not followed: see its ops too."""
        if lane.ident not in self._modes:
            self._push_mode(lane)

    def _on_outermost(self, module: nn.Module) -> bool:
        """A module call begins outside any other; whether it is recorded, now that it has."""
        self._automatic.forward(module)
        return not self._paused and not self.recorder.halted

    def _on_direct(self, module: nn.Module) -> None:
        """A module call begins outside any other, past the hooks: it is met by what ran in it.

        That is half recorded, so nothing is handed over, and no source is taken away.
        """
        if self._request.schedule is None:
            self._automatic.forward(module, hand_over=False)

    def _on_idle(self, lane: Lane, module: nn.Module) -> None:
        """The outermost module call of a thread is over: leave no mode behind on it."""
        from clew.observe.other_threads import ops_not_recorded

        if lane.ident in self._straddling:
            self._straddling.discard(lane.ident)
        elif not self._steps.is_settled:
            root = self._root()
            self._steps.settle((module if root is None else root).training)
        if lane.ident != self._main:
            self._pop_mode(lane)
            if self._sees_ops:
                self.gaps.add(ops_not_recorded(lane.name))

    def _root(self) -> nn.Module | None:
        """The model whose names are used, which says what kind of step one is."""
        _, names = next(iter(self._given.values()), ("", []))
        return names[0].entry.ref() if names else None

    def _training(self) -> bool | None:
        """Whether this is a train step, as far as that can be told while a model runs."""
        from clew.record.thread_state import START

        if self._steps.is_settled:
            return None
        root = self._root()
        lane = self.recorder.lane()
        running = lane.outermost
        root = running if root is None else root
        began_here = lane.stack[-1][START] >= self._step_began
        if root is not None and running is not None and began_here:
            self._steps.settle(root.training)
        return None if root is None else root.training


def _listener(live: Listener | bool) -> Listener:
    """Return who is told of what happens: the log on standard output if nobody is named."""
    if not isinstance(live, bool):
        return live
    from clew.views.text.live import LivePrinter

    return LivePrinter(sys.stdout)


def _stopped_elsewhere(thread: str) -> Gap:
    """Say what is left on a thread when another one stops the trace."""
    return Gap(
        f"the end of the trace on {thread}",
        "",
        "it was stopped on another thread: a dispatch mode stays there, which records nothing "
        "and is gone after the next op or with the next trace of that thread",
        "stop the trace on the thread that started it, once the others are done",
    )

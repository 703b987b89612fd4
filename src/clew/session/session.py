"""One recording from first start to last stop: observers on one side, a store on the other.

The one place that joins both.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch import nn

from clew.events.model import Gap
from clew.keep.budget import Budget
from clew.keep.identity import TensorTable
from clew.observe.automatic_steps import AutomaticSteps
from clew.program_errors import add_note
from clew.record.gaps import Gaps
from clew.record.recorder import Recorder
from clew.record.stacks import boundary_of
from clew.record.thread_state import ThreadState
from clew.request.request import Request
from clew.session import on_first_use
from clew.session.assembly import Assembly
from clew.session.batching import Unkept
from clew.session.current_step import CurrentStep
from clew.session.engine import chosen_engine
from clew.session.environment import Environment
from clew.session.observers import Observers, guarded, run_all
from clew.session.op_modes import OpModes, OpObserver
from clew.session.trace_store import TraceStore
from clew.session.unmatched import Unmatched
from clew.stream.records import StepMark
from clew.stream.ring import ring_piece
from clew.torch_compat import compiled_graph_count

if TYPE_CHECKING:
    from clew.events.live_events import Listener
    from clew.record.encoder import Surroundings
    from clew.record.live_feed import LiveFeed
    from clew.record.module_registry import ModuleTable
    from clew.run.run import Run
    from clew.session.late_model import LateModel
    from clew.session.live_crash import LiveCrash
    from clew.session.step_watch import StepWatch


class Session:
    """One recording from first start to last stop; `late_model` finds a model that is not given.

    `step_watch` reads each step as it ends.
    If it `is_paced`, whoever started it calls `hand_over` now and then, and a step that begins does
    not: batches of short steps cost far more than a few big ones.
    """

    def __init__(
        self,
        models: dict[str, nn.Module],
        request: Request,
        late_model: LateModel | None = None,
        is_paced: bool = False,
        step_watch: StepWatch | None = None,
    ) -> None:
        self._environment = Environment()
        self._step_watch = step_watch
        self._request = request = request.on_rank(lambda: self._environment.rank)
        self._engine = chosen_engine(request)
        self._is_paced = is_paced
        # How many events there were when that was last done.
        self._handed_over = 0
        # The exception that has ended the block.
        self._crash: LiveCrash | None = None
        gaps = Gaps()
        if self._engine.gap is not None:
            gaps.add(self._engine.gap)
        budget = Budget(request.limits, gaps.add)
        self._automatic = AutomaticSteps(self._begin_step, lambda: self._step.root(), gaps.fault)
        self.store = TraceStore(
            request, self._environment, budget, gaps, self._context, self._facts,
            None if step_watch is None else step_watch.batch,
        )  # fmt: skip
        self.recorder = self._begin_recorder(budget, gaps)
        for path, model in models.items():
            self.recorder.modules.give(model, path)
        self._step = step = CurrentStep(self.recorder)
        if request.live is not False:
            self.recorder.listen(_live_feed(self.recorder, request.live))
        self._assembly = Assembly(
            self.recorder, request, bool(models), step.steps, step.training, gaps
        )
        self._unmatched = Unmatched(self.recorder, self._assembly, gaps, late_model)
        self._modes = self._op_observer()
        self._observers = Observers(
            request, self.recorder, self._assembly, self._automatic, self._modes, late_model
        )

    def _begin_recorder(self, budget: Budget, gaps: Gaps) -> Recorder:
        limits = self._request.limits
        piece = math.inf
        if limits.last is not None:
            piece = ring_piece(limits.last)
        table: Callable[[ModuleTable], Any] = TensorTable
        if self._engine.module is not None:
            table = on_first_use.NativeTensors
        return Recorder(
            self.store.taker, time.perf_counter_ns, table, budget, gaps,
            most_events=math.inf if limits.events is None else limits.events,
            batch=Unkept.BATCH if self._request.out is False else piece,
            keeps_calls=self._request.level != "values",
            on_halt=self._on_halt, on_direct=self._on_direct,
        )  # fmt: skip

    def _op_observer(self) -> OpObserver:
        native, sees_ops = self._engine.module, self._request.level == "ops"
        if native is None:
            return OpModes(self.recorder, sees_ops, self._assembly.called)
        named, asked = self._assembly.named, None
        if sees_ops and (named.interest.keeps_ops or named.interest.takes_ops):
            asked = on_first_use.AskedOps(self.recorder, named)
        return on_first_use.NativeOps(
            native, self.recorder, sees_ops, self._request.values, asked, self
        )

    @property
    def gaps(self) -> Gaps:
        """Return what could not be recorded."""
        return self.recorder.gaps

    @property
    def is_recording(self) -> bool:
        """Return whether events are recorded now: started, and not in a step that is left out."""
        observers = self._observers
        return observers.is_installed and not observers.is_paused and not self.recorder.halted

    @property
    def is_installed(self) -> bool:
        """Return whether anything in the program is still observed."""
        return self._observers.is_installed

    @property
    def is_foreign(self) -> bool:
        """Return whether only another process, of which this one is a fork, records here."""
        return self.store.is_foreign

    @property
    def path(self) -> Path | str | None:
        """Return the folder or URL that is written to, None if there is none."""
        return self.store.path

    # Start and stop

    def start(self, frame: FrameType | None, nested: bool) -> None:
        """Install everything."""
        if nested:
            self.gaps.add(Gap("nested trace", "", "another trace was already recording",
                          "its times include the cost of this one"))  # fmt: skip
        self.store.changed()
        thread = self.recorder.threads.of_thread(boundary_of(frame))
        self._modes.begin(thread)
        if self._assembly.gather is not None:
            self._assembly.gather.begin()
        watch = self._step_watch
        more = () if watch is None else (watch.observer(self.recorder),)
        self._observers.install(thread, self._step.number, self.on_idle, more)

    def name_models(self) -> None:
        """Note the names in the models given, which otherwise waits until one is asked for."""
        self.recorder.modules.name_given()

    def stop(self) -> None:
        """Remove all modes and observers, and hand over the rest of the records."""
        run_all(self.gaps, (
            (self._modes.pop_all, "the end of the trace"),
            (self._find_rank, "the end of the trace"),
            (self._observers.uninstall, "the end of the trace"),
            (self._assembly.workers.close, "the events of workers"),
            (self._finish_gather, "gathered values"),
            (self._close_recorder, "the last events"),
            (self._report_unmatched, "what was asked for and never came"),
            (self.store.close, "the last events"),
        ))  # fmt: skip

    def failed_to_start(self, fault: BaseException) -> None:
        """Undo what was installed and say so; the program runs on, unrecorded."""
        run_all(self.gaps, (
            (self._modes.pop_all, "the start of the trace"),
            (self._observers.uninstall, "the start of the trace"),
        ))  # fmt: skip
        if not isinstance(fault, Exception):
            raise fault
        self.gaps.fault(fault, "anything")

    def abandon(self) -> None:
        """Stop in a process that inherited the recording by a fork: write and say nothing."""
        self.recorder.abandon()
        self.store.abandon()
        if self._assembly.watch is not None:
            guarded(self.gaps, self._assembly.watch.abandon, "the end of the trace")()
        guarded(self.gaps, self._modes.abandon, "the end of the trace")()
        self._observers.uninstall()

    def forked(self) -> None:
        """Report a forked process that is not recorded; workers of a DataLoader are."""
        self._modes.forked()
        if not self._assembly.workers.is_starting:
            self.gaps.add(
                Gap(
                    "a forked process",
                    "",
                    "what runs in it is not recorded",
                    "open a clew.trace in the process",
                )
            )

    def crashed(self, error: BaseException) -> None:
        """Record the exception that ends the block, and show the user where it came from."""
        try:
            text = self.recorder.crashed(error)
            self._crash = crash = on_first_use.LiveCrash(text)
            self.flush()
            run = self.run()
            event = on_first_use.failing_event(run)
            if not self._request.redact:  # names in the source are text of the program
                crash.find_facts(error, run, event, self.recorder)
                self.store.changed()
            add_note(error, crash.note(run, event))
        except Exception as fault:
            self.gaps.fault(fault, "the exception that ended the block")

    def _find_rank(self) -> None:
        if self.store.disk is None:
            self._environment.find_rank()

    def _finish_gather(self) -> None:
        if self._assembly.gather is not None:
            self._assembly.gather.finish(self._crash is not None)

    def _close_recorder(self) -> None:
        self.recorder.close()
        self.store.changed()

    def _report_unmatched(self) -> None:
        has_crashed = self._crash is not None
        self._unmatched.report_late_model(has_crashed)
        if self.recorder.halted:
            return  # it may have come past the limit
        if self._observers.is_paused and not self._observers.has_run:
            self._unmatched.report_all_left_out(self._step.number)
            return  # what was asked for may have come
        if has_crashed:
            self._unmatched.report_after_crash()
            return
        self._unmatched.report(self._request.schedule is not None, compiled_graph_count() > 0)

    # Steps

    def step(self) -> int:
        """Begin the next step, because the program says so: no other begins by itself."""
        self._automatic.end()
        return self._begin_step()

    def _begin_step(self, hand_over: bool = True) -> int:
        assembly, steps = self._assembly, self._step.steps
        if self.store.is_abandoned:
            return steps.begin()
        if self.recorder.halted:
            number = steps.begin()
            self._gather_step()
            return number
        if assembly.grads is not None and not self._observers.is_paused:
            assembly.grads.look_around()
        assembly.workers.merge()
        if not self._observers.is_paused:
            guarded(self.gaps, self._warn_unmatched, "addresses without a match")()
        if hand_over:
            self.end_watched_step()
        number = self._step.begin()
        self._gather_step()
        if self.store.disk is not None and hand_over and not self._is_paced:
            self.recorder.drain()
        if not self._observers.is_left_out(number):
            # Handed over with what is in the step, so that both fall out of a ring together; and
            # before the observers start again, which read what is there.
            self.recorder.mark(StepMark(number), hand_over)
        self._observers.follow_schedule(number)
        return number

    def end_watched_step(self) -> None:
        """Hand the step so far over, and have it read by whoever watches steps."""
        watch = self._step_watch
        if watch is not None:
            guarded(self.gaps, self.recorder.drain, "the step")()
            guarded(self.gaps, self.store.settle, "the step")()
            guarded(self.gaps, lambda: watch.step_ends(self._step.number), "the end of a step")()

    def _gather_step(self) -> None:
        if self._assembly.gather is not None:
            self._assembly.gather.stepped()

    def _warn_unmatched(self) -> None:
        self._unmatched.warn_after_step(self._step.number)

    # What observers report

    def _on_halt(self) -> None:
        self._observers.halt()

    def _on_direct(self, module: nn.Module) -> None:
        """Pass an outermost module call that went past the hooks to the automatic steps.

        It was noticed by what ran in it and is half recorded, so nothing is handed over, and no
        observer is stopped.
        """
        if self._request.schedule is None:
            self._automatic.forward(module, hand_over=False)

    def on_outermost(self, module: nn.Module) -> bool:
        """Return whether a module call inside no other is recorded."""
        return self._observers.on_outermost(module)

    def on_idle(self, thread: ThreadState, module: nn.Module) -> None:
        """Update the step and the modes when the outermost module call of a thread is over."""
        self._step.on_idle(thread, module)
        self._modes.on_idle(thread)

    # Reading

    def flush(self) -> None:
        """Make everything so far readable."""
        if self.store.is_abandoned and self.store.disk is None:
            self.recorder.drain()
        if self._observers.is_installed:
            self._assembly.workers.merge()
            self.recorder.drain()
            self.store.flush()

    def hand_over(self) -> tuple[int, int]:
        """Hand over what was recorded so far; return the number of events, and the step.

        It may be called on a thread on which nothing is recorded.
        """
        events = self.recorder.buffer.next_id()
        if events != self._handed_over and self.is_recording and self.store.disk is not None:
            self._handed_over = events
            guarded(self.gaps, self.recorder.drain, "what was recorded so far")()
        return events, self._step.number

    def run(self) -> Run:
        """Return everything so far, to be read."""
        self.flush()
        return self.store.run()

    def _context(self) -> Surroundings:
        return on_first_use.surroundings_of(
            self.recorder, self._step.steps, self.gaps, self._facts()
        )

    def _facts(self) -> dict[str, Any]:
        return {
            **self._environment.facts(self._request.name),
            "engine": self._engine.name,
            "level": self._request.level,
            "values": self._request.values,
            "steps": self._automatic.rule,
            **({"crash": None} if self._crash is None else self._crash.to_json()),
            **({} if self._step_watch is None else self._step_watch.facts()),
        }


def _live_feed(recorder: Recorder, live: Listener | bool) -> LiveFeed:
    """Return what reports events: to the log on standard output if no listener is given."""
    listener = on_first_use.LivePrinter(sys.stdout) if isinstance(live, bool) else live
    return on_first_use.LiveFeed(recorder, listener)

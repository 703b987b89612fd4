"""One recording from first start to last stop: observers on one side, a store on the other.

The one place that joins both.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from torch import nn

from clew.analysis.crash import crash_note, failing_event
from clew.events.live import Listener
from clew.events.model import Gap
from clew.keep.budget import Budget
from clew.keep.identity import TensorTable
from clew.observe.automatic_steps import AutomaticSteps
from clew.program_errors import add_note
from clew.record.encoder import Surroundings
from clew.record.gaps import Gaps
from clew.record.live_feed import LiveFeed
from clew.record.recorder import Recorder
from clew.record.stacks import boundary_of
from clew.record.thread_state import ThreadState
from clew.request.request import Request
from clew.run.run import Run
from clew.session.assembly import Assembly
from clew.session.batching import Unkept
from clew.session.current_step import CurrentStep
from clew.session.environment import Environment, module_rows, source_text
from clew.session.observers import Observers, guarded, run_all
from clew.session.op_modes import OpModes
from clew.session.trace_store import TraceStore
from clew.session.unmatched import Unmatched
from clew.stream.records import StepMark
from clew.stream.ring import ring_piece
from clew.torch_compat import compiled_graph_count


class Session:
    """One recording from first start to last stop."""

    def __init__(self, models: dict[str, nn.Module], request: Request) -> None:
        self._environment = Environment()
        self._request = request = request.on_rank(self._environment.rank)
        self.crash_text: str | None = None
        # Whether this process is a fork of the one that records.
        self._abandoned = False
        gaps = Gaps()
        budget = Budget(request.limits, gaps.add)
        self._automatic = AutomaticSteps(self._begin_step, lambda: self._step.root(), gaps.fault)
        self.store = TraceStore(
            request, self._environment, budget, gaps, self._context, self._facts
        )
        self.recorder = self._begin_recorder(budget, gaps)
        for path, model in models.items():
            self.recorder.modules.give(model, path)
        self._step = step = CurrentStep(self.recorder)
        if request.live is not False:
            self.recorder.listen(LiveFeed(self.recorder, _listener(request.live)))
        self._assembly = Assembly(
            self.recorder, request, bool(models), step.steps, step.training, gaps
        )
        self._unmatched = Unmatched(self.recorder, self._assembly, gaps)
        self._modes = OpModes(self.recorder, request.level == "ops", self._assembly.called)
        self._observers = Observers(
            request, self.recorder, self._assembly, self._automatic, self._modes, self._on_idle
        )

    def _begin_recorder(self, budget: Budget, gaps: Gaps) -> Recorder:
        limits = self._request.limits
        piece = math.inf if limits.last is None else ring_piece(limits.last)
        return Recorder(
            self.store.taker, time.perf_counter_ns, TensorTable, budget, gaps,
            most_events=math.inf if limits.events is None else limits.events,
            batch=Unkept.BATCH if self._request.out is False else piece,
            keeps_calls=self._request.level != "values",
            on_halt=self._on_halt, on_direct=self._on_direct,
        )  # fmt: skip

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
    def is_foreign(self) -> bool:
        """Return whether only another process, of which this one is a fork, records here."""
        return self._abandoned or self.store.is_of_parent

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
        self._observers.install(thread, self._step.number)

    def stop(self) -> None:
        """Remove all modes and observers, and hand over the rest of the records."""
        run_all((
            self._modes.pop_all,
            self._find_rank,
            self._observers.uninstall,
            guarded(self.gaps, self._assembly.workers.close, "the events of workers"),
            guarded(self.gaps, self._finish_gather, "gathered values"),
            guarded(self.gaps, self._close_recorder, "the last events"),
            guarded(self.gaps, self._report_unmatched, "what was asked for and never came"),
            guarded(self.gaps, self.store.close, "the last events"),
        ))  # fmt: skip

    def failed_to_start(self, fault: BaseException) -> None:
        """Undo what was installed and say so; the program runs on, unrecorded."""
        self.gaps.fault(fault, "anything")
        self._observers.uninstall()

    def abandon(self) -> None:
        """Stop in a process that inherited the recording by a fork: write and say nothing."""
        self._abandoned = True
        self.recorder.abandon()
        self.store.abandon()
        if self._assembly.watch is not None:
            guarded(self.gaps, self._assembly.watch.abandon, "the end of the trace")()
        guarded(self.gaps, self._modes.abandon, "the end of the trace")()
        self._observers.uninstall()

    def forked(self) -> None:
        """Report a forked process that is not recorded; workers of a DataLoader are."""
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
            self.crash_text = self.recorder.crashed(error)
            self.flush()
            run = self.run()
            add_note(error, crash_note(run, failing_event(run), self.crash_text))
        except Exception as fault:
            self.gaps.fault(fault, "the exception that ended the block")

    def _find_rank(self) -> None:
        if self.store.disk is None:
            self._environment.find_rank()

    def _finish_gather(self) -> None:
        if self._assembly.gather is not None:
            self._assembly.gather.finish(self.crash_text is not None)

    def _close_recorder(self) -> None:
        self.recorder.close()
        self.store.changed()

    def _report_unmatched(self) -> None:
        if self.recorder.halted:
            return  # it may have come past the limit
        if self._observers.is_paused and not self._observers.has_run:
            self._unmatched.report_all_left_out(self._step.number)
            return  # what was asked for may have come
        self._unmatched.report(self._request.schedule is not None, compiled_graph_count() > 0)

    # Steps

    def step(self) -> int:
        """Begin the next step, because the program says so: no other begins by itself."""
        self._automatic.end()
        return self._begin_step()

    def _begin_step(self, hand_over: bool = True) -> int:
        assembly, steps = self._assembly, self._step.steps
        if self._abandoned:
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
        number = self._step.begin()
        self._gather_step()
        if self.store.disk is not None and hand_over:
            self.recorder.drain()
        if not self._observers.is_left_out(number):
            # Handed over with what is in the step, so that both fall out of a ring together; and
            # before the observers start again, which read what is there.
            self.recorder.mark(StepMark(number), hand_over)
        self._observers.follow_schedule(number)
        return number

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

    def _on_idle(self, thread: ThreadState, module: nn.Module) -> None:
        """Update the step and the modes when the outermost module call of a thread is over."""
        self._step.on_idle(thread, module)
        self._modes.on_idle(thread)

    # Reading

    def flush(self) -> None:
        """Make everything so far readable."""
        if self._abandoned and self.store.disk is None:
            self.recorder.drain()
        if self._observers.is_installed:
            self._assembly.workers.merge()
            self.recorder.drain()
            self.store.flush()

    def run(self) -> Run:
        """Return everything so far, to be read."""
        self.flush()
        return self.store.run()

    def _context(self) -> Surroundings:
        recorder = self.recorder
        return Surroundings(
            module_rows(recorder),
            list(recorder.modules.parameters),
            list(recorder.threads.names),
            list(recorder.values.tensors.generator_names),
            self._step.steps.modes.after,
            list(self.gaps),
            source_text,
            self._facts(),
        )

    def _facts(self) -> dict[str, Any]:
        return {
            **self._environment.facts(self._request.name),
            "level": self._request.level,
            "values": self._request.values,
            "steps": self._automatic.rule,
            "crash": self.crash_text,
        }


def _listener(live: Listener | bool) -> Listener:
    """Return the listener of live events: the log on standard output if none is given."""
    if not isinstance(live, bool):
        return live
    from clew.views.text.live import LivePrinter  # which most traces have no use for

    return LivePrinter(sys.stdout)

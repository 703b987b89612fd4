"""Start, pause and stop the observers of one recording.

They are paused in steps that the schedule leaves out and while a program is exported, and stopped
for good once the limit of events is reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from torch import nn

from clew.events.model import Gap
from clew.observe.automatic_steps import AutomaticSteps
from clew.observe.compiled import CompiledSource
from clew.observe.modules import ModuleSource
from clew.observe.optimizers import OptimizerSource
from clew.observe.other_threads import ThreadSource
from clew.record.gaps import Gaps
from clew.record.recorder import Recorder
from clew.record.thread_state import ThreadState
from clew.request.request import Request
from clew.session.assembly import Assembly
from clew.session.op_modes import OpModes, OpObserver
from clew.torch_compat import on_export, on_swap

if TYPE_CHECKING:
    from clew.session.late_model import LateModel
    from clew.stream.batch import Observer

_EXPORTED = Gap(
    "what runs while a program is exported",
    "",
    "what records it would become part of the program, or keep it from being made",
    "run the model itself inside the block, or what was exported",
)

# A range is made anew for each action, which takes longer than most of them.
_TWICE = (0, 1)


class Observers:
    """Starts and stops everything that observes the program; `automatic` finds its steps.

    `late_model` looks for the model before each outermost call, until there is one.
    """

    def __init__(
        self,
        request: Request,
        recorder: Recorder,
        assembly: Assembly,
        automatic: AutomaticSteps,
        modes: OpObserver,
        late_model: LateModel | None = None,
    ) -> None:
        self._request = request
        self._late_model = late_model
        self._recorder = recorder
        self._assembly = assembly
        self._automatic = automatic
        self._modes = modes
        self._observers: list[Observer] = []
        self._undo: list[Callable[[], object]] = []
        # Whether they run, and whether they ever did.
        self._running = False
        self.has_run = False
        # Whether the schedule leaves this step out.
        self.is_paused = False
        # The thread that exports a program now, which is not recorded.
        self._exports_on: ThreadState | None = None

    @property
    def is_installed(self) -> bool:
        """Return whether the observers are installed, though they may be paused in this step."""
        return bool(self._undo)

    def install(
        self,
        thread: ThreadState,
        step: int,
        on_idle: Callable[[ThreadState, nn.Module], None],
        more: tuple[Observer, ...] = (),
    ) -> None:
        """Begin to observe the program, on the running thread, in a step.

        `on_idle` is called when the outermost module call of a thread is over. `more` observe
        besides the usual.
        """
        recorder, assembly, sees_ops = self._recorder, self._assembly, self._request.level == "ops"
        modules = ModuleSource(
            recorder, sees_ops, self._modes.on_thread, on_idle, self.on_outermost,
            assembly.grads, assembly.called, self._modes.own_hooks, self._modes.native,
        )  # fmt: skip
        compiled = CompiledSource(
            recorder, self._request.compiled, recorder.gaps.add, assembly.variables is not None
        )
        self._observers = [OptimizerSource(recorder), *more, *assembly.observers(modules)]
        if sees_ops and isinstance(self._modes, OpModes):
            self._observers.append(ThreadSource(recorder, recorder.gaps.add))
        # From the last to the first. What is changed on the way is listed at once.
        self._undo = [compiled.stop, self._stop, self._automatic.stop]
        self._undo.insert(0, on_swap(recorder.values.tensors.forget))
        self._undo.append(on_export(self._exporting))
        compiled.start()
        self._automatic.start(modules.enter)
        self.is_paused = self.is_left_out(step)
        if self.is_paused:
            self._automatic.skip(True)
        else:
            self._start()
            self._modes.push(thread)

    def uninstall(self) -> None:
        """Remove everything that was installed, also if removing some of it fails."""
        where = "the end of the trace"
        run_all(self._recorder.gaps, [(action, where) for action in reversed(self._undo)])
        self._undo = []

    def is_left_out(self, step: int) -> bool:
        """Return whether the schedule leaves a step out."""
        schedule = self._request.schedule
        return schedule is not None and not schedule(step)

    def follow_schedule(self, step: int) -> None:
        """Stop the observers in steps that are not recorded, and start them again afterwards."""
        pause = self.is_left_out(step)
        if pause == self.is_paused:
            return
        self.is_paused = pause
        self._automatic.skip(pause)
        thread = self._recorder.thread()
        if pause:
            self._stop()
            self._modes.pop(thread)
        else:
            self._start()
            self._modes.push(thread)

    def halt(self) -> None:
        """Stop the observers: the limit of events is reached."""
        self._modes.retire()
        self._stop("the end of the events")
        self._automatic.skip(True)
        self._recorder.gaps.add(
            Gap(
                "events",
                "",
                f"the limit of {self._request.limits.events} events was reached",
                "raise it with clew.trace(limits=Limits(events=...))",
            )
        )

    def _start(self) -> None:
        self._running = self.has_run = True
        for observer in self._observers:
            observer.start()

    def _stop(self, where: str = "the end of the trace") -> None:
        if self._running:
            run_all(self._recorder.gaps, [(o.stop, where) for o in reversed(self._observers)])
            self._running = False

    def _exporting(self, begins: bool) -> None:
        """Record nothing while a program is exported: observers would become part of it."""
        self._automatic.exporting(begins)
        thread = self._recorder.thread()
        if begins and self._running and not thread.mute:
            self._exports_on = thread
            self._recorder.gaps.add(_EXPORTED)
            thread.set_mute(True)
            for observer in filter(self._assembly.is_inside, self._observers):
                guarded(self._recorder.gaps, observer.stop, "what is exported")()
        elif not begins and self._exports_on is not None:
            self._exports_on.set_mute(self._recorder.halted)
            self._exports_on = None
            for observer in filter(self._assembly.is_inside, self._observers):
                guarded(self._recorder.gaps, observer.start, "what comes after an export")()

    def on_outermost(self, module: nn.Module) -> bool:
        """Pass an outermost module call to the automatic steps; return whether it is recorded."""
        if self._late_model is not None:
            self._late_model.name_in(self._recorder.modules)
        self._automatic.forward(module)
        return not self.is_paused and not self._recorder.halted


def guarded(gaps: Gaps, action: Callable[[], object], where: str) -> Callable[[], None]:
    """Return an action whose failure is reported to `gaps` and does not reach the program."""

    def run() -> None:
        try:
            action()
        except Exception as fault:
            gaps.fault(fault, where)

    return run


def run_all(gaps: Gaps, actions: Iterable[tuple[Callable[[], object], str]]) -> None:
    """Run all actions in order; report a failure of one with its text, and run the others.

    An interrupt reaches the program when all have run. The action that it came in runs once more,
    as it may have done only a part, so each must be one that can be repeated.
    """
    interrupt: BaseException | None = None
    for action, where in actions:
        for _ in _TWICE:
            try:
                try:
                    action()
                except Exception as fault:
                    gaps.fault(fault, where)
                break
            except BaseException as error:
                interrupt = interrupt or error
    if interrupt is not None:
        raise interrupt

"""`clew.recorder`: the last steps of a training loop, written when something happens.

Input: the program as it trains, and triggers. Output: ordinary traces in a folder, one for each
time that a trigger fired. The steps wait in a ring in memory; nothing is written until then.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from clew.errors import ClewError
from clew.events.model import Gap
from clew.events.vocabulary import VALUES
from clew.optional_packages import optional_package
from clew.program_errors import add_note, error_text
from clew.request.limits import Limits
from clew.request.request import Request, models_of, request_of
from clew.request.switches import is_disabled
from clew.session import on_first_use
from clew.session.flight_dumps import Dump, DumpFolder
from clew.session.flight_rules import Firing
from clew.session.flight_signals import SignalHandlers
from clew.session.tracer import Tracer
from clew.triggers import DEFAULT, Raised, Signal, Terminated, Trigger, signal_number, triggers_of

if TYPE_CHECKING:
    from torch import nn

    from clew.session.flight_next_step import NextStep
    from clew.session.flight_watch import FlightWatch

# Events that the ring holds at most, however many the steps have: some 300 MB.
_MOST_EVENTS = 1_000_000


def recorder(
    model: nn.Module | Mapping[str, nn.Module] | None,
    *,
    keep: int = 50,
    level: str = "modules",
    values: str = "stats",
    triggers: Trigger | str | Iterable[Trigger | str] = DEFAULT,
    out: str | os.PathLike[str] = "flight",
    then: str | None = None,
    most_dumps: int = 5,
    engine: str = "auto",
) -> FlightRecorder:
    """Keep the last steps of a training loop, and write them when a trigger fires.

    A context manager, or `.start()` and `.stop()`. `rec.step(loss=loss)` ends a step; in a program
    that never calls it a step ends as in `clew.trace`. Of each step there are the module calls, the
    statistics of their inputs and outputs, those of each gradient that an optimizer used and of
    each parameter it has written, and what `rec.step` was given. At least the last `keep` steps are
    there, in memory. `triggers` are names or objects of `clew.triggers`. When one fires, a trace is
    written into the folder `out`: `clew.load` opens it, and its findings say what fired. With
    `then="ops"` the next step is recorded too, with every op and the statistics of every value, in
    a trace of its own. Spikes, NaN and predicates write at most `most_dumps` traces.

    >>> import tempfile, torch, clew
    >>> model = torch.nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with tempfile.TemporaryDirectory() as out, clew.recorder(model, out=out) as rec:
    ...     for _ in range(3):
    ...         loss = model(torch.ones(4, 2)).square().mean()
    ...         loss.backward()
    ...         optimizer.step()
    ...         number = rec.step(loss=loss)
    >>> rec.dumps
    []
    """
    if type(keep) is not int or keep < 1:
        raise ClewError(f"keep={keep!r}: give the number of steps to keep, 1 or more")
    if type(most_dumps) is not int or most_dumps < 0:
        raise ClewError(f"most_dumps={most_dumps!r}: give the number of traces, 0 or more")
    if then not in (None, "ops"):
        raise ClewError(f"then={then!r} is not one of None, 'ops'")
    if level not in ("modules", "ops") or values not in VALUES[1:]:
        raise ClewError(
            f"level={level!r}, values={values!r}: a recorder needs level 'modules' or 'ops', and "
            "values 'stats', 'fingerprint' or 'full'"
        )
    if not isinstance(out, str | os.PathLike):
        raise ClewError(f"out={out!r}: give a folder for the traces that are written")
    request = replace(
        request_of(
            level, values, (), (), None, None, False, "opaque", None, "keep", None,
            Limits(last=_MOST_EVENTS), False, None, engine,
        ),
        last_steps=keep,
    )  # fmt: skip
    found = triggers_of(triggers)
    if is_disabled():
        return FlightRecorder({}, request, found, os.fspath(out), then, most_dumps)
    torch = optional_package("torch", "clew.recorder")
    models = models_of(model, torch.nn.Module)
    return FlightRecorder(models, request, found, os.fspath(out), then, most_dumps)


class FlightRecorder:
    """Keeps the last steps of a program, and writes them when a trigger fires."""

    def __init__(
        self,
        models: dict[str, nn.Module],
        request: Request,
        triggers: tuple[Trigger, ...],
        out: str,
        then: str | None,
        most_dumps: int,
    ) -> None:
        self._request = request
        self._triggers = triggers
        self._folder = folder = DumpFolder(out, most_dumps)
        self.dumps = folder.dumps
        self._process = os.getpid()
        self._watch: FlightWatch | None = None
        self._next: NextStep | None = None
        self._signals = SignalHandlers(self._signal_names(), self._signalled)
        self._next_hook: Any = None
        self._marks_steps = False
        if not is_disabled():
            if then is not None:
                self._next = on_first_use.NextStep(models, request)
            self._watch = on_first_use.FlightWatch(
                triggers, request.last_steps or 1, folder.touch_file(), self._fired, self._next
            )
        self._tracer = Tracer(models, request, step_watch=self._watch)

    def __repr__(self) -> str:
        state = "recording" if self._tracer.recording else "not recording"
        return f"<recorder of the last {self._request.last_steps} steps, {state}>"

    @property
    def trace(self) -> Tracer:
        """Return the steps that are in memory, which can be read at any time."""
        return self._tracer

    def __enter__(self) -> FlightRecorder:
        self._start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end(exc)

    def start(self) -> FlightRecorder:
        """Begin to record; `stop` ends it. An exception that ends the program is written too."""
        self._start()
        if self._tracer.recording and self._next_hook is None:
            self._next_hook = sys.excepthook
            sys.excepthook = self._excepthook
            atexit.register(self.stop)
        return self

    def stop(self) -> FlightRecorder:
        """Stop recording and take everything away that was installed."""
        self._end(None)
        return self

    def step(self, loss: Any = None, **scalars: Any) -> int:
        """End a step; return the number of the next. All numbers given are recorded by name.

        `loss` is a number or a tensor, which is read when the statistics of the step are. Give
        `grad_norm`, as `clip_grad_norm_` returns it, to have gradients judged as they were before
        they were clipped.
        """
        if not self._is_here():
            return self._tracer.step() if self._process == os.getpid() else 0
        self._marks_steps = True
        if loss is not None:
            scalars = {"loss": loss, **scalars}
        frame = sys._getframe(1)
        for name, value in scalars.items():
            self._given(name, value, frame)
        return self._tracer.step()

    def dump(self, text: str = "rec.dump() was called") -> Dump | None:
        """Write the steps that are there now; return where, None if nothing records."""
        if not self._is_here():
            return None
        return self._write((Firing("dump", self._step_number(), text),))

    # Start and stop

    def _start(self) -> None:
        was_recording = self._tracer.recording
        self._tracer.start()
        if was_recording or not self._tracer.recording:
            return
        why_not = self._signals.install()
        session = self._tracer._session
        if why_not is not None and session is not None:
            session.gaps.add(Gap("signals", "", why_not, "start the recorder in the main thread"))

    def _end(self, error: BaseException | None) -> None:
        if not self._is_here():
            self._tracer.stop()
            return
        self._signals.remove()
        if self._next_hook is not None:
            if sys.excepthook == self._excepthook:
                sys.excepthook = self._next_hook
            self._next_hook = None
            atexit.unregister(self.stop)
        if self._next is not None:
            self._guarded(self._next.stop, "the step with every op")
        ordinary = (StopIteration, StopAsyncIteration, GeneratorExit, SystemExit)
        crashed = error is not None and not isinstance(error, ordinary)
        session = self._tracer._session
        if not self._marks_steps and not crashed and session is not None:
            session.end_watched_step()
        step = self._step_number()
        if crashed and error is not None:
            self._tracer.__exit__(type(error), error, error.__traceback__)
            if any(isinstance(one, Raised) for one in self._triggers):
                dump = self._write((Firing("exception", step, error_text(error)),))
                if dump is not None:
                    add_note(error, f"clew: the last steps are in {dump.path}")
        else:
            self._tracer.stop()

    def _excepthook(
        self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        """Write the last steps before the exception that ends the program is shown."""
        shows = self._next_hook or sys.__excepthook__
        if os.getpid() == self._process and self._tracer.recording:
            self._guarded(lambda: self._end(error), "the exception that ended the program")
        shows(kind, error, traceback)

    def _is_here(self) -> bool:
        """Return whether this process records: it is no fork, and nothing is switched off."""
        return os.getpid() == self._process and self._tracer.recording

    # Steps

    def _given(self, name: str, value: Any, frame: FrameType) -> None:
        session, watch = self._tracer._session, self._watch
        if session is not None and watch is not None and session.is_recording:
            self._guarded(
                lambda: watch.given(session.recorder, name, value, frame), f"{name}= of rec.step()"
            )

    def _step_number(self) -> int:
        session = self._tracer._session
        return 0 if session is None else session.hand_over()[1]

    # Triggers

    def _signal_names(self) -> list[int]:
        found = [signal_number(one) for one in self._triggers if isinstance(one, Signal)]
        if any(isinstance(one, Terminated) for one in self._triggers):
            found.append(int(signal.SIGTERM))
        return found

    def _signalled(self, number: int) -> None:
        name = signal.Signals(number).name
        kind = "sigterm" if number == signal.SIGTERM else "signal"
        self._fired((Firing(kind, self._step_number(), f"the process got {name}"),))

    def _fired(self, fired: tuple[Firing, ...]) -> None:
        """Write the last steps, unless that was done often enough."""
        if self._folder.has_room(fired):
            dump = self._write(fired)
            if dump is not None and self._next is not None and fired[0].trigger != "sigterm":
                self._next.ask(f"{str(dump.path).removesuffix('.clew')}-next.clew")

    def _write(self, fired: tuple[Firing, ...]) -> Dump | None:
        assert self._watch is not None
        return self._folder.write(self._tracer, self._watch, fired)

    def _guarded(self, action: Any, where: str) -> None:
        try:
            action()
        except Exception as fault:
            session = self._tracer._session
            if session is not None:
                session.gaps.fault(fault, where)

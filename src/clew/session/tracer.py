"""`clew.trace`: a context manager, a decorator, `.start()` and `.stop()`, and the trace itself.

Input: the user's program as it runs. Output: a `Trace` that can be read at any time, also while it
records.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from clew.errors import ClewError, MissingDependency, TraceStateError, warn
from clew.events.model import Gap
from clew.record.active import ActiveTrace, register
from clew.request.callbacks import Callbacks
from clew.request.limits import Limits, Schedule
from clew.request.request import Request, models_of, request_of
from clew.request.switches import is_disabled
from clew.session import on_first_use
from clew.session.decorating import inside
from clew.traces import Trace

if TYPE_CHECKING:
    from torch import nn

    from clew.events.live_events import Listener
    from clew.run.run import Run
    from clew.session.late_model import LateModel
    from clew.session.session import Session
    from clew.session.step_watch import StepWatch


_F = TypeVar("_F", bound=Callable[..., Any])


_active: list[Tracer] = []

_DISABLED = Gap("everything", "", "CLEW_DISABLE=1 switches recording off", "unset CLEW_DISABLE")


def _before_fork() -> None:
    """Finish the imports that another thread may be in: a child would wait for them for ever."""
    if _active:
        for name in ("NativeNumbers", "MemoryTrace"):  # which are loaded with the first batch
            getattr(on_first_use, name)


def _forked_child() -> None:
    """Record nothing in a forked child, and leave the parent's blocks as if there were none."""
    inherited = _active[:]
    _active.clear()
    for tracer in inherited:
        tracer._abandon()


def _forked_parent() -> None:
    for tracer in _active:
        if tracer._session is not None:
            tracer._session.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_child=_forked_child, after_in_parent=_forked_parent
    )


@atexit.register
def _stop_all() -> None:
    """Write the rest of whatever still records when the program ends."""
    for tracer in reversed(_active[:]):
        tracer.stop()


def trace(
    model: nn.Module | Mapping[str, nn.Module] | None = None,
    *,
    level: str = "ops",
    values: str = "meta",
    capture: Iterable[str] = (),
    watch: Iterable[str] = (),
    callbacks: Mapping[str, Callbacks] | None = None,
    gather: int | None = None,
    live: bool | Listener = False,
    compiled: str = "opaque",
    out: str | os.PathLike[str] | Literal[False] | None = None,
    exist: str = "keep",
    schedule: Schedule | None = None,
    limits: Limits | None = None,
    redact: bool = False,
    name: str | None = None,
    engine: str = "auto",
) -> Tracer:
    """Record what runs: a context manager, a decorator, or `.start()` and `.stop()`.

    `model` says whose names the addresses use: a module, a dict of name to module, or None to
    name each outermost module by its class. `level` is `"ops"`, `"modules"`, or `"values"` for the
    values of addresses alone, without calls. `values` is `"meta"`, `"stats"`, `"fingerprint"` (for
    `clew.diff`: sums along each axis too) or `"full"`; `capture` lists addresses kept in full
    whatever it says. An address that names a rank (`"fc@1"`) is for the process of that rank alone,
    here, in `watch` and in `callbacks`.
    `watch` names variables to follow through every function of the program that runs.
    `callbacks` maps addresses to `Callbacks`: what to keep of their values, or to make of them.
    `gather=N` brings the values of both to rank 0 every N steps, while the program runs.
    `live` prints each event as it happens, or tells a `clew.events.live_events.Listener` of it.
    `compiled="eager"` opens compiled regions up.
    `out` streams the trace to a folder while the program runs. If it is taken, `exist="keep"` moves
    the earlier trace to `run.1.clew`, `"replace"` removes it, `"error"` raises. `out=False` keeps
    nothing, so that memory stays flat however long `live` or `callbacks` are told. `schedule`
    records only some steps, `limits` says where to hold back. `redact` takes out
    every text the program made: source, text arguments, what exceptions say, paths. `engine` is
    `"native"` or `"python"`; `"auto"` is the native one where `clew build` has built it.

    >>> import torch, clew
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
    >>> with clew.trace(model) as t:
    ...     y = model(torch.ones(2, 4))
    >>> str(t["0"].output)
    'f32[2,8]'
    """
    request = request_of(
        level, values, capture, watch, callbacks, gather, live, compiled, out, exist, schedule,
        limits, redact, name, engine,
    )  # fmt: skip
    torch = sys.modules.get("torch")
    if torch is None:
        if is_disabled():
            return Tracer({}, request)
        try:
            torch = importlib.import_module("torch")
        except ImportError as missing:
            raise MissingDependency("clew.trace", "torch", "clew[torch]") from missing
    return Tracer(models_of(model, torch.nn.Module), request)


class Tracer(Trace):
    """A trace that is being recorded, or was recorded by this process."""

    def __init__(
        self,
        models: dict[str, nn.Module],
        request: Request,
        late_model: LateModel | None = None,
        is_paced: bool = False,
        step_watch: StepWatch | None = None,
    ) -> None:
        super().__init__()
        self._models = models
        self._request = request
        self._late_model = late_model
        self._is_paced = is_paced
        self._step_watch = step_watch
        self._session: Session | None = None
        self._depth = 0
        # How many blocks are open that record nothing: in a forked child, with CLEW_DISABLE=1.
        self._idle_blocks = 0

    def __enter__(self) -> Tracer:
        self._start(sys._getframe(1))
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        ordinary = (StopIteration, StopAsyncIteration, GeneratorExit)
        crashed = exc is not None and not isinstance(exc, ordinary)
        try:
            if crashed and self._session is not None and self._depth == 1:
                self._session.crashed(exc)  # type: ignore[arg-type]
        finally:
            self.stop()

    def start(self) -> Tracer:
        """Begin to record; `stop` ends it."""
        self._start(None)
        return self

    def stop(self) -> Tracer:
        """Stop recording and take everything away that recording had installed."""
        if self._idle_blocks:
            self._idle_blocks -= 1
            return self
        if self._session is None or self._depth == 0:
            warn("stop() on a trace that is not recording: call start() first, or use `with`")
            return self
        self._depth -= 1
        if self._depth == 0:
            _active.remove(self)
            try:
                self._session.stop()
            except BaseException:
                if self._session.is_installed:  # an interrupt came before it had begun to stop
                    self._session.stop()
                raise
        return self

    def step(self) -> int:
        """Begin the next step; its number is on every event that follows.

        Without it a step ends after an `optimizer.step()`, when the next outermost forward begins,
        and when a model changes from training to evaluation or back. The first call switches that
        off; steps found before it stay, and the numbers go on.
        """
        if self._session is None and self._idle_blocks:
            return 0
        if self._session is None or (self._depth == 0 and not self._idle_blocks):
            raise TraceStateError("step() on a trace that is not recording: start it first")
        return self._session.step()

    def flush(self) -> Tracer:
        """Return when everything so far can be read."""
        if self._session is not None:
            self._session.flush()
        return self

    def __call__(self, function: _F) -> _F:
        """Record every call of a function, each into this same trace, which is its `trace`.

        >>> import torch, clew
        >>> @clew.trace(level="ops")
        ... def doubled(x):
        ...     return x * 2
        >>> y = doubled(torch.ones(3))
        >>> [op.name for op in doubled.trace.ops]
        ['aten.mul.Tensor']
        """
        if isinstance(function, staticmethod | classmethod):
            return type(function)(self(function.__func__))
        if isinstance(function, type) or not callable(function):
            raise ClewError(
                f"clew.trace decorates functions, not {type(function).__name__} objects; "
                "write `with clew.trace(model):` around the call instead"
            )
        traced: Any = inside(self, function)
        traced.trace = self
        return traced  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return super().__repr__() if self._session is not None else "<Trace, nothing recorded yet>"

    @property
    def recording(self) -> bool:
        """Return whether events are being recorded now."""
        return self._depth > 0

    def _start(self, frame: FrameType | None) -> None:
        if is_disabled() and not self._depth:
            self._idle_blocks += 1
            return
        if self._idle_blocks or (self._session is not None and self._session.is_foreign):
            if not self._idle_blocks:
                warn(
                    "a trace of another process was entered in a fork of it and records nothing "
                    "here: open a clew.trace in this process"
                )
            self._idle_blocks += 1
            return
        if self._depth:
            warn("a trace that is already recording was entered again: it goes on as one")
            self._depth += 1
            return
        if self._session is None:
            self._session = on_first_use.Session(
                self._models, self._request, self._late_model, self._is_paced, self._step_watch
            )
        try:
            self._session.start(frame, nested=bool(_active))
            if _has_temporary(self._models):
                self._session.name_models()
        except BaseException as fault:
            self._session.failed_to_start(fault)
        # From here on weak references and names are enough.
        self._models = {}
        self._depth = 1
        _active.append(self)

    def _hand_over(self) -> tuple[int, int]:
        """Have the writer write what was recorded so far; return the number of events and steps."""
        return (0, 0) if self._session is None else self._session.hand_over()

    def _abandon(self) -> None:
        """Record nothing in a process that inherited the recording by a fork."""
        self._idle_blocks, self._depth = self._depth, 0
        if self._session is not None:
            self._session.abandon()

    @property
    def path(self) -> Path | str | None:
        """Return the folder or URL that is written to, None if there is none."""
        return None if self._session is None else self._session.path

    def _saved(self, place: Path | str) -> None:
        if self._session is not None and str(place) == str(self.path):
            self._session.store.rewritten()

    def _current_run(self) -> Run:
        if self._session is None and is_disabled():
            return on_first_use.empty_run(_DISABLED)
        if self._session is None:
            raise TraceStateError(
                "nothing was recorded: run the model inside `with clew.trace(model) as t:`"
            )
        return self._session.run()


def _has_temporary(models: dict[str, nn.Module]) -> bool:
    """Return whether nobody but the caller's dictionary holds one of the models.

    A container that was made for the trace alone is gone once it has begun: what it calls the
    modules in it must be noted before.
    """
    # Held by the dictionary, by `model`, and by the call that counts.
    return any(sys.getrefcount(model) <= 3 for model in models.values())


def _innermost() -> ActiveTrace | None:
    """Return the innermost trace that records now."""
    for tracer in reversed(_active):
        session = tracer._session
        if session is not None and session.is_recording:
            return ActiveTrace(tracer, session.recorder, session.gaps.add)
    return None


register(_innermost)


@contextlib.contextmanager
def unrecorded() -> Iterator[None]:
    """Run a block that no trace records; restore the state of random numbers after it."""
    threads = [t._session.recorder.thread() for t in _active if t._session is not None]
    before = [thread.mute for thread in threads]
    try:
        for thread in threads:
            thread.set_mute(True)
        with on_first_use.undisturbed():
            yield
    finally:
        for thread, mute in zip(threads, before, strict=True):
            thread.set_mute(mute)

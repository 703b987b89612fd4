"""`clew.guard`: raise where NaN or Inf that an op produced reaches an output, a loss, a gradient.

Input: the user's program as it runs. Output: nothing, or a `NonFiniteError`. A recording of its own
keeps statistics of the last events in memory. At each place where an exception may leave
(`observe.guard_places`) only the tensors at hand are looked at; where one is not finite, the
recorded events are searched for its origin.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from clew.address import parse
from clew.errors import ClewError, NonFiniteError, warn
from clew.events.vocabulary import TAP, Label
from clew.optional_packages import optional_package
from clew.request.limits import Limits
from clew.request.switches import is_disabled
from clew.session import on_first_use
from clew.session.nonfinite_checks import NonFiniteChecks
from clew.session.tracer import Tracer, trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor, nn

    from clew.analysis.nonfinite import NonFiniteOrigin
    from clew.observe.guard_places import GuardPlaces
    from clew.run.run import Run

# About how many events are searched: what fell out before has no origin any more.
_LAST = 50_000
# Searches that find nothing to raise for may take this share of the time, after so many seconds.
_SHARE, _FREE = 0.1, 0.5
AT = ("reach", "op")

_open: list[Guard] = []


def guard(
    *, nan: bool = True, inf: bool = True, allow: Iterable[str] | str = (), at: str = "reach"
) -> Guard:
    """Raise `NonFiniteError` when NaN or Inf that an op produced reaches something that matters.

    That is a module's output, the tensor that `backward` is called on, or a gradient. The error
    names the op, its module and line, what it took, the ops before it and what usually helps. What
    came with the data, what a parameter held before, and the -inf of a mask that softmax takes away
    are no errors. `nan` and `inf` say what to raise for, `allow` lists addresses that may have it:
    `"encoder.*"`, `"op:aten.log*"`, `"line:model.py:57"`. `at="op"` raises for any that an op
    produced, also if it reaches nothing.

    >>> import torch, clew
    >>> model = torch.nn.Linear(2, 2)
    >>> try:
    ...     with clew.guard():
    ...         loss = model(torch.zeros(1, 2)).sub(1e9).relu().log().sum()
    ...         loss.backward()
    ... except clew.NonFiniteError as error:
    ...     print(error.nonfinite.event.name, error.nonfinite.hint)
    aten.log.default log of a value ≤ 0: min of input 0 is 0
    """
    if at not in AT:
        raise ClewError(f"at={at!r} is not one of {', '.join(map(repr, AT))}")
    allowed = (allow,) if isinstance(allow, str) else tuple(allow)
    for address in allowed:
        parse(address)
    if not is_disabled():
        optional_package("torch", "clew.guard")  # said here, and not by the first hook
    return Guard(nan, inf, allowed, at == "op")


class Guard:
    """A block in which NaN and Inf are errors; it may be entered again after it has ended."""

    def __init__(self, nan: bool, inf: bool, allow: tuple[str, ...], any_op: bool) -> None:
        self._nan, self._inf, self._allow, self._any_op = nan, inf, allow, any_op
        # How often the recorded events were searched since it was entered.
        self.searches = 0
        self._tracer: Tracer | None = None
        self._places: GuardPlaces | None = None

    def __enter__(self) -> Guard:
        if is_disabled():
            return self
        if self._tracer is not None:
            raise ClewError("this guard is open already: make another one with clew.guard()")
        self._tracer = trace(values="stats", limits=Limits(last=_LAST), name="clew.guard").start()
        # Threads that were there before are not part of the block.
        this = threading.get_ident()
        threads = threading.enumerate()
        self._others = {one.ident: one.name for one in threads if one.ident != this}
        # What came before this event has been raised for, or an inner guard has let it pass.
        self._since = 0
        self.searches = 0
        self._pace = SearchPace()
        session = self._tracer._session
        assert session is not None
        self._recorder = session.recorder
        native = getattr(self._recorder.values.tensors, "recording", None)
        if native is not None:
            native.skip_digests()
        self._checks = NonFiniteChecks(self._nan, self._inf, native)
        self._places = on_first_use.GuardPlaces(
            self._on_output, self._on_backward, self._after_backward, self._before_step
        )
        self._places.start()
        _open.append(self)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._tracer is None:
            return
        try:
            if exc is None and self._checks.has_new() and self._pace.has_time():
                self._search("the end of the block", is_over=True)
            if exc is None:
                self._warn_of_range()
        finally:
            self.stop()

    def stop(self) -> None:
        """Take everything away, and look at nothing more."""
        places, tracer = self._places, self._tracer
        self._places = self._tracer = None
        if self in _open:
            _open.remove(self)
            for outer in _open:
                outer._settle()
        if places is not None:
            places.stop()
        if tracer is not None and tracer.recording:
            tracer.stop()

    # Places

    def _on_output(self, module: nn.Module, tensors: Iterable[Tensor]) -> None:
        if not self._is_in_charge():
            return
        with self._guarded("the output of a module"):
            if self._any_op:
                if self._checks.has_new():
                    self._search("an op", is_over=False)
                return
            bad = [t for t in tensors if t.is_cpu and self._checks.is_bad(t)]
            if not bad or not self._pace.has_time():
                return
            is_due = self._pace.is_due(id(module))
            if is_due or any(map(self._checks.has_nan, bad)):
                self._search(f"the output of {self._name_of(module)}", bad, is_over=False)
                self._pace.was_harmless(id(module))

    def _on_backward(self, tensors: list[Tensor]) -> None:
        if not self._is_in_charge():
            return
        with self._guarded("the loss"):
            bad = [t for t in tensors if self._checks.is_bad(t)]
            if bad:
                self._search("the tensor that backward was called on", bad, is_over=False)
            self._checks.set_clean()

    def _after_backward(self) -> None:
        if not self._is_in_charge():
            return
        with self._guarded("gradients"):
            if self._checks.has_new() and self._pace.has_time():
                self._search("a gradient", is_over=False)

    def _before_step(self, gradients: list[Tensor]) -> None:
        if not self._is_in_charge():
            return
        with self._guarded("gradients"):
            if not self._checks.has_new() and not self._has_unseen():
                return
            if self._checks.is_any_bad(gradients):
                self._search("a gradient, before the optimizer uses it", is_over=False)
                self._raise_unseen()
            self._checks.set_clean()

    def _name_of(self, module: nn.Module) -> str:
        """Return the path of a module, or its class if it has none."""
        self._recorder.modules.name_given()
        entry = self._recorder.modules.entry_of(id(module))
        paths = [] if entry is None else [name.path for name in entry.names]
        return paths[0] if paths and paths[0] else type(module).__name__

    def _warn_of_range(self) -> None:
        """Warn of each line where float16 came near the end of its range."""
        if not self._checks.may_overflow():
            return
        with self._guarded("the range of float16"):
            run = self._run()
            for one in on_first_use.range_warnings(run):
                source = run.source(one.row)
                line = "" if source is None else f" at {source.file}:{source.line}"
                warn(f"{run.name(one.row)}{line}: {one.text}")

    # What is looked at

    def _is_in_charge(self) -> bool:
        """Return whether this is the innermost guard, and of the running thread."""
        this = threading.get_ident()
        return (
            self._tracer is not None
            and this not in self._others
            and next((g for g in reversed(_open) if this not in g._others), None) is self
        )

    @contextmanager
    def _guarded(self, where: str) -> Iterator[None]:
        """Let nothing but the error of the guard leave a place."""
        try:
            yield
        except NonFiniteError:
            raise
        except Exception as fault:
            self._recorder.gaps.fault(fault, where)

    def _has_unseen(self) -> bool:
        """Return whether gradients may come from code whose ops are not recorded."""
        return on_first_use.compiled_graph_count() > 0

    # The search

    def _search(self, reaches: str, tensors: Iterable[Tensor] = (), *, is_over: bool) -> None:
        """Raise if there is something to raise for."""
        begun = time.perf_counter()
        self.searches += 1
        rows = [self._mark(tensor) for tensor in tensors]
        run = self._run()
        ends = [run.row_of(event) for event in rows] or None
        rule = on_first_use.GuardRule(
            self._nan, self._inf, self._allow, self._any_op, self._since,
            frozenset(self._others.values()),
        )  # fmt: skip
        found = on_first_use.first_alarm(run, rule, ends, is_over)
        self._pace.spent += time.perf_counter() - begun
        if found is not None:
            self._settle()
            self._raise(run, found, reaches)
        self._checks.set_clean()

    def _settle(self) -> None:
        """Raise for nothing that has happened so far."""
        if self._tracer is not None:
            self._since = self._recorder.buffer.next_id()
            self._checks.set_clean()

    def _run(self) -> Run:
        assert self._tracer is not None
        return self._tracer._current_run()

    def _mark(self, tensor: Tensor) -> int:
        """Record a tensor that is not finite, so that the search finds it; return the event."""
        return self._recorder.named(Label(TAP, "guard", "guard"), tensor, None)

    def _raise(self, run: Run, found: NonFiniteOrigin, reaches: str) -> None:
        raise NonFiniteError(on_first_use.nonfinite_report(run, found, reaches), found)

    def _raise_unseen(self) -> None:
        """Raise for a gradient whose origin was not recorded, unless the data explains it."""
        if not any(one.is_alarm for one in on_first_use.nonfinite_of(self._run())):
            raise NonFiniteError(
                "a gradient is NaN or Inf before the optimizer uses it, and no recorded op made "
                "it: it comes from compiled code or another place that is not recorded. Run the "
                "step without torch.compile to see which op"
            )


class SearchPace:
    """Keep searches that find nothing to raise for from taking much of the program's time."""

    def __init__(self) -> None:
        self._begun = time.perf_counter()
        # Seconds that searches have taken.
        self.spent = 0.0
        # Module whose Inf turned out to be harmless -> how often it came, and when to search again.
        self._harmless: dict[int, tuple[int, int]] = {}

    def has_time(self) -> bool:
        """Return whether there is time for a search that may find nothing."""
        return self.spent <= _FREE + _SHARE * (time.perf_counter() - self._begun)

    def is_due(self, module: int) -> bool:
        """Count one more Inf of a module; return whether to search for where it comes from."""
        times, due = self._harmless.get(module, (0, 1))
        self._harmless[module] = times + 1, due
        return times + 1 >= due

    def was_harmless(self, module: int) -> None:
        """Search for the Inf of a module again once it has come twice as often."""
        times, _ = self._harmless[module]
        self._harmless[module] = times, 2 * times

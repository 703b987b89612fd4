"""Follow what cannot be rewritten: frames that run already, functions without source, callees.

In: a frame, a code object, or a place in the call tree, and a probe. Out: a handle that stops it.
Uses `sys.monitoring` where Python has it, and a trace function elsewhere.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType, TracebackType
from typing import Literal, TypeAlias

from clew.observe.variables.frames import monitoring, tracing
from clew.observe.variables.frames.functions import unwrap
from clew.observe.variables.frames.hooks import SILENT
from clew.observe.variables.frames.sites import Probe
from clew.observe.variables.frames.stepping import BUDGET, CodeWatch
from clew.observe.variables.frames.watched_steps import Params

# Whether to follow a call: this one and all later ones, not this one, never, or not as yet.
Answer: TypeAlias = Literal["yes", "no", "never", "later"]

_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")

_driver = monitoring if monitoring.AVAILABLE else tracing


class Following:
    """Code that is followed; `stop` ends it, and a second call does nothing."""

    def __init__(self) -> None:
        self._watches: list[CodeWatch] = []
        self._leaves: list[Callable[[], None]] = []

    def stop(self) -> None:
        leaves, self._leaves = self._leaves, []
        watches, self._watches = self._watches, []
        for leave in leaves:
            leave()
        for watch in watches:
            _driver.remove(watch)
            watch.probe = SILENT

    def __enter__(self) -> Following:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _add(self, watch: CodeWatch, running: Iterable[FrameType] = ()) -> None:
        """Begin to follow, also in frames that run the code already."""
        frames = list(running)
        for frame in frames:
            watch.join(frame)
        self._watches.append(watch)
        _driver.add(watch)
        if _driver is tracing:
            self._leaves += [tracing.join(frame) for frame in frames]


def follow_code(
    code: CodeType,
    wanted: Callable[[str], bool],
    probe: Probe,
    *,
    returns: bool = False,
    lines: bool = False,
    polls: bool = False,
) -> Following:
    """Follow every call of a code object, also those that run already; no source is needed.

    Before Python 3.12, of the calls that run already only those of this thread.
    """
    following = Following()
    running = [frame for frame in running_frames() if frame.f_code is code]
    following._add(
        CodeWatch(code, wanted, probe, returns=returns, lines=lines, polls=polls), running
    )
    del running
    for part in _comprehensions(code):
        # What `:=` binds in a comprehension is a name of the enclosing function.
        bound = _outer_names(part, wanted)
        following._add(CodeWatch(part, bound, probe, origin=code, calls=False))
    return following


def running_frames() -> Iterator[FrameType]:
    """Yield the frames that run now and can be followed: before Python 3.12, of this thread."""
    here = threading.get_ident()
    for thread, top in sys._current_frames().items():
        frame: FrameType | None = top if thread == here or monitoring.AVAILABLE else None
        while frame is not None:
            yield frame
            frame = frame.f_back


def _comprehensions(code: CodeType) -> Iterator[CodeType]:
    for const in code.co_consts:
        if isinstance(const, CodeType) and const.co_name in _COMPREHENSIONS:
            yield const
            yield from _comprehensions(const)


def _outer_names(code: CodeType, wanted: Callable[[str], bool]) -> Callable[[str], bool]:
    return lambda name: name in code.co_freevars and wanted(name)


def follow_frame(
    frame: FrameType,
    wanted: Callable[[str], bool],
    probe: Probe,
    *,
    lines: bool = False,
    polls: bool = True,
    origin: CodeType | None = None,
) -> Following:
    """Follow one frame that runs already, from where it is, until `stop` or its end.

    Before Python 3.12 it must be a frame of this thread. `entered` and `left` are not called.
    """
    following = Following()
    _join(following, frame, wanted, probe, lines=lines, polls=polls, origin=origin)
    return following


def _join(
    following: Following,
    frame: FrameType,
    wanted: Callable[[str], bool],
    probe: Probe,
    *,
    lines: bool,
    polls: bool,
    budget: int | None = None,
    origin: CodeType | None = None,
) -> None:
    watch = CodeWatch(
        frame.f_code, wanted, probe,
        lines=lines, polls=polls, only=id(frame), budget=budget, origin=origin,
    )  # fmt: skip
    following._add(watch, [frame])


@dataclass(frozen=True, slots=True)
class CalleeOptions:
    """What is reported of the functions that are called below a place; see `follow_calls`."""

    wanted: Callable[[str], bool]
    lines: bool
    budget: int
    inside: bool
    params: Params


class FollowingCalls(Following):
    """The functions called below a place; `spent` lists the lines whose budget ran out.

    Can be started again after a stop: code that is never followed is not asked about again.
    """

    def __init__(
        self,
        in_scope: Callable[[CodeType], bool],
        worthwhile: Callable[[CodeType, FrameType], Answer] | None,
        options: CalleeOptions,
    ) -> None:
        super().__init__()
        self.options = options
        self.probe: Probe = SILENT
        self.extent = _Extent()
        self._worthwhile = worthwhile
        # How often code in scope was called without a call that is worth following.
        self._idle: dict[int, tuple[CodeType, int]] = {}
        self._in_scope = in_scope
        self._known: dict[int, tuple[CodeType, _Callee | None]] = {}
        # Valid from one start to the next: code that is never followed, and watches on other code.
        self._never: dict[int, tuple[CodeType, _Callee | None]] = {}
        self._made: dict[int, _Callee] = {}

    @property
    def spent(self) -> list[tuple[CodeType, int]]:
        """Return where something ran so often that it was no longer reported: code and line."""
        found: list[tuple[CodeType, int]] = []
        for code, watch in list(self._known.values()):
            if watch is not None:
                lines = watch.spent_lines() | ({code.co_firstlineno} if watch.is_over() else set())
                found += [(code, line) for line in sorted(lines)]
        return found

    def called(self, code: CodeType, frame: FrameType) -> bool:
        """Watch the code of a call that begins, if in scope. Return whether to be asked again."""
        known = self._known.get(id(code))
        if known is None:
            answer = self._answer(code, frame)
            if answer == "later":
                return False
            known = self._ask(code, answer)
            if known is None:
                return True
            self._known[id(code)] = known
            if known[1] is not None:
                self._add(known[1])
        return known[1] is not None and not known[1].is_over()

    def _answer(self, code: CodeType, frame: FrameType) -> Answer:
        if not self._in_scope(code):
            return "never"
        return "yes" if self._worthwhile is None else self._worthwhile(code, frame)

    def _ask(self, code: CodeType, answer: Answer) -> tuple[CodeType, _Callee | None] | None:
        """Return the called code with its watch, if it gets one; None if not yet decided."""
        if answer == "yes":
            return code, self._watch(code)
        if answer == "never":
            known = self._never[id(code)] = (code, None)
            return known
        _, count = self._idle.get(id(code), (code, 0))
        self._idle[id(code)] = (code, count + 1)
        # After that many calls not worth following, it is not asked about again.
        return None if count < self.options.budget else (code, None)

    def ask_again(self) -> None:
        """Ask again about code of which the answer was "later"."""
        _driver.ask_again()

    def _watch(self, code: CodeType, kind: type[_Callee] | None = None) -> _Callee:
        watch = self._made.get(id(code))
        if watch is None:
            watch = self._made[id(code)] = (kind or _Callee)(code, self)
        watch.renew(self.probe)
        return watch

    def start(self, root: Callable[..., object] | FrameType, probe: Probe) -> None:
        """Follow a function, or a frame from where it is, and what is called below it."""
        options = self.options
        self.probe = probe
        self.extent = _Extent()
        self._known = dict(self._never)
        self._idle.clear()
        try:
            if isinstance(root, FrameType):
                self.extent.enter()
                _join(
                    self, root, options.wanted, probe,
                    lines=options.lines, polls=True, budget=options.budget,
                )  # fmt: skip
            else:
                for function in unwrap(root):
                    self._add_root(function.__code__)
            if options.inside:
                _driver.add_caller(self.called)
        except BaseException:
            self.stop()
            raise

    def _add_root(self, code: CodeType) -> None:
        watch = self._watch(code, _Root)
        self._known[id(code)] = (code, watch)
        self._add(watch)

    def stop(self) -> None:
        if self.options.inside:
            _driver.remove_caller(self.called)
        super().stop()
        self.probe = SILENT


class _Callee(CodeWatch):
    """A function in scope: its calls below the root, as often as the budget allows."""

    def __init__(self, code: CodeType, of: FollowingCalls) -> None:
        asked = of.options
        super().__init__(
            code, asked.wanted, of.probe,
            returns=True, lines=asked.lines, polls=asked.inside, budget=asked.budget,
            inside=asked.inside, params=asked.params,
        )  # fmt: skip
        self._of = of
        self._count = 0

    def renew(self, probe: Probe) -> None:
        super().renew(probe)
        self._count = 0

    def is_over(self) -> bool:
        return self._count >= self._of.options.budget

    def entered(self, frame: FrameType) -> bool:
        if not self._of.extent.covers():
            return True
        if self.is_over():
            return False
        self._count += 1
        return super().entered(frame)

    def step(self, frame: FrameType, offset: int) -> bool:
        return super().step(frame, offset) and not (self.is_over() and not self.calls)


class _Root(_Callee):
    """The function below which calls are followed: always reported, and it opens the extent."""

    def is_over(self) -> bool:
        return False

    def entered(self, frame: FrameType) -> bool:
        self._of.extent.enter()
        return super().entered(frame)

    def returned(self, frame: FrameType, value: object) -> None:
        super().returned(frame, value)
        self._of.extent.leave()

    def raised(self, frame: FrameType, error: BaseException) -> None:
        super().raised(frame, error)
        self._of.extent.leave()


class _Extent:
    """The part of the program below a place: its thread, and threads begun meanwhile."""

    def __init__(self) -> None:
        self._depth: dict[int, int] = {}
        self._older: set[int] = set()

    def enter(self) -> None:
        if not self._depth:
            # Not `ident`, which a new thread inherits from one that has ended.
            self._older = {thread.native_id or 0 for thread in threading.enumerate()}
        here = threading.get_ident()
        self._depth[here] = self._depth.get(here, 0) + 1

    def leave(self) -> None:
        here = threading.get_ident()
        left = self._depth.get(here, 1) - 1
        if left:
            self._depth[here] = left
        else:
            self._depth.pop(here, None)

    def covers(self) -> bool:
        here = threading.get_ident()
        if here in self._depth or not self._depth:
            return bool(self._depth)
        return threading.get_native_id() not in self._older


def follow_calls(
    root: Callable[..., object] | FrameType,
    in_scope: Callable[[CodeType], bool],
    wanted: Callable[[str], bool],
    probe: Probe,
    *,
    lines: bool = False,
    budget: int = BUDGET,
    worthwhile: Callable[[CodeType, FrameType], Answer] | None = None,
    inside: bool = True,
    params: Params = "wanted",
) -> FollowingCalls:
    """Follow `root` and every function in scope that runs below it, with all that it binds.

    Follow a frame until `stop`, with whatever is called meanwhile. What runs more often than
    `budget` times at one place is no longer reported there; `spent` lists those places. Where only
    some functions are of interest, `worthwhile` is asked at each call; after a "yes" all calls of
    that code are followed, and after a "later" none is asked about until `ask_again`. Without
    `inside`, only the calls of the function `root` are reported: neither what it does, nor what it
    calls. For `params` see `CodeWatch`.
    """
    options = CalleeOptions(wanted, lines, budget, inside, params)
    following = FollowingCalls(in_scope, worthwhile, options)
    following.start(root, probe)
    return following


def join_thread() -> Callable[[], None]:
    """Follow on this thread too what is followed; call the result to end that."""
    leave: Callable[[], None] = _driver.join_thread()
    return leave

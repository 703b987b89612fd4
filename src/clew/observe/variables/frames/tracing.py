"""Learn what functions do from `sys.settrace` (before Python 3.12).

In: watches on code objects, and functions to ask about other calls. Out: calls of their methods.
A trace function that was set before still receives everything, and is set again afterwards. If none
was, code that nobody follows is passed over: by a native library at almost no cost (`clew build`),
else by the trace function, which Python then calls at each call.
"""

from __future__ import annotations

import atexit
import dis
import functools
import inspect
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType, ModuleType
from typing import Any, Protocol

from clew.frame_locals import release_locals
from clew.native.loading import loaded_tracing
from clew.observe.variables.frames.stepping import CodeWatch

_lock = threading.RLock()
_watches: dict[int, list[CodeWatch]] = {}
_callers: list[Callable[[CodeType, FrameType], bool]] = []
_RETURN = dis.opmap.get("RETURN_VALUE")
_YIELD = dis.opmap.get("YIELD_VALUE")
_YIELD_FROM = dis.opmap.get("YIELD_FROM", -1)
_GENERATOR = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class PassedOver(Protocol):
    """Code that nobody follows, so that its calls are not traced."""

    def pass_over(self, code: CodeType, /) -> object:
        """Trace no call of a code object that begins from now on."""

    def trace_again(self, code: CodeType, /) -> object:
        """End that for a code object."""

    def trace_all_again(self) -> object:
        """End that for all code objects."""

    def stop(self) -> object:
        """Trace all calls."""


class _PassedOverInPython:
    """The trace function passes over code itself, where there is no native library for it."""

    def __init__(self) -> None:
        # Held, so that no other code gets its id.
        self._codes: dict[int, CodeType] = {}
        self._forget_repeated: Callable[[], None] = _nothing

    def trace_function(self, choose: Callable[..., Any]) -> Callable[..., Any]:
        """Return a trace function that calls `choose` for code that is not passed over."""
        codes = self._codes
        # Code that is called again and again is recognized without a search in `codes`.
        repeated: CodeType | None = None
        last: CodeType | None = None

        def called(frame: FrameType, event: str, arg: object) -> Any:
            nonlocal repeated, last
            code = frame.f_code
            if code is repeated:
                return None
            if id(code) not in codes:
                return choose(frame, event, arg)
            if code is last:
                repeated = code
                if id(code) not in codes:  # another thread has begun to watch it meanwhile
                    repeated = None
                    return choose(frame, event, arg)
            last = code
            return None

        def forget() -> None:
            nonlocal repeated
            repeated = None

        self._forget_repeated = forget
        return called

    def pass_over(self, code: CodeType) -> None:
        self._codes[id(code)] = code

    def trace_again(self, code: CodeType) -> None:
        self._codes.pop(id(code), None)
        self._forget_repeated()

    def trace_all_again(self) -> None:
        self._codes.clear()
        self._forget_repeated()

    stop = trace_all_again


class _Tracer:
    """The trace function of this process while anything is watched."""

    def __init__(self) -> None:
        self.before = sys.gettrace()
        self.before_threads = getattr(threading, "_trace_hook", None)
        self.thread = threading.get_ident()
        self.active = True
        # The same objects that are set: a bound method is a new object at each access.
        self.function: Callable[..., Any] = self._called
        self.thread_function: Callable[..., Any] = self._called_in_thread
        self.passed_over = self._pass_over()

    def _pass_over(self) -> PassedOver:
        """Return what passes over code; another trace function is to receive every call."""
        if self.before is None and self.before_threads is None:
            native: Any = _native()
            if native is not None and native.start(self.function):
                self.thread_function = self.function
                return native  # type: ignore[no-any-return]
        in_python = _PassedOverInPython()
        if self.before is None:
            self.function = in_python.trace_function(self._called)
        return in_python

    def start(self) -> None:
        sys.settrace(self.function)
        threading.settrace(self.thread_function)

    def stop(self) -> None:
        self.active = False
        self.passed_over.stop()
        if threading.get_ident() == self.thread and sys.gettrace() is self.function:
            sys.settrace(self.before)
        threading.settrace(self.before_threads)

    def _called(self, frame: FrameType, event: str, arg: object) -> Any:
        return self._choose(frame, event, arg, self.before)

    def _called_in_thread(self, frame: FrameType, event: str, arg: object) -> Any:
        return self._choose(frame, event, arg, self.before_threads)

    def _choose(self, frame: FrameType, event: str, arg: object, before: Any) -> Any:
        theirs = before(frame, event, arg) if before is not None else None
        if not self.active:
            return theirs
        code = frame.f_code
        asked_again = [asked(code, frame) for asked in list(_callers)]
        if id(code) not in _watches and not any(asked_again):
            self.passed_over.pass_over(code)
            if id(code) in _watches:  # another thread has begun to watch it meanwhile
                self.passed_over.trace_again(code)
        if id(code) not in _watches:
            return theirs
        ours = _Local(theirs, code)
        ours.handle(frame, "call", arg)
        # How a generator handles an exception is seen in its instructions.
        is_generator = bool(code.co_flags & _GENERATOR)
        frame.f_trace_opcodes = bool(ours.offsets) or is_generator
        if theirs is None and not is_generator:
            # Instructions show lines too. A generator may outlive the watch, and be debugged.
            frame.f_trace_lines = False
        return ours.trace


def _native() -> ModuleType | None:
    """Return the native library that passes over code, if it is there and works."""
    found = loaded_tracing().module
    return found if found is not None and _notices_all_calls(found) else None


@functools.cache
def _notices_all_calls(native: Any) -> bool:
    """Return whether the library notices a call that Python has learned to make by itself.

    Try it with `item[index]`, which the first versions of 3.11 may not show to it.
    """
    traced: list[CodeType] = []

    class Item:
        def __getitem__(self, index: int) -> int:
            return index

    def read(item: Item) -> None:
        for index in range(200):
            item[index]

    def called(frame: FrameType, event: str, arg: object) -> None:
        traced.append(frame.f_code)

    read(Item())
    if not native.start(called):
        return False
    native.pass_over(read.__code__)
    sys.settrace(called)
    try:
        read(Item())
    finally:
        sys.settrace(None)
        native.stop()
    return read.__code__ not in traced and Item.__getitem__.__code__ in traced


class _Local:
    """The trace function of one frame: calls the watches, and any other trace function."""

    __slots__ = ("error", "handled", "offsets", "theirs")

    def __init__(self, theirs: Any, code: CodeType) -> None:
        self.theirs = theirs
        self.error: BaseException | None = None
        watches = _watches.get(id(code), ())
        # The instructions that matter, to skip all others at once.
        self.offsets: set[int] = set().union(*(watch.steps.offsets for watch in watches))
        self.handled: set[int] = watches[0].map.handled if watches else set()

    def trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            at = frame.f_lasti
            if at in self.handled:
                self.error = None
            if at in self.offsets:
                for watch in tuple(_watches.get(id(frame.f_code), ())):
                    watch.step(frame, at)
            return self.trace
        if self.theirs is not None:
            self.theirs = self.theirs(frame, event, arg)
        if event != "line":
            self.handle(frame, event, arg)
        return self.trace

    def handle(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "exception":
            # Stored, as there is no second event when it leaves after a `finally`.
            self.error = arg[1]
        elif event == "return":
            error, self.error = self.error, None
        for watch in list(_watches.get(id(frame.f_code), ())):
            if event == "call":
                _begin(watch, frame)
            elif event == "return":
                _end(watch, frame, arg, error)


def _begin(watch: CodeWatch, frame: FrameType) -> None:
    if frame.f_lasti < 0 or frame.f_lasti in watch.map.begins:
        watch.entered(frame)
    else:
        watch.resumed(frame, _yielded_before(watch, frame))


def _yielded_before(watch: CodeWatch, frame: FrameType) -> bool:
    """Return whether the frame goes on after a `yield`; from 3.11 on, not by an exception."""
    at = frame.f_lasti if sys.version_info < (3, 11) else frame.f_lasti - 2
    return at in watch.map.yields


def _end(watch: CodeWatch, frame: FrameType, value: object, error: BaseException | None) -> None:
    if _suspends(frame) and not (value is None and error is not None):
        watch.yielded(frame, frame.f_lasti, value)
    elif _opcode(frame) == _RETURN:
        watch.returned(frame, value)
    else:
        watch.raised(frame, error or GeneratorExit())


def _opcode(frame: FrameType, ahead: int = 0) -> int | None:
    code, at = frame.f_code.co_code, frame.f_lasti + ahead
    return code[at] if 0 <= at < len(code) else None


def _suspends(frame: FrameType) -> bool:
    if not frame.f_code.co_flags & _GENERATOR:
        return False
    # 3.10 stops before the instruction that delegates, and runs it again.
    return _opcode(frame) in (_YIELD, _YIELD_FROM) or _opcode(frame, 2) == _YIELD_FROM


_tracer: _Tracer | None = None


def _start() -> None:
    global _tracer
    if _tracer is None:
        _tracer = _Tracer()
        _tracer.start()


def _stop_if_idle() -> None:
    global _tracer
    if _tracer is not None and not _watches and not _callers:
        _tracer.stop()
        _tracer = None


@atexit.register
def _stop_at_exit() -> None:
    """Stop before Python clears the modules, as what runs then would be traced without them."""
    global _tracer
    with _lock:
        if _tracer is not None:
            _tracer.stop()
            _tracer = None


def add(watch: CodeWatch) -> None:
    """Begin to notify a watch about its code, in calls that begin from now on."""
    with _lock:
        _watches.setdefault(id(watch.code), []).append(watch)
        if _tracer is not None:
            _tracer.passed_over.trace_again(watch.code)
        _start()


def remove(watch: CodeWatch) -> None:
    with _lock:
        watches = _watches.get(id(watch.code), [])
        if watch in watches:
            watches.remove(watch)
        if not watches:
            _watches.pop(id(watch.code), None)
        _stop_if_idle()


def add_caller(asked: Callable[[CodeType, FrameType], bool]) -> None:
    """Call `asked` at every call; if it returns False, never again for that code."""
    with _lock:
        _callers.append(asked)
        ask_again()
        _start()


def remove_caller(asked: Callable[[CodeType, FrameType], bool]) -> None:
    with _lock:
        if asked in _callers:
            _callers.remove(asked)
        _stop_if_idle()


def ask_again() -> None:
    """Ask again about calls of code for which the answer was False."""
    if _tracer is not None:
        _tracer.passed_over.trace_all_again()


def join(frame: FrameType) -> Callable[[], None]:
    """Trace a frame of this thread that runs already; call the result, below it, to stop."""
    opcodes, number = frame.f_trace_opcodes, id(frame)
    ours = _Local(frame.f_trace, frame.f_code)
    frame.f_trace = ours.trace
    frame.f_trace_opcodes = True

    def leave() -> None:
        # Searched, not stored: a stored frame would keep all its variables alive.
        found: FrameType | None = sys._getframe(1)
        while found is not None and id(found) != number:
            found = found.f_back
        if found is not None and getattr(found.f_trace, "__self__", None) is ours:
            found.f_trace = ours.theirs
            found.f_trace_opcodes = opcodes
            release_locals(found)

    return leave


def join_thread() -> Callable[[], None]:
    """Trace this thread too, if it began before any watch; call the result to end that."""
    tracer = _tracer
    if tracer is None or threading.get_ident() == tracer.thread or sys.gettrace() is not None:
        return _nothing
    sys.settrace(tracer.function)

    def leave() -> None:
        if sys.gettrace() is tracer.function:
            sys.settrace(None)

    return leave


def _nothing() -> None:
    """Do nothing, as there is nothing to undo."""

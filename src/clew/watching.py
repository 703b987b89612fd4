"""`clew.watch`: follow variables through a function and what it calls, as text and as a trace.

A decorator and a context manager. Input: the user's program as it runs. Output: lines of text to
the place that `out=` names, and variable events in the active trace, or in the watch's own trace.
Works with NumPy alone: torch is used when the program has imported it, never imported here.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import logging
import os
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from clew.errors import ClewError
from clew.events.model import Gap
from clew.events.vocabulary import VALUES
from clew.events.watch_events import WatchEvent
from clew.observe.dataloader import (
    LoaderSource,
    WorkerPlan,
    index_text,
    stretch,
    worker_recording,
)
from clew.observe.variables.frames import join_thread
from clew.observe.variables.frames.functions import unwrap
from clew.observe.variables.selector import watched_names
from clew.observe.variables.user_code import Scope
from clew.observe.variables.watched import WatchSource
from clew.observe.variables.watched_calls import WatchOptions
from clew.record.active import active_trace
from clew.request.switches import is_disabled
from clew.session.worker_start import begin_worker
from clew.store.read.worker_files import WorkerFiles
from clew.watch_output import Output, output_for
from clew.watch_processes import is_child, own_worker, remove_at_exit
from clew.watch_trace import WatchTrace

if TYPE_CHECKING:
    from clew.traces import Trace

_F = TypeVar("_F", bound=Callable[..., Any])

# How many times one line is followed: if variables are named, and if all are followed.
BUDGET_NAMED, BUDGET = 10_000, 1_000


def watch(
    *names: str,
    values: str = "stats",
    out: str | os.PathLike[str] | TextIO | logging.Logger | bool | None = None,
    lines: bool = False,
    stack: bool = False,
    on_change: bool = True,
    scope: Iterable[str] = (),
    depth: int | None = None,
    repeats: int = 3,
    budget: int | None = None,
) -> Watch:
    """Print and record each change of the named variables, in a function and what it calls.

    A decorator and a context manager. A name is a variable (`video`), a path inside one
    (`self.cache.k`) or an address (`data.py:load.video`); without names, all tensors and arrays
    are followed. `values` is `"meta"`, `"stats"`, `"fingerprint"` or `"full"`. `out` is where the
    text goes: None for standard output, a stream, a `logging` logger, False for nowhere, or a path,
    for one file per process and thread with `CLEW_TAG` in its name. `lines` prints lines as they
    run, `stack` the whole call stack. `on_change=False` records every binding, changed or not.
    `scope` names the files or packages to step into, by default all that are not installed ones,
    `depth` how far. `repeats` is how often something in a loop is printed, `budget` how often it is
    followed.

    >>> import numpy as np, clew
    >>> @clew.watch("y", out=False)
    ... def double(x):
    ...     y = x.astype("f4")
    ...     y *= 2
    ...     return y
    >>> result = double(np.arange(3))
    >>> [event.address for event in double.watch.trace.variables]
    [...double.y#0', ...double.y#1', ...double.return#0']
    """
    if values not in VALUES:
        known = ", ".join(map(repr, VALUES))
        raise ClewError(f"values={values!r} is not one of {known}")
    most = (BUDGET_NAMED if names else BUDGET) if budget is None else budget
    options = WatchOptions(watched_names(names), values, lines, stack, on_change, depth, most)
    only = (scope,) if isinstance(scope, str) else tuple(scope)
    return Watch(options, only, output_for(out, repeats, stack))


class Watch:
    """Variables that are watched; `with` it, or decorate a function with it."""

    def __init__(
        self,
        options: WatchOptions,
        scope: tuple[str, ...],
        output: Output | None,
        keeps: bool = True,
    ) -> None:
        self._options = options
        self._keeps = keeps
        self._scope = scope
        self._output = output
        self._own: WatchTrace | None = None
        self._last: Trace | None = None
        self._lock = threading.RLock()
        # The names of this watch's functions, the same in every process that has them.
        self._keys: list[str] = []
        # How many blocks are open that follow nothing, with CLEW_DISABLE=1.
        self._idle_blocks = 0
        self._blocks: list[tuple[WatchSource, LoaderSource, Callable[[], None]]] = []
        # The source that follows the decorated function, and how many calls need it.
        self._sources: dict[int, tuple[WatchSource, int]] = {}
        # Sources of functions that are not called now, for the next call.
        self._rested: dict[int, WatchSource] = {}

    @property
    def trace(self) -> Trace:
        """Return what was recorded: the `clew.trace` it ran in, else the watch's own trace."""
        return self._own_trace() if self._last is None else self._last

    @property
    def files(self) -> list[str]:
        """Return the files that this process has written, if `out=` is a path."""
        return [] if self._output is None else self._output.files()

    def __repr__(self) -> str:
        names = ", ".join(a.text for a in self._options.names.addresses) or "all tensors and arrays"
        return f"<Watch {names}>"

    # As a context manager

    def __enter__(self) -> Watch:
        if is_disabled():
            self._idle_blocks += 1
            return self
        frame = sys._getframe(1)
        source = self._source(frame.f_code.co_filename)
        workers = self._loader_source(source)
        self._blocks.append((source, workers, join_thread()))
        try:
            workers.start()
            source.start_block(frame)
            _running.append(source)
        except Exception as fault:
            source.recorder.gaps.fault(fault, "the block")
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._idle_blocks:
            self._idle_blocks -= 1
            return
        source, workers, leave = self._blocks.pop()
        leave()
        workers.stop()
        try:
            workers.close()
        except Exception as fault:
            source.recorder.gaps.fault(fault, "the events of workers")
        self._stop(source, error)

    def _loader_source(self, source: WatchSource) -> LoaderSource:
        """Make the source that lets the workers of DataLoaders watch the same variables."""
        plan = WorkerPlan(
            watch=tuple(address.text for address in self._options.names.addresses),
            values=self._options.values,
            on_change=self._options.on_change,
            scope=self._scope,
        )
        return LoaderSource(source.recorder, plan, begin_worker, WorkerFiles, source.report.on_gap)

    # As a decorator

    def __call__(self, function: _F) -> _F:
        """Watch every call of a function, all into the same trace."""
        if isinstance(function, staticmethod | classmethod):
            return type(function)(self(function.__func__))
        if isinstance(function, functools.partial):
            whole: Any = functools.partial(self(function.func), *function.args, **function.keywords)
            whole.__wrapped__ = function  # and nothing that could not be copied with it
            return whole  # type: ignore[no-any-return]
        wrapped = self._wrapped(_followable(function))
        wrapped.watch = self
        others = self._options.others
        if others is not None and not self._options.stack:
            others.register(inspect.unwrap(function).__code__, self._options.names)
        self._keys.append(f"{function.__module__}:{function.__qualname__}")
        remove_at_exit()
        return wrapped  # type: ignore[no-any-return]

    def _wrapped(self, function: Callable[..., Any]) -> Any:
        watching = self._watching
        if inspect.isasyncgenfunction(function):

            @functools.wraps(function)
            async def watched_stream(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
                with watching(function):
                    inner = function(*args, **kwargs)
                    async with contextlib.aclosing(_relayed(inner)) as items:
                        reply = None
                        with contextlib.suppress(StopAsyncIteration):
                            while True:
                                reply = yield await items.asend(reply)

            return watched_stream
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def watched_coroutine(*args: Any, **kwargs: Any) -> Any:
                with watching(function):
                    return await function(*args, **kwargs)

            return watched_coroutine
        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def watched_generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
                with watching(function):
                    return (yield from function(*args, **kwargs))

            return watched_generator

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            with self._sent_to_parent(function, args), watching(function):
                return function(*args, **kwargs)

        return watched

    @contextlib.contextmanager
    def _watching(self, function: Callable[..., Any]) -> Iterator[None]:
        """Follow a function while one of its calls runs; calls at the same time share it."""
        if is_disabled():
            yield
            return
        key = id(function)
        with self._lock:
            found = self._sources.get(key)
            if found is None:
                source = self._begin(function)
                count = 0
            else:
                source, count = found
            self._sources[key] = (source, count + 1)
            leave = join_thread()
        error: BaseException | None = None
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            leave()
            with self._lock:
                source, count = self._sources[key]
                if count > 1:
                    self._sources[key] = (source, count - 1)
                else:
                    del self._sources[key]
                    if source in _running:  # and not left behind by a fork
                        self._rested[key] = source
                    self._stop(source, error, called=error is None)

    def _sent_to_parent(
        self, function: Callable[..., Any], args: tuple[Any, ...]
    ) -> contextlib.AbstractContextManager[None]:
        """Let the parent of a child process read what a call records when the call is over."""
        own = self._own_trace() if is_child() and not is_disabled() else None
        if own is None or own.sink is None:
            return contextlib.nullcontext()
        is_item = function.__name__ == "__getitem__" and len(args) > 1
        return stretch(own.sink, own.recorder, index_text(args[1]) if is_item else None)

    def _begin(self, function: Callable[..., Any]) -> WatchSource:
        code = inspect.unwrap(function).__code__
        source = self._source(code.co_filename, self._rested.pop(id(function), None))
        try:
            source.start_function(function)
            _running.append(source)
        except Exception as fault:
            source.recorder.gaps.fault(fault, function.__qualname__)
        return source

    # Recording

    def _source(self, file: str, before: WatchSource | None = None) -> WatchSource:
        """Return a source that records into the active trace, or else into the watch's own trace.

        Return `before`, the source of the last call, if it records into that trace already.
        """
        active, elsewhere = active_trace(), worker_recording()
        gap: Callable[[Gap], Any]
        if active is not None:
            self._last, recorder, gap = active
        elif elsewhere is not None:  # the parent of this worker records
            recorder, gap = elsewhere, _ignored
        else:
            own = self._own_trace()
            self._last, recorder, gap = own, own.recorder, own.gaps.add
        if before is not None and before.recorder is recorder:
            return before
        show = None if self._output is None else self._show
        source = WatchSource(recorder, self._options, Scope(self._scope, file), show, gap)
        source.calls.worker = own_worker()
        return source

    def _own_trace(self) -> WatchTrace:
        if self._own is None or self._own.is_foreign:
            self._own = WatchTrace(self._keys, self._options.values, self._keeps)
        self._own.learn_torch()
        return self._own

    def _crashed(self, source: WatchSource, error: BaseException | None) -> None:
        ordinary = (StopIteration, StopAsyncIteration, GeneratorExit)
        own = self._own
        if error is None or isinstance(error, ordinary) or own is None:
            return
        if source.recorder is own.recorder:
            own.crashed(error)

    def _stop(self, source: WatchSource, error: BaseException | None, called: bool = False) -> None:
        if source.abandoned:  # by a fork; the parent process reports everything
            return
        self._crashed(source, error)
        if source in _running:
            _running.remove(source)
        try:
            source.stop()
            if called and source.calls.is_unseen() and _is_compiler_used():
                source.report.say_compiled()
            source.report.say_missed()
            if self._own is not None and self._own.sink is not None:
                self._own.recorder.drain()
            if self._output is not None:
                self._output.flush()
        except Exception as fault:
            source.recorder.gaps.fault(fault, "the end of a watch")

    def _show(self, event: WatchEvent) -> None:
        if self._output is not None:
            self._output.show(event)


def _is_compiler_used() -> bool:
    """Return whether torch has compiled anything in this process."""
    if "torch._dynamo" not in sys.modules:
        return False
    return bool(importlib.import_module("clew.torch_compat").compiled_graph_count())


def _ignored(gap: Gap) -> bool:
    return False


# Sources that follow something now, and their forks.
_running: list[WatchSource] = []


def _forked_child() -> None:
    """Stop following, in a forked child, what the parent follows."""
    while _running:
        with contextlib.suppress(Exception):
            _running.pop().abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked_child)


def _followable(function: Any) -> Callable[..., Any]:
    """Return a Python function as it is; for anything else raise an error that says what to do."""
    if isinstance(function, type) or not callable(function):
        what = f"the class {function.__name__}" if isinstance(function, type) else repr(function)
        raise ClewError(
            f"clew.watch decorates functions, and was given {what}; decorate one of its methods, "
            "or write `with clew.watch():` around the code"
        )
    if not unwrap(function):
        name = getattr(function, "__name__", type(function).__name__)
        raise ClewError(
            f"clew.watch follows functions written in Python, and {name} is built in; "
            "watch the function that calls it"
        )
    if not hasattr(function, "__qualname__"):
        cls = type(function).__name__
        remedy = f"{cls}.__call__ where the class is written"
        if hasattr(function, "forward"):  # a module, which has to stay one
            remedy = f"{cls}.forward, or this one's alone: it.forward = decorator(it.forward)"
        raise ClewError(
            f"clew.watch decorates functions, and was given an object of class {cls}; decorate "
            f"{remedy}"
        )
    return function  # type: ignore[no-any-return]


async def _relayed(inner: AsyncGenerator[Any, Any]) -> AsyncGenerator[Any, Any]:
    """Pass on an asynchronous generator, with everything that is sent or thrown into it."""
    send: Callable[[Any], Any] = inner.asend
    value: Any = None
    while True:
        try:
            item = await send(value)
        except StopAsyncIteration:
            return
        try:
            send, value = inner.asend, (yield item)
        except GeneratorExit:
            await inner.aclose()
            raise
        except BaseException as error:
            send, value = inner.athrow, error

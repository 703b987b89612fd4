"""Record a compiled region as one opaque call, or make it run eagerly on request.

Input: runs of compiled graphs. Output: one op record named `compiled` for each. What happens
inside it, or inside a scripted module, is not seen, and coverage says so.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import threading
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import nn

from clew.events.model import Gap
from clew.events.vocabulary import BACKWARD
from clew.frame_locals import first_argument, some_locals
from clew.keep.nesting import describe
from clew.program_errors import error_text, mark
from clew.record.recorder import Recorder
from clew.record.thread_state import FRAME, NAME, DirectCall, ThreadState
from clew.torch_compat import (
    COMPILED_CALL,
    GLOBAL_HOOKS,
    WRAPPED_CALL,
    around_compiling,
    autograd_number,
    compiled_graph_class,
    compiled_graph_count,
    compiled_inside,
    current_autograd_node,
    is_compiled,
    is_compiled_in_place,
    is_dynamo_graph,
    is_dynamo_loaded,
    is_scripted,
    may_be_scripted,
    next_autograd_number,
)

# The filter of warnings that leaves out what torch says of hooks of all modules.
_EXTRA_CALL = (
    "ignore",
    re.compile("Using `torch.compile\\(module\\)` when there are global hooks", re.IGNORECASE),
    Warning,
    None,
    0,
)


# Modules whose hooks Dynamo folds away in compiled code, but still guards on.
_FOLDED = ("clew.observe.modules", "clew.observe.automatic_steps")


class CompiledGraph:
    """The subject of the record of a compiled graph's run."""

    def __str__(self) -> str:
        return "compiled"


_SUBJECT = CompiledGraph()


def _ignore(module: nn.Module) -> None:
    """Do nothing with a wrapper."""


class CompiledSource:
    """Records runs of compiled graphs for the time of one recording."""

    def __init__(
        self, recorder: Recorder, how: str, on_gap: Callable[[Gap], Any], follows_code: bool
    ) -> None:
        self._recorder = recorder
        self._follows_code = follows_code
        self._aside: HooksAside | None = None
        self._how = how
        self._on_gap = on_gap
        self._undo: list[Callable[[], None]] = []
        self._watching = False
        self._graphs = 0

    def start(self) -> None:
        """Prepare for the code that is compiled already; `on_wrapper` handles later wrappers."""
        if self._how == "opaque":
            self._recorder.modules.on_wrapper = self._on_wrapper
        if not is_dynamo_loaded():
            return  # nothing is compiled yet
        self._graphs = compiled_graph_count()
        self._undo.append(silence_extra_call())
        self._put_aside()
        if self._how == "eager":
            stance = torch.compiler.set_stance("force_eager")
            self._undo.append(functools.partial(stance.__exit__, None, None, None))
        else:
            # To ask each module is slow, and of no use where something was compiled before.
            is_loaded = compiled_graph_class(load=False) is not None
            modules = self._recorder.modules
            self._watch(not is_loaded and modules.any_compiled(is_compiled, COMPILED_CALL))

    def stop(self) -> None:
        """Undo what `start` did, and report what could not be seen."""
        if self._undo:
            with contextlib.ExitStack() as stack:
                for undo in self._undo:
                    stack.callback(undo)
            self._undo = []
        self._recorder.modules.on_wrapper = _ignore
        graphs = compiled_graph_count()
        if graphs and self._how == "opaque":
            self._say_unnamed()
        made = graphs - self._graphs - (0 if self._aside is None else self._aside.graphs)
        self._aside = None
        if made > 0 and self._how == "opaque":
            if not self._watching:
                self._on_gap(
                    Gap("compiled regions", "",
                        "the compiler was first loaded inside the trace, too late to be watched",
                        "run the compiled code once before the block")
                )  # fmt: skip
            self._on_gap(
                Gap("compilation", "",
                    f"{made} graph{'s were' if made > 1 else ' was'} compiled while the trace's "
                    "hooks were in place, and will be compiled once more without them",
                    "run the compiled code once before the block")
            )  # fmt: skip
        self._watching = False
        modules = self._recorder.modules
        for name in modules.called if any(map(may_be_scripted, modules.classes)) else ():
            if is_scripted(name.entry.ref(), name.cls):
                self._on_gap(
                    Gap("a scripted module", name.path or "the root module",
                        "TorchScript runs it: modules called inside it and its own source lines "
                        "are not seen", "trace the module it was made from")
                )  # fmt: skip

    def _say_unnamed(self) -> None:
        """Report where a backend ran a graph op by op, without the modules it was made from."""
        table = self._recorder.modules
        called = [(name, name.entry.ref()) for name in table.called]
        live = [(name.path, module) for name, module in called if module is not None]
        inner = [(path, compiled_inside(module)) for path, module in live]
        paths = [path for path, m in inner if m is not None and not table.entries[id(m)].calls]
        for path in paths or [path for path, module in live if is_dynamo_graph(module)]:
            self._on_gap(_region(path, "it ran compiled, without the modules inside it"))

    def _on_wrapper(self, module: nn.Module) -> None:
        if is_compiled(module):
            self._put_aside()
            self._watch(load=True)

    def _put_aside(self) -> None:
        """Keep hooks out of compiled code, unless followed variables change that code anyway."""
        if self._aside is None and not self._follows_code:
            aside = HooksAside(self._recorder)
            undo = around_compiling(aside.begin, aside.end)
            if undo is not None:
                self._aside = aside
                self._undo.append(undo)

    def _watch(self, load: bool) -> None:
        graph_class = None if self._watching else compiled_graph_class(load)
        if graph_class is not None:
            self._watching = True
            self._undo.append(_watch(graph_class, self._recorder, self._on_gap))


class HooksAside:
    """Removes Clew's hooks while Dynamo compiles, so that the compiled code is valid without them.

    Not if other threads have run modules, as they may do so meanwhile. There are none where the
    native engine follows calls without. `graphs` counts the graphs compiled without hooks. The
    native engine would see the ops that Dynamo runs to find out about shapes; it leaves out what
    runs on this thread meanwhile.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.graphs = 0
        self._recorder = recorder
        self._threads = recorder.threads
        self._muted: int | None = None
        # While Dynamo compiles without hooks: how many graphs there were, and the hooks.
        self._before: int | None = None
        self._aside: list[dict[int, Any]] = []

    def begin(self, *trigger: Any) -> None:
        thread = self._threads.by_ident.get(threading.get_ident())
        if self._threads.on_mute is not None and thread is not None and not thread.mute:
            self._muted = thread.index
            self._threads.on_mute(thread.index, True)
        numbers = [
            number
            for hooks in GLOBAL_HOOKS
            for number, hook in hooks.items()
            if getattr(hook, "__module__", None) in _FOLDED
        ]
        others = set(self._threads.by_ident) - {threading.get_ident()}
        if self._before is not None or (numbers and others):
            return
        self._before = compiled_graph_count()
        if numbers:
            self._aside = [dict(hooks) for hooks in GLOBAL_HOOKS]
        for hooks in GLOBAL_HOOKS:
            for number in numbers:
                hooks.pop(number, None)

    def end(self, *trigger: Any) -> None:
        aside, self._aside = self._aside, []
        graphs, self._before = self._before, None
        muted, self._muted = self._muted, None
        if muted is not None and self._threads.on_mute is not None:
            self._threads.on_mute(muted, False)
        if graphs is None:
            return
        for hooks, before in zip(GLOBAL_HOOKS, aside, strict=False):
            since = {number: hook for number, hook in hooks.items() if number not in before}
            hooks.clear()
            hooks.update(before | since)
        self.graphs += compiled_graph_count() - graphs


def _region(path: str | None, why: str) -> Gap:
    """Return the gap of a compiled region in a module, or outside any."""
    where = "" if path is None else path or "the root module"
    return Gap("a compiled region", where, why, "use clew.trace(compiled='eager') to see inside")


def silence_extra_call() -> Callable[[], None]:
    """Keep torch from warning the user of Clew's hooks; return a function that undoes this."""
    # By `warnings.filterwarnings`, Python would forget which warnings it has shown already.
    filters: list[Any] = warnings.filters  # type: ignore[assignment]
    filters.insert(0, _EXTRA_CALL)

    def undo() -> None:
        # The program may be in a `warnings.catch_warnings` that has a copy of them.
        current: list[Any] = warnings.filters  # type: ignore[assignment]
        for one in [filters] if current is filters else [filters, current]:
            if _EXTRA_CALL in one:
                one.remove(_EXTRA_CALL)

    return undo


def _watch(
    graph_class: Any, recorder: Recorder, on_gap: Callable[[Gap], Any]
) -> Callable[[], None]:
    original = graph_class.__call__

    @functools.wraps(original)
    def call(graph: Any, inputs: Any) -> Any:
        thread = recorder.threads.by_ident.get(threading.get_ident())
        if thread is None or thread.mute or not thread.followed:
            return original(graph, inputs)
        record = _begin(recorder, thread, inputs, on_gap)
        thread.set_mute(True)
        start = recorder.clock()
        try:
            out = original(graph, inputs)
        except Exception as error:
            if record is not None:
                _fail(recorder, record, start, error)
            raise
        finally:
            thread.set_mute(False)
        if record is not None:
            _end(recorder, record, start, out)
        return out

    graph_class.__call__ = call

    def undo() -> None:
        graph_class.__call__ = original

    return undo


def _begin(
    recorder: Recorder, thread: ThreadState, inputs: Any, on_gap: Callable[[Gap], Any]
) -> tuple[Any, ...] | None:
    try:
        # The caller's frame: past this function and the wrapper in `_watch`.
        frame = sys._getframe(2)
        node, parent = thread.place(frame)
        name = thread.stack[-1][NAME]
        called = None if node.phase == BACKWARD else _compiled_in_place(thread, frame, parent)
        if called is not None:
            parent, name = called.event, called.name
        on_gap(_region(None if name is None else name.path, "it ran compiled, as one opaque call"))
        tokens = describe(list(inputs), recorder.values.tensors.known)
        # As for ops: the node that this run makes, or the node whose backward it is.
        number = next_autograd_number()
        if node.phase == BACKWARD:
            running = current_autograd_node()
            number = -1 if running is None else autograd_number(running)
        return next(recorder.buffer.ids), node, parent, number, tokens
    except Exception as fault:
        recorder.gaps.fault(fault, "a compiled region")
        return None


def _fail(recorder: Recorder, record: tuple[Any, ...], start: int, error: BaseException) -> None:
    """Record a region that raised: nothing inside it has an event."""
    event, node, parent, number, tokens = record
    mark(error, recorder.threads.owner)
    recorder.buffer.push(
        (event, _SUBJECT, node, parent, start, recorder.clock(), number, tokens, None, None,
         error_text(error), None)
    )  # fmt: skip


def _compiled_in_place(thread: ThreadState, frame: FrameType, parent: int) -> DirectCall | None:
    """Return the call of a module that `module.compile()` runs past the hooks; open it if new."""
    top, walker = thread.stack[-1], frame
    while id(walker) != top[FRAME] and walker.f_back is not None:
        module = first_argument(walker) if walker.f_code is WRAPPED_CALL else None
        if module is not None and is_compiled_in_place(module):
            call = thread.direct_call(walker)
            if call is not None:
                return call
            args, kwargs = some_locals(walker, ("args", "kwargs"))
            given = {**{str(at): value for at, value in enumerate(args)}, **kwargs}
            place, _ = thread.place(walker.f_back)
            return thread.open_direct(walker, module, top[NAME], parent, place, given)
        walker = walker.f_back
    return None


def _end(recorder: Recorder, record: tuple[Any, ...], start: int, out: Any) -> None:
    try:
        event, node, parent, number, tokens = record
        end = recorder.clock()
        result = describe(
            list(out) if isinstance(out, (tuple, list)) else out,
            lambda t: recorder.values.tensors.produced(t, event, t.requires_grad, None, False),
        )
        recorder.buffer.push(
            (event, _SUBJECT, node, parent, start, end, number, tokens, None, result, None, None)
        )
    except Exception as fault:
        recorder.gaps.fault(fault, "a compiled region")

"""Record ops with the native engine: C++ callbacks of torch, which change nothing about dispatch.

Input: op calls, on every thread. Output: rows, taken with the other records. Python is asked only
for what was never met before: a line, a thread, the facts of an unusual tensor.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from clew.events.model import Gap
from clew.events.vocabulary import FORWARD, OPTIMIZER, VALUES
from clew.keep.native_values import NativeTensors
from clew.keep.nesting import describe
from clew.machinery import MACHINERY
from clew.observe.modules import NativeCalls
from clew.observe.own_hooks import OwnHooks
from clew.observe.started_threads import StartedThreads
from clew.program_errors import error_text, mark, raised_by_signal
from clew.record.attributes import constant_settings, note_attributes
from clew.record.gaps import Gaps
from clew.record.module_registry import ModuleEntry, ModuleName
from clew.record.native_names import NativeNames
from clew.record.recorder import Recorder
from clew.record.stacks import STACKS, StackNode, functions_given
from clew.record.thread_state import FRAME, ID, INPUTS, NAME, NO_FRAME, NODE, Call, ThreadState
from clew.stream.records import OPEN
from clew.torch_compat import (
    WRAPPED_CALL,
    StopRecomputation,
    hide_own_ops_by,
    keep_from_dynamo,
)

if TYPE_CHECKING:
    from clew.observe.native_asked import AskedOps


class OutermostCalls(Protocol):
    """Is told of module calls that are inside no other."""

    def on_outermost(self, module: nn.Module) -> bool:
        """Return whether a call that begins is recorded."""

    def on_idle(self, thread: ThreadState, module: nn.Module) -> None:
        """Note that a call has ended."""


class NativeOps:
    """Records the ops of one recording; `native` is the module of the engine.

    Without `sees_ops` it records module calls alone. `listener` is told of module calls inside no
    other. `values` is what is kept of every value; `asked` gets the ops that
    addresses name.
    """

    def __init__(
        self,
        native: Any,
        recorder: Recorder,
        sees_ops: bool,
        values: str,
        asked: AskedOps | None,
        listener: OutermostCalls,
    ) -> None:
        self._recorder = recorder
        self._sees_ops = sees_ops
        self._main = 0
        tensors: NativeTensors = recorder.values.tensors
        _prepare(native)
        self.own_hooks = OwnHooks()
        self._started = StartedThreads()
        host = Host(recorder, self.own_hooks, listener, self._started)
        self._recording = tensors.recording = native.Recording(
            host, MACHINERY.hidden_codes, MACHINERY.call_frame,
            WRAPPED_CALL, not sees_ops or values != "meta", recorder.buffer.batch_bits + 1,
        )  # fmt: skip
        tensors.on_faults = functools.partial(_report, recorder.gaps)
        recorder.threads.state_of = functools.partial(NativeThreadState, self._recording)
        recorder.buffer.ids = self._recording
        if values != "meta":
            budget = recorder.values.budget
            limits = budget.native_limits()
            self._recording.keep(VALUES.index(values), *limits)
            tensors.on_limit = budget.reached
            budget.on_give_back = self._recording.give_back
            budget.native_pending = self._recording.pending
        if asked is not None:
            self._recording.ask_ops(asked.wants, asked.ran)
        recorder.threads.on_mute = self._recording.mute
        modules = recorder.modules
        modules.use_native(NativeNames(native, self._recording, modules.models))
        self.native: NativeCalls | None = self._recording

    def begin(self, thread: ThreadState) -> None:
        """Remember the running thread as the one that the recording was started on."""
        self._main = thread.ident
        if self._sees_ops:
            self._started.begin()

    def push(self, thread: ThreadState) -> None:
        """Follow the running thread."""
        thread.followed = True
        if thread.ident == self._main:
            self._recording.activate(self._sees_ops)

    def pop(self, thread: ThreadState) -> None:
        """Follow a thread no more."""
        thread.followed = False
        if thread.ident == self._main:
            self._recording.deactivate()

    def pop_all(self) -> None:
        """Follow no thread any more."""
        self._recording.deactivate()
        self._started.end()
        for thread in self._recorder.threads:
            thread.followed = False
        self._main = 0

    def on_thread(self) -> ThreadState | None:
        """Follow the running thread, as a module runs on it; None if the recording is over."""
        if not self._main:
            return None
        thread = self._recorder.thread()
        thread.followed = True
        return thread

    def on_idle(self, thread: ThreadState) -> None:
        """Do nothing: nothing was put on the thread."""

    def retire(self) -> None:
        """Stop recording the ops of every thread."""
        self._started.end()
        self._recording.halt()

    def forked(self) -> None:
        """Report ops that other threads ran while the process forked and torch had no callbacks."""
        threads = [thread.python_thread() for thread in self._recorder.threads]
        if self._sees_ops and sum(one is not None and one.is_alive() for one in threads) > 1:
            self._recorder.gaps.add(_MISSED_AT_FORKS)

    def abandon(self) -> None:
        """Stop recording in a forked process."""
        self._started.end()
        self._recording.abandon()


class NativeThreadState(ThreadState):
    """The state of a thread whose module calls the engine records."""

    def __init__(self, recording: Any, *args: Any) -> None:
        self._recording = recording
        self._calls: list[Call] = []
        super().__init__(*args)

    @property
    def stack(self) -> list[Call]:
        """Return the open calls of the thread, those of the engine among them."""
        calls, known = self._calls, self._recording.calls(self.index)
        for at, (event, node, frame, name, parent, start, number) in enumerate(known, 1):
            if at < len(calls) and calls[at][ID] == event:
                continue
            del calls[at:]
            if name is not None:
                frame = NO_FRAME if frame is None else frame
                call = (event, STACKS.nodes[node], frame, name, parent, start, number, None, None)
                calls.append(call)
        if len(calls) > len(known) + 1:
            del calls[len(known) + 1 :]
        return calls

    @stack.setter
    def stack(self, calls: list[Call]) -> None:
        self._calls = calls

    @property
    def bottom(self) -> Call:
        """Return the entry below all open calls, which the engine need not be asked for."""
        return self._calls[0]

    def release(self) -> None:
        """Drop what is known of open calls."""
        self._calls = self._calls[:1]

    def abandon_above(self, depth: int) -> None:
        """End the calls above some, whose ends were not seen."""
        calls = self.stack
        for call in reversed(calls[depth + 1 :]):
            if call[INPUTS] is not None:
                self.recorder.end_call(call, OPEN, None, None)
        del calls[depth + 1 :]
        self._recording.abandon_above(self.index, depth)


class Host:
    """What the engine asks Python for; each function is called with the GIL held."""

    def __init__(
        self,
        recorder: Recorder,
        own_hooks: OwnHooks,
        listener: OutermostCalls,
        started: StartedThreads,
    ) -> None:
        # The recorder has the engine, which has this; and so has the listener.
        self._recorder = weakref.ref(recorder)
        self._listener = weakref.ref(listener)
        self.turn = recorder.buffer.turn
        # Whether the running thread, which began after the recording, was started in its block.
        self.follows = started.has_running
        self.waiting, self.failed = own_hooks.waiting, own_hooks.failed

    def outermost(self, module: nn.Module) -> bool:
        """Return whether a module call inside no other is recorded."""
        listener = self._listener()
        return listener is not None and listener.on_outermost(module)

    def idle(self, module: nn.Module) -> None:
        """Tell that a module call inside no other has ended."""
        recorder, listener = self._recorder(), self._listener()
        if recorder is not None and listener is not None:
            listener.on_idle(recorder.thread(), module)

    def fault(self, exception: Exception, where: str) -> None:
        """Report what failed in Clew; raise it again if a signal handler of the program did."""
        recorder = self._recorder()
        if recorder is not None:
            recorder.gaps.fault(exception, where)

    def failed_call(self, event: int, exception: BaseException) -> str | None:
        """Return the text of an exception that leaves the innermost module call.

        None for one that is no error, as it only ends a recomputation.
        """
        recorder = self._recorder()
        assert recorder is not None
        thread = recorder.thread()
        call = thread.stack[-1]
        assert call[ID] == event
        call[NAME].entry.failed += 1  # type: ignore[union-attr]
        if isinstance(exception, StopRecomputation):
            return None
        return recorder.failure(thread, call, exception)

    def abandon(self, count: int) -> None:
        """End the open calls of the running thread above the first ones, which an interrupt ended.

        Some of them Python code records.
        """
        recorder = self._recorder()
        assert recorder is not None
        recorder.thread().abandon_above(count)

    def names(self) -> None:
        """Make objects of the names of the model."""
        recorder = self._recorder()
        assert recorder is not None
        recorder.modules.name_given()

    def module(
        self, module: nn.Module, caller: ModuleName | None, node: int
    ) -> tuple[ModuleName, ModuleEntry, int, bool]:
        """Return the name of a module that is called, and whether it has no other."""
        recorder = self._recorder()
        assert recorder is not None
        name = recorder.modules.name_of(module, caller, node)
        return name, name.entry, name.index, len(name.entry.names) == 1

    def attributes(self, entry: ModuleEntry, module: nn.Module, event: int) -> Any:
        """Note the attributes of a module that have changed; return those that are constants.

        That is, names and values, and the names of all others; None if there are lists among them.
        """
        recorder = self._recorder()
        assert recorder is not None
        entry.turn, entry.training = self.turn[0], module.training
        noted, held = recorder.buffer.attributes, module.__dict__
        note_attributes(noted, entry, type(module), held, event)
        return constant_settings(entry, held)

    def describe(self, value: Any, producer: int) -> Any:
        """Describe an argument or result that is not made of lists, dicts and numbers alone."""
        recorder = self._recorder()
        assert recorder is not None
        tensors = recorder.values.tensors
        return describe(value, lambda tensor: tensors.current(tensor, producer))

    def constant(self, value: Any) -> int:
        """Return the number of a constant."""
        recorder = self._recorder()
        assert recorder is not None
        number: int = recorder.values.tensors.constant(value)
        return number

    def node(self, parent: int, code: CodeType, instruction: int, is_own: int) -> int:
        """Return the node of a line below `parent`; `is_own` if a module call begins there."""
        above = STACKS.nodes[parent]
        phase = None
        if above.phase == OPTIMIZER and code in _closures():
            phase = FORWARD
        found = STACKS.child(above, code, instruction, phase)
        is_forward = code.co_name == "forward" and not is_own
        found.direct = above.direct or is_forward
        return _packed(found, is_forward)

    def thread(self) -> tuple[int, int, int, int]:
        """Return the index, root, boundary and root of the engine's ops of the running thread."""
        recorder = self._recorder()
        assert recorder is not None
        thread = recorder.thread()
        bottom = thread.bottom
        boundary = 0 if bottom[FRAME] == NO_FRAME else bottom[FRAME]
        return thread.index, _packed(bottom[NODE]), boundary, _packed(thread.engine_root)

    def place(self) -> tuple[int, int]:
        """Return the node and the module call of what runs, below a call past the hooks."""
        recorder = self._recorder()
        assert recorder is not None
        node, parent = recorder.thread().place(sys._getframe(1))
        return _packed(node), parent

    def meta(self, tensor: torch.Tensor) -> int:
        """Return the number of the facts of a tensor that is not plain."""
        recorder = self._recorder()
        assert recorder is not None
        number: int = recorder.values.tensors.odd_meta(tensor)
        return number

    def keep(self, tensor: torch.Tensor, value: int) -> None:
        """Keep what is wanted of a value whose tensor the engine cannot read."""
        recorder = self._recorder()
        if recorder is not None and recorder.values.keeper is not None:
            token = recorder.values.tensors.token_of(value, tensor)
            recorder.values.keeper(token, tensor, None)

    def unfollowed(self) -> None:
        """Tell that the running thread runs ops that are not recorded."""
        recorder = self._recorder()
        if recorder is not None:
            recorder.gaps.add(_ops_not_recorded(threading.current_thread().name))

    def full(self) -> None:
        """Hand the rows so far over."""
        recorder = self._recorder()
        if recorder is not None:
            recorder.drain()

    def raised(self, exception: BaseException, event: int) -> str | None:
        """Return the text of the exception that an op has raised, None if it is no error."""
        if isinstance(exception, StopRecomputation):
            return None
        recorder = self._recorder()
        if recorder is not None:
            mark(exception, recorder.threads.owner)
        return error_text(exception)

    def interrupt(self, error: BaseException) -> BaseException | None:
        """Return what of an exception is the program's own: a signal came while Clew's code ran."""
        return raised_by_signal(error) if isinstance(error, Exception) else error


@functools.cache
def _prepare(native: Any) -> None:
    """Tell the engine, once in a process, what all its recordings need."""
    native.plain_classes(torch.Tensor, torch.nn.Parameter)
    STACKS.on_let_go = native.forget_code
    hide_own_ops_by(native.Hidden)


def _packed(node: StackNode, is_direct: bool = False) -> int:
    return node.index << 4 | node.phase << 1 | is_direct


def _closures() -> list[CodeType]:
    """Return the code of functions passed to the `optimizer.step` that runs."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if MACHINERY.phases.get(frame.f_code) == OPTIMIZER:
            return functions_given(frame)
        frame = frame.f_back
    return []


def _report(gaps: Gaps, faults: list[str]) -> None:
    """Report what failed in the engine: a place and the text of an exception, on a line each."""
    for fault in faults:
        where, _, what = fault.partition("\n")
        is_too_deep = what.startswith(RecursionError.__name__)
        gaps.fault(RecursionError(what) if is_too_deep else RuntimeError(what), where)


_MISSED_AT_FORKS = Gap(
    "ops of other threads while the process forked",
    "",
    "torch has no callbacks in that moment, as the forked process could wait for ever for a lock",
    "fork when no other thread runs ops",
)


def _ops_not_recorded(thread: str) -> Gap:
    return Gap(
        "ops outside module calls",
        f"thread {thread}",
        "it was not started in the block: ops are recorded on the thread that opened the trace and "
        "on those started by it; elsewhere only inside module calls",
        "open a clew.trace inside that thread",
    )


# The engine calls these while compiled code runs as well.
keep_from_dynamo((sys.modules[__name__],))

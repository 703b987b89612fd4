"""Record module calls with torch's global hooks, or by the native engine without any.

Global hooks leave fused fast paths on, which per-module hooks switch off. The native engine follows
calls where nobody asks for more than these, and has hooks installed when it meets a call for which
it needs them. Input: calls of `nn.Module`s. Output: module records, and notes for errors that no
op saw.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import get_ident
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from clew.callbacks.apply import Named
from clew.events.vocabulary import RECOMPUTE
from clew.keep.nesting import CONSTANTS, describe
from clew.machinery import MACHINERY
from clew.observe.own_hooks import OwnHooks
from clew.record.attributes import note_attributes
from clew.record.gaps import Gaps
from clew.record.recorder import Recorder
from clew.record.thread_state import FRAME, ID, INPUTS, NAME, NODE, NUMBER, Call, ThreadState
from clew.torch_compat import (
    CALL_FRAME,
    WRAPPED_CALL,
    StopRecomputation,
    add_module_hooks,
    call_function,
    function_mode_count,
    is_jit_tracing,
    jit_state,
    remove_module_hooks,
    set_jit_state,
)

if TYPE_CHECKING:
    from clew.observe.gradients import GradSource


class NativeCalls(Protocol):
    """The open calls of each thread, kept by the native engine."""

    def follow(self, function: Callable[..., Any], use_hooks: Callable[[], None]) -> bool:
        """Record the calls that pass through `_call_impl`; return False if that cannot be done.

        When one of them can only be recorded by hooks, it follows no more and calls `use_hooks`.
        """

    def unfollow(self) -> None:
        """Record no more of these calls; the end of those that are open is still seen."""

    def is_inside_call(self) -> bool:
        """Return whether a module call is running, recorded or not."""

    def enter(self, module: nn.Module, args: tuple[Any, ...]) -> bool:
        """Record that a call begins; return False if only Python code can do that."""

    def leave(self, module: nn.Module, args: tuple[Any, ...], result: Any) -> bool:
        """Record that a call ends; return False if only Python code can do that."""

    def finish(self, event: int, result: Any) -> bool:
        """End a call that the engine records with a result."""

    def fail(self, event: int, error: str | None) -> bool:
        """End a call that the engine records with the text of an exception."""

    def push_call(self, event: int, frame: int) -> None:
        """Begin a call that Python code records, in the frame with this id."""

    def pop_call(self, event: int) -> None:
        """End a call that Python code records, and all that began in it."""


class ModuleSource:
    """Installs the hooks of one recording and removes them.

    `sees_ops` says whether ops are recorded as well; ops report writes to tensors. `on_thread` is
    called when a module runs on a thread that is not followed; it returns the state of the thread,
    None if nothing is recorded any more.
    `on_idle` is called with the module when the outermost call of a thread has ended,
    `on_outermost` before an outermost call is recorded; it returns whether to record it. `native`
    records calls itself where nobody asks for more, and is told of the others.
    """

    def __init__(
        self,
        recorder: Recorder,
        sees_ops: bool,
        on_thread: Callable[[], ThreadState | None],
        on_idle: Callable[[ThreadState, nn.Module], None],
        on_outermost: Callable[[nn.Module], bool],
        grads: GradSource | None,
        named_values: Named | None,
        own: OwnHooks,
        native: NativeCalls | None,
    ) -> None:
        self._own = own
        self._native = native
        self._gaps = recorder.gaps
        # What Python code needs to record calls, and the hooks made of it.
        self._parts = (
            recorder, sees_ops, on_thread, on_idle, on_outermost, grads, named_values, own, native
        )  # fmt: skip
        self._made: tuple[Callable[..., None], Callable[..., None]] | None = None
        keeper = recorder.values.keeper
        asks_for_more = (
            grads is not None or named_values is not None or recorder.feed is not None
            or (keeper is not None and keeper.interest.keeps_calls) or not recorder.keeps_calls
        )  # fmt: skip
        self._has_native_hooks = native is not None and not asks_for_more
        self._numbers: tuple[int, int] | None = None

    def enter(self, module: nn.Module, args: tuple[Any, ...], frame: FrameType) -> None:
        """Record that a call begins whose hooks run in a frame."""
        self._hooks()[0](module, args, frame)

    def _hooks(self) -> tuple[Callable[..., None], Callable[..., None]]:
        """Return hooks that record calls by Python code; the native engine needs them for some."""
        if self._made is None:
            self._made = _hooks(*self._parts)
        return self._made

    def start(self) -> None:
        """Record every module call of the process."""
        native, function = self._native, call_function()
        # Of a module call that is running only Python code finds that it began.
        if native is None or not self._has_native_hooks or native.is_inside_call():
            self._numbers = add_module_hooks(*self._hooks())
        elif function is None or not native.follow(function, self._use_hooks):
            self._use_hooks()

    def _use_hooks(self) -> None:
        """Have hooks tell the engine of calls from here on, as it cannot place one by itself."""
        assert self._native is not None
        self._numbers = add_module_hooks(*_native_hooks(self._native, self._hooks, self._gaps))

    def stop(self) -> None:
        """Remove what was installed."""
        if self._native is not None:
            self._native.unfollow()
        if self._numbers is not None:
            remove_module_hooks(*self._numbers)
            self._numbers = None
        self._own.remove_all()


def _native_hooks(
    native: NativeCalls,
    python_hooks: Callable[[], tuple[Callable[..., None], Callable[..., None]]],
    gaps: Gaps,
) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return hooks that have the native engine record calls; others are for `python_hooks`."""
    is_compiling = torch.compiler.is_dynamo_compiling
    getframe = sys._getframe
    native_enter, native_leave = native.enter, native.leave

    def begins(module: nn.Module, args: tuple[Any, ...]) -> None:
        # First of all, so that Dynamo folds the whole hook away when it meets it.
        if is_compiling():
            return
        try:
            if native_enter(module, args):
                return
        except Exception as fault:
            gaps.fault(fault, "a module call")
            return
        python_hooks()[0](module, args, getframe(1))

    def ends(module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
        if is_compiling():
            return
        try:
            if not native_leave(module, args, result):
                python_hooks()[1](module, args, result, getframe(1))
        except RecursionError:
            # Told of by the calls around this one, which have the room; torch would warn of it.
            return
        except Exception as fault:
            gaps.fault(fault, "the end of a module call")

    return begins, ends


MACHINERY.hide(*(c for c in _native_hooks.__code__.co_consts if isinstance(c, CodeType)))


def _hooks(
    recorder: Recorder,
    sees_ops: bool,
    on_thread: Callable[[], ThreadState | None],
    on_idle: Callable[[ThreadState, nn.Module], None],
    on_outermost: Callable[[nn.Module], bool],
    grads: GradSource | None,
    named_values: Named | None,
    own: OwnHooks,
    native: NativeCalls | None,
) -> tuple[Callable[..., None], Callable[..., None]]:
    is_compiling = torch.compiler.is_dynamo_compiling
    hidden = MACHINERY.hidden
    # Calls that are not recorded are followed only for their names.
    recorded = recorder.keeps_calls
    feed = recorder.feed if recorded else None
    on_enter = None if feed is None else feed.entered
    getframe = sys._getframe
    thread_of = recorder.threads.by_ident.get
    clock = recorder.clock
    next_event = recorder.buffer.ids.__next__
    push_event = recorder.buffer.push
    batch_bits = recorder.buffer.batch_bits
    budget = recorder.values.budget
    turn = recorder.buffer.turn
    entry_of = recorder.modules.entry_of
    name_of = recorder.modules.name_of
    tensors = recorder.values.tensors
    # With ops, an op made the result and its token is current, unless every version is kept.
    keeper: Any = recorder.values.keeper if recorder.values.keeps_every else None
    returned = tensors.credited if sees_ops and keeper is None else tensors.current
    # Without ops nothing reports writes, so that every use has to read the tensor's version.
    live_get: Callable[..., Any] = tensors.live.get if sees_ops else lambda key: None
    known = tensors.known if sees_ops else tensors.current

    function_modes = function_mode_count
    push_call = None if native is None else native.push_call

    keeping = keeper is not None
    capturing = keeping and keeper.interest.keeps_calls
    own_waiting, own_failed = own.waiting, own.failed

    def follow_grads(call: Call, module: nn.Module, result: Any) -> None:
        name: Any = call[NAME]
        if grads is not None:
            grads.left(module)
            if "grad" in grads.call_roles(name, call[NUMBER]):
                grads.follow_call(name.path, "grad", result)

    def enter(module: nn.Module, args: tuple[Any, ...], inner: FrameType | None = None) -> None:
        # First of all, so that Dynamo folds the whole hook away when it meets it.
        if is_compiling():
            return
        jit = jit_state() if is_jit_tracing() else None
        try:
            if jit is not None:
                set_jit_state(None)
            thread = thread_of(get_ident())
            if thread is None or not thread.followed:
                thread = on_thread()
                if thread is None:
                    return
            if thread.mute:
                return
            if inner is None:
                inner = getframe(1)
            wrapped: Any = inner.f_back.f_back  # type: ignore[union-attr]
            if wrapped.f_code is not WRAPPED_CALL:
                wrapped = inner
            frame = wrapped.f_back
            while frame is not None and id(frame.f_code) in hidden:
                frame = frame.f_back
            stack = thread.stack
            top = stack[-1]
            back = None if frame is None else frame.f_back
            if frame is not None and id(back) == top[FRAME]:
                node = top[NODE].kids.get((id(frame.f_code), frame.f_lasti))
            elif back is not None and id(back.f_back) == top[FRAME]:
                node = top[NODE].kids.get(
                    (id(frame.f_code), frame.f_lasti, id(back.f_code), back.f_lasti)
                )
            else:
                node = None
            if node is None or node.direct:
                node, parent = thread.place(frame)
                top = stack[-1]
            else:
                parent = top[ID]
            if len(stack) == 1 and not on_outermost(module):
                return
            entry = entry_of(id(module))
            if entry is None or entry.ref() is not module or len(entry.names) > 1:
                name = name_of(module, top[NAME], node.index)
                entry = name.entry
            else:
                name = entry.names[0]
            if node.phase == RECOMPUTE:
                number = entry.recomputed
                entry.recomputed = number + 1
            else:
                number = entry.calls
                entry.calls = number + 1
            inputs = []
            for argument in args if recorded else ():
                held = live_get(id(argument))
                if (
                    held is not None
                    and held[0]() is argument
                    and (
                        held[2] is None
                        or (not function_modes() and held[2] is argument.requires_grad)
                    )
                ):
                    inputs.append(held[1])
                elif type(argument) is Tensor or issubclass(type(argument), Tensor):
                    inputs.append(known(argument))
                else:
                    inputs.append(describe(argument, known))
            kwargs = wrapped.f_locals["kwargs"]
            if capturing:
                given = {**dict(enumerate(args)), **kwargs}
                keeper.keep_call(name, number, "in", given, known)
            if grads is not None and "grad_in" in grads.call_roles(name, number):
                grads.follow_call(name.path, "grad_in", {**dict(enumerate(args)), **kwargs})
            named = None
            if kwargs and recorded:
                named = {
                    k: v if type(v) in CONSTANTS else describe(v, known) for k, v in kwargs.items()
                }
            event = next_event()
            # Read once: torch's modules find their attributes slowly.
            held_by = module.__dict__
            if recorded and (entry.turn != turn[0] or entry.training is not module.training):
                entry.turn, entry.training = turn[0], module.training
                note_attributes(recorder.buffer.attributes, entry, type(module), held_by, event)
            if held_by.get("_forward_hooks") or own_waiting or own_failed:
                own.begin(module, id(inner), leave)
            # The clock last, so that the time is the module's, not the recording's.
            stack.append((event, node, id(inner), name, parent, clock(), number, inputs, named))
            if push_call is not None:
                push_call(event, id(inner))
            if on_enter is not None:
                on_enter(thread, stack[-1])
            if named_values is not None:
                named_values.entered(stack[-1], args, kwargs)
        except Exception as fault:
            recorder.gaps.fault(fault, "a module call")
        finally:
            if jit is not None:
                set_jit_state(jit)

    def leave(
        module: nn.Module, args: tuple[Any, ...], result: Any, frame: FrameType | None = None
    ) -> None:
        if is_compiling():
            return
        jit = jit_state() if is_jit_tracing() else None
        try:
            if jit is not None:
                set_jit_state(None)
            end = clock()
            thread = thread_of(get_ident())
            if thread is None or thread.mute:
                return
            stack = thread.stack
            if frame is None:
                frame = getframe(1)
            if own_waiting and not own.is_last(id(frame)):
                return
            if frame.f_code is CALL_FRAME:
                if stack[-1][FRAME] != id(frame) and not thread.reopen(id(frame)):
                    return
                if named_values is not None:
                    named_values.left(stack[-1], result)
                call = stack.pop()
                if native is not None:
                    if call[INPUTS] is None:
                        native.finish(call[ID], result)
                        if len(stack) == 1:
                            on_idle(thread, module)
                        return
                    native.pop_call(call[ID])
                if capturing:
                    keeper.keep_call(call[NAME], call[NUMBER], "out", result, known)
                if grads is not None:
                    follow_grads(call, module, result)
                held = live_get(id(result)) if recorded else None
                if not recorded:
                    out = None
                elif (
                    held is not None
                    and held[0]() is result
                    and (
                        held[2] is None
                        or (not function_modes() and held[2] is result.requires_grad)
                    )
                ):
                    out = held[1]
                elif type(result) is Tensor or issubclass(type(result), Tensor):
                    out = returned(result, call[ID])
                else:
                    producer = call[ID]
                    out = describe(result, lambda t: returned(t, producer))
                error = None
            else:
                # `_call_impl` runs this hook while it handles an exception of forward or of a hook.
                exception = sys.exc_info()[1]
                if exception is None or own.is_told(id(frame)) or not thread.reopen_module(module):
                    return
                call = stack.pop()
                own.fail(call[FRAME], id(frame))
                call[NAME].entry.failed += 1  # type: ignore[union-attr]
                stopped = isinstance(exception, StopRecomputation)
                out, error = None, None if stopped else recorder.failure(thread, call, exception)
                if native is not None and call[INPUTS] is not None:
                    native.pop_call(call[ID])
            if len(stack) == 1:
                on_idle(thread, module)
            if not recorded:
                return
            if native is not None and call[INPUTS] is None:
                native.fail(call[ID], error)
                return
            event, node, _, name, parent, start, number, inputs, named = call
            # Last, as listeners that hear of the end may begin a step.
            push_event(
                (event, name, node, parent, start, end, number, inputs, named, out, error, None)
            )
            if event & batch_bits == batch_bits or (keeping and budget.is_full):
                recorder.drain()
        except Exception as fault:
            recorder.gaps.fault(fault, "the end of a module call")
        finally:
            if jit is not None:
                set_jit_state(jit)

    return enter, leave

"""Record ops with a dispatch mode: every op that reaches a kernel, on the thread it is pushed on.

Input: op calls. Output: op records. This is the hot path: it appends references to facts and
does nothing else. It must never change an argument or a result, keep a tensor or a frame, or let
an exception of Clew out.

An op's NUMBER ties backward to forward. In forward it is the number the next autograd node of
the thread will get, so an op that made a node has that node's number plus one. In backward it is
the number of the node being run and, with `create_graph`, also the number it would have in forward;
-1 if no node is run; and for the accumulation of a gradient, which has no forward op, the token of
the parameter. In a recomputation outside any module call it is the number it would have in forward,
and the number of the node whose backward asked for the recomputation, by which its module is found.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from threading import get_ident
from types import FrameType, MethodType
from typing import Any
from weakref import ref

from torch import Tensor, is_grad_enabled, strided

from clew.callbacks.apply import Named
from clew.events.model import Gap
from clew.events.vocabulary import BACKWARD, NO_NODE, RECOMPUTE, backward_number, recompute_number
from clew.keep.generators import drawing_of
from clew.keep.identity import PLAIN, TensorTable, Token
from clew.keep.nesting import CONSTANTS, describe
from clew.observe.other_kernels import Watch, watch_of
from clew.program_errors import error_text, mark, pass_on
from clew.record.recorder import Recorder
from clew.record.thread_state import FRAME, ID, NAME, NODE, ThreadState
from clew.stream.records import tokens_in
from clew.torch_compat import (
    HigherOrderOperator,
    TorchDispatchMode,
    can_decompose,
    counting_writes,
    current_autograd_node,
    direct_call,
    function_mode_count,
    hide_from_dynamo,
    is_bare_alias,
    is_collective,
    is_jit_tracing,
    nested_code,
    next_autograd_number,
    push_mode,
    remove_mode,
    schema_of,
    tensors_for_numbers,
    unobserved,
)

# Ops that write to the running statistics among their arguments, without declaring it.
_UNDECLARED_WRITES = {
    "aten::native_batch_norm",
    "aten::cudnn_batch_norm",
    "aten::miopen_batch_norm",
    "aten::batch_norm",
}
# Ops whose result lies on the memory of their first argument, without declaring it.
_UNDECLARED_VIEWS = {"aten::_unsafe_view"}
# Ops whose results are parts of the memory of their argument, each with versions of its own.
_PARTING = ("aten::unsafe_split", "aten::unsafe_chunk")
# Most ops arrive after torch.jit.trace has set its graph aside; these arrive before.
_UNDER_JIT = Gap(
    "some ops under torch.jit.trace",
    "",
    "looking at their tensors would have put ops into the graph that is being made",
    "run the model itself, or what was made of it, inside the block",
)
# Gradients are accumulated under a node numbered with the largest integer there is.
_ACCUMULATION = 1 << 62


class OpMode(TorchDispatchMode):
    """The dispatch mode of one thread of one recording."""

    # Torch hands higher-order operators to the handler instead of raising an error.
    supports_higher_order_operators = True

    def __init__(self, recorder: Recorder, thread: ThreadState, named: Named | None) -> None:
        super().__init__()
        self._thread = thread
        # A closure reads its variables faster than a method its attributes; torch needs it bound.
        handler = MethodType(_handler(recorder, thread, named), self)
        self.__torch_dispatch__ = handler  # type: ignore[method-assign]

    def start(self) -> None:
        """Record the ops of this thread from here on."""
        for mode in _left_behind.pop(self._thread.ident, ()):
            mode.leave()
        push_mode(self)

    def stop(self) -> bool:
        """Stop recording the ops of its thread; return whether the mode has left the thread.

        Called on another thread, it can only stop recording: the mode leaves its thread when that
        thread runs its next op or begins its next trace.
        """
        if get_ident() == self._thread.ident:
            self.leave()
            if self in _left_behind.get(self._thread.ident, ()):
                _left_behind[self._thread.ident].remove(self)
            return True
        self.retire()
        return False

    def retire(self) -> None:
        """Stop recording, and leave the thread when it runs its next op."""
        self._thread.set_mute(True)
        _left_behind.setdefault(self._thread.ident, []).append(self)

    def leave(self) -> bool:
        """Remove the mode from the running thread if it is there, and drop its handler."""
        found = remove_mode(self)
        if found:
            # Breaks the reference cycle between the mode and its handler.
            del self.__torch_dispatch__
        return found

    def leave_soon(self) -> None:
        """Leave after torch, which removes a mode while its handler runs, has put it back."""
        ident = self._thread.ident
        waiting = _left_behind.get(ident, [])
        if get_ident() != ident or self not in waiting or sys.getprofile() is not None:
            return

        def look(frame: FrameType, event: str, arg: Any) -> None:
            if self.leave():
                sys.setprofile(None)
                waiting.remove(self)

        sys.setprofile(look)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: torch's wrapper is slow, so the handler's code is marked instead."""
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True to leave compiled regions compiled; the default runs them eagerly."""
        return True


def _op_keeper(recorder: Recorder, named: Named | None) -> Callable[..., None] | None:
    """Return a function that keeps the data of an op's tensors, None if no op's are asked for.

    It keeps arguments as they are after the op; only those that the op wrote to have changed.
    """
    keeper, known = recorder.values.keeper, recorder.values.tensors.known
    if not recorder.values.keeps_every or keeper is None:
        return None
    keeps = keeper.interest.keeps_ops
    calls_back = None if named is None or not named.interest.takes_ops else named.ran
    if not keeps and calls_back is None:
        return None

    def keep(func: Any, args: Any, kwargs: Any, out: Any) -> None:
        if keeps:
            keeper.keep_op(func, "in", {**dict(enumerate(args)), **(kwargs or {})}, known)
            keeper.keep_op(func, "out", out, known)
        if calls_back is not None:
            calls_back(func, args, kwargs, out)

    return keep


def _handler(recorder: Recorder, thread: ThreadState, named: Named | None) -> Callable[..., Any]:
    """Return torch's handler of each op. Long on purpose: a call costs as much as a fact."""
    getframe = sys._getframe
    stack = thread.stack
    place = thread.place
    tensors = recorder.values.tensors
    live = tensors.live
    keeping = recorder.values.keeps_every
    budget = recorder.values.budget
    # With values kept, a tensor written through another is kept anew: have its version read.
    live_get: Callable[[int], Any] = (lambda key: None) if keeping else live.get
    push_value = tensors.values.extend
    gone = tensors.gone
    told_gone = gone.append
    memories = tensors.memories
    draw = tensors.generators.draw
    known = tensors.current if keeping else tensors.known
    adopted = tensors.current if keeping else tensors.adopted
    next_event = recorder.buffer.ids.__next__
    clock = recorder.clock
    push_event = recorder.buffer.push
    batch_bits = recorder.buffer.batch_bits
    keep_op = _op_keeper(recorder, named)
    facts_of = _FACTS
    # Ops whose `watch` has reported all the other kernels there are.
    told: set[OpFacts] = set()
    last_number = next_autograd_number()

    def handler(
        mode: OpMode,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        nonlocal last_number
        op = facts_of.get(id(func))
        if op is None:
            try:
                op = facts_of[id(func)] = OpFacts(func)
            except Exception as fault:
                recorder.gaps.fault(fault, str(func))
                return func(*args, **kwargs or {})
        if thread.mute or op.annotation or is_jit_tracing():
            if thread.mute:
                if _left_behind:
                    mode.leave_soon()
            elif not op.annotation:
                recorder.gaps.add(_UNDER_JIT)
            return op.call(*args, **kwargs) if kwargs else op.call(*args)
        if op.detaches and is_bare_alias():
            alias = op.call(*args)
            try:
                tensors.aliased(alias, known(args[0]))
            except Exception as fault:
                recorder.gaps.fault(fault, str(func))
            return alias
        ready = False
        try:
            frame = getframe(1)
            top = stack[-1]
            target = top[FRAME]
            back = frame.f_back
            if id(back) == target:
                node = top[NODE].kids.get((id(frame.f_code), frame.f_lasti))
            elif back is None:
                node = None
            else:
                base = back.f_back
                if id(base) == target:
                    node = top[NODE].kids.get(
                        (id(frame.f_code), frame.f_lasti, id(back.f_code), back.f_lasti)
                    )
                else:
                    node = None
                base = None
            if node is None or node.direct:
                node, parent = place(frame)
            else:
                parent = top[ID]
            del frame, back
            number: Any = next_autograd_number()
            if number == last_number:
                grad = False
            else:
                last_number = number
                grad = is_grad_enabled()
            if node.phase:
                if node.phase == BACKWARD:
                    number = _backward_number(known, number if grad else 0)
                elif node.phase == RECOMPUTE and parent < 0:
                    number = _recompute_number(number)
            observed = function_mode_count()
            # If autograd made no node, no argument without requires_grad can have got it since.
            settled = observed or not grad
            inputs = []
            for argument in args:
                held = live_get(id(argument))
                if (
                    held is not None
                    and held[0]() is argument
                    and (
                        held[2] is None
                        or (settled and not held[2])
                        or held[2] is argument.requires_grad
                    )
                ):
                    inputs.append(held[1])
                elif type(argument) in CONSTANTS or (
                    type(argument) is list and argument and type(argument[0]) is int
                ):
                    inputs.append(argument)
                elif isinstance(argument, Tensor):
                    inputs.append(adopted(argument) if held is None else known(argument))
                else:
                    inputs.append(describe(argument, known))
            named = {k: describe(v, known) for k, v in kwargs.items()} if kwargs else None
            event = next_event()
            seen: Any = len(gone) if op.draws is None else (len(gone), *draw(op, args, kwargs))
            ready = True
            start = clock()
        except Exception as fault:
            recorder.gaps.fault(fault, str(func))
        try:
            out = op.call(*args, **kwargs) if kwargs else op.call(*args)
        except BaseException as error:
            taken = tensors_for_numbers(func, args, error)
            if taken is None:
                if ready:
                    mark(error, recorder.threads.owner)
                    push_event(
                        (event, func, node, parent, start, clock(), number, inputs, named,
                         op.half_written(args, kwargs or {}, tensors, event), error_text(error),
                         seen)
                    )  # fmt: skip
                raise
            out = op.call(*taken, **kwargs or {})
        if not ready:
            return out
        try:
            end = clock()
            if keeping or observed or not op.plain:
                result: Any = op.result(out, args, kwargs or {}, tensors, event, grad)
                if keep_op is not None:
                    keep_op(func, args, kwargs, out)
                if op.higher_order:
                    recorder.gaps.add(_inside_of(func, thread))
                if op.watch is not None and op not in told and op.watch(recorder, args, out, grad):
                    told.add(op)
            else:
                try:
                    if type(out) is Tensor and out.layout is strided:
                        result = out.shape
                        position = op.base
                        follows = grad
                        if position is None:
                            version, storage = 0, None
                            memory = out.untyped_storage()
                            end_of_memory = memories[id(memory)] = ref(memory, told_gone)
                            memory_end: Any = id(end_of_memory)
                        else:
                            version, storage, memory_end = None, inputs[position], None
                            if not grad and not op.detaches and type(args[position]) in PLAIN:
                                # A view requires grad also where autograd makes no node for it.
                                follows = args[position].requires_grad
                        push_value(
                            (result, version, storage, out.stride(), out.dtype, out.device, None,
                             follows, event, None, memory_end)
                        )  # fmt: skip
                        live[id(out)] = (ref(out), result, None if grad else follows)
                    elif type(out) is tuple:
                        result = []
                        for item in out:
                            if type(item) is not Tensor or item.layout is not strided:
                                raise TypeError
                            token = item.shape
                            memory = item.untyped_storage()
                            end_of_memory = memories[id(memory)] = ref(memory, told_gone)
                            push_value(
                                (token, 0, None, item.stride(), item.dtype, item.device, None,
                                 grad, event, None, id(end_of_memory))
                            )  # fmt: skip
                            live[id(item)] = (ref(item), token, None if grad else False)
                            result.append(token)
                    else:
                        raise TypeError
                except Exception as odd:
                    # A result that is not plain: sparse, a subclass, an undefined gradient.
                    pass_on(odd)
                    result = op.result(out, args, kwargs or {}, tensors, event, grad)
            push_event(
                (event, func, node, parent, start, end, number, inputs, named, result, None, seen)
            )
            if event & batch_bits == batch_bits or (keeping and budget.is_full):
                recorder.drain()
        except Exception as fault:
            recorder.gaps.fault(fault, str(func))
        return out

    return handler


# Every handler has this code.
hide_from_dynamo(nested_code(_handler.__code__, "handler"))


def _backward_number(known: Callable[[Tensor], Token], made: int) -> int | Token:
    node = current_autograd_node()
    if node is None:
        return NO_NODE
    number: int = node._sequence_nr()
    if number < _ACCUMULATION:
        return backward_number(number, made)
    variable = getattr(node, "variable", None)
    return NO_NODE if variable is None else known(variable)


def _recompute_number(made: int) -> int:
    node = current_autograd_node()
    return made if node is None else recompute_number(node._sequence_nr(), made)


def _inside_of(func: HigherOrderOperator, thread: ThreadState) -> Gap:
    name = thread.stack[-1][NAME]
    return Gap(
        f"the ops inside of {func}",
        "" if name is None else name.path or "the root module",
        "torch runs the functions given to it out of sight, so it is recorded as one op",
        "call these functions without it to see their ops",
    )


class OpFacts:
    """Facts that hold for every call of one op."""

    __slots__ = (
        "annotation", "base", "bases", "call", "counted", "detaches", "draws", "func",
        "higher_order", "later", "parts", "plain", "training", "watch", "writes",
    )  # fmt: skip

    def __init__(self, func: Any) -> None:
        self.func = func  # kept alive, so that its id stays its own
        self.call = direct_call(func)
        # One that is given functions to run, as `torch.cond` is.
        self.higher_order = isinstance(func, HigherOrderOperator)
        # Whether it is a mark for the profiler, not a computation.
        self.annotation = getattr(func, "namespace", "") == "profiler"
        schema = schema_of(func)
        # Whether a view of a tensor with a gradient has none.
        self.detaches = getattr(schema, "name", "") == "aten::detach"
        self.parts = getattr(schema, "name", "").startswith(_PARTING)
        # Arguments the op writes to, by name, with their positions.
        self.writes: dict[str, int] = {}
        # For each result, the position of the argument whose memory it may share.
        self.bases: list[int | None] = []
        # For a batch norm, the position of the flag that says whether it writes.
        self.training: int | None = None
        # Whether it still writes when it has returned.
        self.later = False
        # Whether the versions of what it wrote to have moved when it returns.
        self.counted = False
        if schema is not None:
            self._read(schema)
            self.counted = bool(self.writes) and schema.name.startswith("aten::_foreach_")
        if self.counted:
            self.call = counting_writes(self.call)
        # Inspects its calls, if they may show that an untraced run would use other kernels.
        self.watch: Watch | None = watch_of(func, getattr(schema, "name", ""))
        # Whether the schema alone says on which memory its results are: one tensor, or several each
        # on new memory. Not for composite ops, which arrive whole under inference mode: they may or
        # may not share the memory that their schema says.
        self.plain = (
            len(self.bases) > 0
            and not self.writes
            and (len(self.bases) == 1 or not any(b is not None for b in self.bases))
            and all(str(value.type) == "Tensor" for value in schema.returns)
            and not can_decompose(func)
            and self.watch is None
        )
        self.base = self.bases[0] if self.plain else None
        # The arguments that say from which generator it draws; None if it draws nothing.
        self.draws = drawing_of(func, schema)

    def _read(self, schema: Any) -> None:
        owner: dict[str, int] = {}
        for position, argument in enumerate(schema.arguments):
            if argument.alias_info is not None:
                for name in (*argument.alias_info.before_set, *argument.alias_info.after_set):
                    owner[name] = position
                if argument.alias_info.is_write:
                    self.writes[argument.name] = position
        if schema.name in _UNDECLARED_WRITES:
            self.training = next(
                i for i, a in enumerate(schema.arguments) if a.name in ("training", "train")
            )
            self.writes = {
                argument.name: position
                for position, argument in enumerate(schema.arguments)
                if argument.name in ("running_mean", "running_var")
            }
        if is_collective(schema.name):
            self.writes, self.later = {schema.arguments[0].name: 0}, True
        for result in schema.returns:
            names = result.alias_info.before_set if result.alias_info is not None else ()
            # A list of views does not say what it views: take the argument that may alias anything.
            names = names or ("*" if result.alias_info is not None else ())
            self.bases.append(next((owner[n] for n in names if n in owner), None))
        if schema.name in _UNDECLARED_VIEWS:
            self.bases = [0]

    def half_written(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: TensorTable, event: int
    ) -> dict[str, Any] | None:
        """Return new tokens for what a failed op may have written before it failed."""
        try:
            given = {
                name: args[position] if position < len(args) else kwargs.get(name)
                for name, position in self.writes.items()
            }
            return {
                name: describe(value, lambda t: tensors.written(t, event, False, self.counted))
                for name, value in given.items()
                if value is not None
            } or None
        except Exception as odd:  # the error of the program matters more
            pass_on(odd)
            return None

    def result(
        self,
        out: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: TensorTable,
        event: int,
        grad: bool,
    ) -> Any:
        """Describe the op's result, with the arguments it wrote to and did not return."""
        written: dict[int, Token] = {}
        outputs: dict[str, Any] = {}

        def write(tensor: Tensor) -> Token:
            if self.later:
                token = tensors.written_later(tensor, event)
            else:
                token = tensors.written(tensor, event, follows, self.counted)
            written[id(tensor)] = token
            return token

        writes = self.writes
        # Autograd may copy what a write replaces first: the new node's number then shows there.
        follows = grad or (bool(writes) and is_grad_enabled() and _any_followed(args))
        if self.training is not None and not args[self.training]:
            writes = {}
        for name, position in writes.items():
            value = args[position] if position < len(args) else kwargs.get(name)
            if value is not None:
                outputs[name] = describe(value, write)

        def record(tensor: Tensor, base: int | None) -> Token:
            token = written.get(id(tensor))
            if token is not None:
                return token
            argument = args[base] if base is not None and base < len(args) else None
            # Some ops share memory without declaring it.
            like = args[0] if args and not writes else None
            before = _memory_end(tensors, tensor) if self.parts else None
            token = tensors.produced(tensor, event, grad, argument, not self.detaches, like)
            if before is not None:
                _hold_both(tensors, tensor, before)
            return token

        if isinstance(out, (tuple, list)):
            bases = self.bases if len(self.bases) == len(out) else self.bases[:1] * len(out)
            bases = bases or [None] * len(out)
            result: Any = [
                describe(item, functools.partial(record, base=base))
                for item, base in zip(out, bases, strict=True)
            ]
        else:
            base = self.bases[0] if self.bases else None
            result = describe(out, lambda t: record(t, base))
        returned = set(map(id, tokens_in(result)))
        extra = {n: v for n, v in outputs.items() if not returned.issuperset(map(id, tokens_in(v)))}
        if not extra:
            return result
        if isinstance(result, list):
            return {**{str(i): v for i, v in enumerate(result)}, **extra}
        return extra if result is None else {"": result, **extra}


def _memory_end(tensors: TensorTable, tensor: Tensor) -> Callable[[], Any] | None:
    """Return the reference that is told when the memory of a tensor is freed, if there is one."""
    with unobserved():
        memory = tensor.untyped_storage()
    found = tensors.memories.get(id(memory))
    return found if found is not None and found() is memory else None


def _hold_both(tensors: TensorTable, tensor: Tensor, before: Callable[[], Any]) -> None:
    """Keep the reference of the whole memory alive beside that of a part, so that both are told."""
    with unobserved():
        key = id(tensor.untyped_storage())
    ends = (tensors.memories[key], before)
    tensors.memories[key] = lambda: ends[0]()


def _any_followed(args: tuple[Any, ...]) -> bool:
    """Return whether one of an op's tensors requires grad."""
    with unobserved():
        return any(isinstance(value, Tensor) and value.requires_grad for value in args)


# Modes that were stopped from another thread, by the thread they are still on.
_left_behind: dict[int, list[OpMode]] = {}
# Facts of each op called so far, by id, for as long as the process lives.
_FACTS: dict[int, OpFacts] = {}

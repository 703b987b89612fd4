"""What one recording shares between its sources: ids, tables, buffers, threads, faults.

`Recording` is the state; `Lane` is one thread's part of it: the module calls now open there and
the way from a live frame to its place among them. Sources (`modules`, `ops`) append to it.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
from collections.abc import Callable
from math import prod
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from clew.capture import plain
from clew.capture.budget import Budget
from clew.capture.changes import look
from clew.capture.names import ModuleName, ModuleTable
from clew.capture.sources import (
    MACHINERY,
    Position,
    StackNode,
    StackTree,
    first_argument,
    read_locals,
)
from clew.capture.structure import describe, is_tensor
from clew.events.records import (
    BACKWARD,
    EVENT_FIELDS,
    OPEN,
    RECOMPUTE,
    Batch,
    Label,
    Note,
    Shape,
    Sink,
    Token,
    UnknownShape,
    Unseen,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from clew.capture.grads import GradSource
    from clew.capture.named import Named
    from clew.capture.samples import Sample
    from clew.capture.values import Keeper

NO_FRAME = id(None)

_REMEMBERED = 4096

# Events handed to the sink at a time: few enough to stay small, enough to amortise the call.
_BATCH = 1 << 14

# Fields of an open call: a plain tuple, for speed. FRAME is the id of the Python frame that the
# call lives in; frames are never kept.
ID: Final = 0
NODE: Final = 1
FRAME: Final = 2
NAME: Final = 3
PARENT: Final = 4
START: Final = 5
NUMBER: Final = 6
INPUTS: Final = 7
NAMED: Final = 8
Call = tuple[int, StackNode, int, "ModuleName | None", int, int, int, Any, Any]


class At(NamedTuple):
    """A line of a function: in a frame, or below the place a frame, or the open call, is at."""

    frame: FrameType | None
    position: Position
    below: bool


# Where a value was named; None if no line of Python did.
Where: TypeAlias = FrameType | At | None

_STACKS = StackTree()


class DirectCall:
    """A call of `forward` that went past the hooks, tied to the frame it runs in.

    It sits in the frame's `f_trace` slot, which nothing reads unless a debugger traces that
    frame, and dies with the frame: the one way to tell two activations apart without keeping
    either.
    """

    __slots__ = ("event", "name")

    def __init__(self, event: int, name: ModuleName) -> None:
        self.event = event
        self.name = name

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        """Decline to trace, should a debugger start while this frame runs."""


class Lane:
    """One thread of the program: its open module calls and its place in the stack tree."""

    def __init__(self, recording: Recording, index: int, boundary: int) -> None:
        self.recording = recording
        self.index = index
        self.ident = threading.get_ident()
        self.name = threading.current_thread().name
        self._engine_root = recording.stacks.root(index, BACKWARD)
        root = recording.stacks.root(index)
        self.stack: list[Call] = [_outside(root, boundary)]
        # Set while Clew's own or opaque code runs: ops pass unrecorded.
        self.mute = False
        # Calls of `forward` in frames whose `f_trace` a debugger owns: id -> (call, lasti).
        self._debugged: dict[int, tuple[DirectCall, int]] = {}

    @property
    def outermost(self) -> nn.Module | None:
        """The module whose call contains all others that are open."""
        name = self.stack[1][NAME] if len(self.stack) > 1 else None
        return None if name is None else name.entry.ref()

    def release(self) -> None:
        """Break the ring of references between a lane and its recording."""
        self.stack.clear()
        del self.recording

    def place(self, frame: FrameType | None) -> tuple[StackNode, int]:
        """The stack node of a frame and the id of the module call it runs in."""
        top = self.stack[-1]
        target = top[FRAME]
        call_frame = MACHINERY.call_frame
        key: list[int] = []
        walker = frame
        while id(walker) != target:
            if walker is None or walker.f_code is call_frame:
                return self._search(frame)
            key += (id(walker.f_code), walker.f_lasti)
            walker = walker.f_back
        node = top[NODE].kids.get(tuple(key))
        if node is None or node.direct:
            return self._search(frame)
        return node, top[ID]

    def _search(self, frame: FrameType | None) -> tuple[StackNode, int]:
        """`place` for a stack not met before, or not as the open calls would have it."""
        stacks = self.recording.stacks
        frames: list[FrameType] = []
        while id(frame) != self.stack[-1][FRAME]:
            if frame is None:
                if threading.get_ident() != self.ident:
                    # An engine thread running this thread's backward: its own short stack.
                    return stacks.descend(self._engine_root, frames), -1
                self.abandon_above(0)
                self.stack[0] = _outside(self.stack[0][NODE], NO_FRAME)
                break
            if frame.f_code is MACHINERY.call_frame and self.reopen(id(frame)):
                break
            if id(frame.f_code) not in MACHINERY.hidden:
                frames.append(frame)
            frame = frame.f_back
        top = self.stack[-1]
        node = stacks.descend(top[NODE], frames)
        if node.direct:
            return node, self._direct_parent(frames, top)
        return node, top[ID]

    def reopen(self, frame_id: int) -> bool:
        """Make the call of a frame the innermost, dropping those above it that are gone."""
        for depth in range(len(self.stack) - 1, 0, -1):
            if self.stack[depth][FRAME] == frame_id:
                self.abandon_above(depth)
                return True
        return False

    def reopen_module(self, module: nn.Module) -> bool:
        """Make the innermost call of a module the innermost of all."""
        for depth in range(len(self.stack) - 1, 0, -1):
            name = self.stack[depth][NAME]
            if name is not None and name.entry.ref() is module:
                self.abandon_above(depth)
                return True
        return False

    def abandon_above(self, depth: int) -> None:
        """Record calls that ended without the exit hook, stopped by a BaseException."""
        while len(self.stack) > depth + 1:
            self.recording.end_call(self.stack.pop(), OPEN, None, None)

    def _direct_parent(self, frames: list[FrameType], top: Call) -> int:
        """The innermost call of `forward` past the hooks on a stack, opened if new."""
        parent = top[ID]
        caller = top[NAME]
        owner = caller.entry.ref() if caller is not None else None
        for position in range(len(frames) - 1, -1, -1):
            frame = frames[position]
            if frame.f_code.co_name != "forward":
                continue
            module = first_argument(frame)
            if module is owner or not _is_forward_of(module, frame.f_code):
                continue
            call = self._direct_call(frame)
            if call is None:
                place = self.recording.stacks.descend(top[NODE], frames[position + 1 :])
                call = self._open_direct(frame, module, caller, parent, place)
            parent, caller, owner = call.event, call.name, module
        return parent

    def _direct_call(self, frame: FrameType) -> DirectCall | None:
        mark = frame.f_trace
        if isinstance(mark, DirectCall):
            return mark
        if mark is None:
            return None
        # A debugger owns the slot: the same frame further on is taken for the same call.
        call, lasti = self._debugged.get(id(frame), (None, 0))
        if call is None or frame.f_lasti < lasti:
            return None
        self._debugged[id(frame)] = (call, frame.f_lasti)
        return call

    def _open_direct(
        self,
        frame: FrameType,
        module: nn.Module,
        caller: ModuleName | None,
        parent: int,
        place: StackNode,
    ) -> DirectCall:
        recording = self.recording
        name = recording.modules.name_of(module, caller, place.index)
        code = frame.f_code
        names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
        known = recording.tensors.known
        values = [describe(value, known) for value in read_locals(frame, names)]
        event = next(recording.ids)
        now = recording.clock()
        number = count_call(name, place)
        arguments = dict(zip(names, values, strict=True))
        recording.events.extend(
            (event, name, place, parent, now, OPEN, number, [], arguments, Unseen, None)
        )
        call = DirectCall(event, name)
        if frame.f_trace is None:
            frame.f_trace = call
        else:
            self._debugged[id(frame)] = (call, frame.f_lasti)
        return call


def _is_forward_of(module: Any, code: CodeType) -> bool:
    """Whether code is the `forward` of a module, its own or inherited, decorated or not."""
    # A module, without asking torch, which need not be there.
    if not hasattr(type(module), "_call_impl"):
        return False
    candidates = [cls.__dict__.get("forward") for cls in type(module).__mro__]
    candidates.append(module.__dict__.get("forward"))
    for function in candidates:
        while function is not None:
            if getattr(function, "__code__", None) is code:
                return True
            function = getattr(function, "__wrapped__", None)
    return False


def _outside(root: StackNode, boundary: int) -> Call:
    """The entry at the bottom of every stack, for code outside any module."""
    return (-1, root, boundary, None, -1, 0, 0, None, None)


class Recording:
    """Everything the sources of one trace write to.

    `table` makes the table of tensors: `capture.tensors.TensorTable` where there is torch.
    """

    def __init__(
        self,
        sink: Sink,
        clock: Callable[[], int],
        table: Callable[[Callable[[Any], str | None]], Any],
        budget: Budget,
        most_events: float = math.inf,
    ) -> None:
        self.sink = sink
        self.budget = budget
        self._most_events = most_events
        self._recorded = 0
        self.halted = False
        self._handed_over = False
        # Called when the most events there may be are there.
        self.on_halt: Callable[[], None] = lambda: None
        # Records go to the sink whenever an event id has all of these bits.
        self.batch_bits = _batch_bits(most_events)
        self.clock = clock
        self.ids = itertools.count()
        self.events: list[Any] = []
        # Appends the fields of an event.
        self.push: Callable[[tuple[Any, ...]], None] = self.events.extend
        # Called when a module call begins, if somebody listens.
        self.on_enter: Callable[[Lane, Call], None] | None = None
        self.modules = ModuleTable()
        self.tensors = table(self.modules.tensor_name)
        # id of a token -> (token, content), of tensors that were named
        self._contents: dict[int, tuple[Token, Any]] = {}
        # What is kept of values beyond their facts: (token, `Kept`).
        self.kept: list[Any] = []
        self.modules.on_late_tensor = self.tensors.forget
        # Keeps more than facts of every tensor version, if that was asked for.
        self.keeper: Keeper | None = None
        # Follows gradients, if some were asked for.
        self.grads: GradSource | None = None
        # Applies callbacks to inputs and outputs of calls, if there are some.
        self.calls: Named | None = None
        # Keeps the data of single values.
        self.snapshots: Keeper | None = None
        self.stacks = _STACKS
        self.lanes: dict[int, Lane] = {}
        self.thread_names: list[str] = []
        self._draining = threading.Lock()
        self.on_fault: Callable[[BaseException, str], None] = lambda fault, where: None

    def keep(self, keeper: Keeper, every: bool) -> None:
        """Keep more than facts of named values and, with `every`, of each tensor version."""
        self.snapshots = keeper
        if every:
            self.keeper = keeper
            self.tensors.keep = keeper

    def keep_op(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Keep the data of an op's tensors in full, if they were asked for.

        Arguments are kept as they are after the op, which is as they were unless it wrote them.
        """
        keeper = self.keeper
        roles = keeper.op_roles(func) if keeper is not None else ()

        def keep(tensor: Tensor) -> Any:
            token = self.tensors.known(tensor)
            if keeper is not None:
                keeper.keep(token, tensor, True)
            return token

        if "out" in roles:
            describe(list(out) if isinstance(out, tuple) else out, keep)
        if "in" in roles:
            describe([list(args), kwargs], keep)
        if self.calls is not None and self.calls.ops:
            self.calls.ran(func, args, kwargs, out)

    def lane(self, boundary: int = NO_FRAME) -> Lane:
        """The lane of the running thread, opened if new."""
        ident = threading.get_ident()
        lane = self.lanes.get(ident)
        if lane is None:
            lane = self.lanes[ident] = Lane(self, len(self.thread_names), boundary)
            self.thread_names.append(lane.name)
            lane.mute = self.halted
        return lane

    def end_call(self, call: Call, end: int, out: Any, error: str | None) -> None:
        """Record a module call that is over, or that will not be heard of again."""
        event, node, _, name, parent, start, number, inputs, named = call
        self.push((event, name, node, parent, start, end, number, inputs, named, out, error))
        if event & self.batch_bits == self.batch_bits or self.budget.is_full:
            self.drain()

    def failure(self, lane: Lane, call: Call, exception: BaseException) -> str:
        """The text of an exception leaving a call, noted as an event of its own if no op saw it."""
        text = error_text(exception)
        if not is_marked(exception):
            mark(exception)
            self.note_error(call[NODE], call[ID], exception, text)
        return text

    def note_error(self, base: StackNode, parent: int, error: BaseException, text: str) -> None:
        """Record an error that was raised outside any op, at the innermost line it came from."""
        node = self.stacks.descend_traceback(base, error.__traceback__)
        self.note("error", node, parent, text)

    def note(self, subject: str, node: StackNode, parent: int, text: str) -> None:
        """Record something that is not a call."""
        now = self.clock()
        self.events.extend(
            (next(self.ids), Note(subject), node, parent, now, now, -1, [], None, None, text)
        )

    def named(self, label: Label, value: Any, where: Where, full: bool = True) -> int:
        """Record a value that has a name, as it is now; the event's id."""
        return -1 if self.halted else self.told(label, self.described(value, full), where)

    def told(self, label: Label, out: Any, where: Where, start: int | None = None) -> int:
        """Record a described value that has a name; `start` is when what made it began."""
        lane = self.lane()
        if self.halted:
            return -1
        top = lane.stack[-1]
        node, parent = top[NODE], top[ID]
        frame = where.frame if isinstance(where, At) else where
        if frame is not None:
            node, parent = lane.place(frame)
        if isinstance(where, At):
            above = node if where.below or node.parent is None else node.parent
            node = self.stacks.below(above, where.position)
        event, now = next(self.ids), self.clock()
        begun = now if start is None else start
        self.push((event, label, node, parent, begun, now, -1, [], None, out, None))
        if event & self.batch_bits == self.batch_bits or self.budget.is_full:
            self.drain()
        return event

    def gathered(self, sample: Sample, stage: str) -> None:
        """Record a value that was gathered, with the step and rank it is of."""
        lane = self.lane()
        if self.halted:
            return
        out: dict[str, Token] = {}
        for leaf in sample.leaves:
            token = UnknownShape([-1]) if leaf.shape is None else Shape(leaf.shape)
            self.tensors.values.extend(
                (token, 0, None, leaf.stride, leaf.dtype, leaf.device, leaf.extra, False, -1, None)
            )
            payload = leaf.payload
            if payload is not None and self.budget.has_room(prod(payload.shape), len(payload.data)):
                self.kept.append((token, leaf.kept))
            out[leaf.path] = token
        now, root = self.clock(), lane.stack[0][NODE]
        whole = out[""] if list(out) == [""] else out
        self.push(
            (next(self.ids), sample.becomes(stage), root, -1, now, now, sample.step, [], None,
             whole, None)
        )  # fmt: skip

    def described(self, value: Any, full: bool) -> Any:
        """A value with tokens for everything in it, also for what is no tensor."""

        def keep(leaf: Any) -> Token:
            return self.leaf(leaf, full)

        return describe(value, keep, 0, keep)

    def leaf(self, value: Any, full: bool, stats: bool = True) -> Token:
        """The token of a value that is no container; what is kept of it comes last in `kept`."""
        if not is_tensor(value):
            return plain.record(value, self.tensors.values, self.kept, full, self.budget, stats)
        token = self._token_of_content(value)
        if self.snapshots is not None and (full or stats):
            self.snapshots.keep(token, value, full)
        return token

    def _token_of_content(self, tensor: Tensor) -> Token:
        """The token of a tensor, a new one if it was written to and no version tells of it."""
        token: Token = self.tensors.current(tensor)
        content = look(tensor).content
        known = self._contents.get(id(token))
        if known is not None and known[1] != content:
            token = self.tensors.renewed(tensor)
        if len(self._contents) > _REMEMBERED:
            self._contents.clear()
        self._contents[id(token)] = (token, content)
        return token

    def mark(self, subject: Any) -> None:
        """Record something that concerns the whole run, at this moment."""
        now = self.clock()
        root = self.lane().stack[0][NODE]
        self.events.extend((next(self.ids), subject, root, -1, now, now, -1, [], None, None, None))

    def crashed(self, error: BaseException) -> str:
        """Record the exception that leaves the recorded block, unless an event already has it."""
        text = error_text(error)
        if not is_marked(error):
            self.note_error(self.lane().stack[0][NODE], -1, error, text)
        unmark(error)
        return text

    def open_calls(self) -> list[Any]:
        """Records of the module calls that are open now."""
        records: list[Any] = []
        for lane in self.lanes.values():
            for event, node, _, name, parent, start, number, inputs, named in lane.stack[1:]:
                records += (
                    event,
                    name,
                    node,
                    parent,
                    start,
                    OPEN,
                    number,
                    inputs,
                    named,
                    None,
                    None,
                )
        return records

    def listen(
        self,
        on_enter: Callable[[Lane, Call], None],
        on_end: Callable[[tuple[Any, ...]], None],
    ) -> None:
        """Tell of each call that begins and each event that ends."""
        extend = self.events.extend

        def push(record: tuple[Any, ...]) -> None:
            extend(record)
            on_end(record)

        self.push = push
        self.on_enter = on_enter

    def is_empty(self) -> bool:
        """Whether no event was recorded so far."""
        return not self.events and not self._handed_over

    def halt(self) -> None:
        """Record nothing more."""
        if not self.halted:
            self.halted = True
            for lane in self.lanes.values():
                lane.mute = True
            self.on_halt()

    def drain(self) -> None:
        """Hand all records to the sink."""
        with self._draining:
            batch = self._take()
            self._recorded += len(batch.events) // EVENT_FIELDS
            if self._recorded >= self._most_events:
                self.halt()
            batch.surviving = [*self.tensors.sweep(), *self._open_inputs()]
            batch.open_calls = self.open_calls()
            self.sink.extend(batch)

    def _take(self) -> Batch:
        events, values = self.events, self.tensors.values
        # Slices, so that records other threads append meanwhile wait for the next time. Values
        # last: an event is complete before it is appended, so are its values, and a value is
        # there before what is kept of it.
        taken_kept = self.kept[:]
        del self.kept[: len(taken_kept)]
        self.budget.pending = 0
        if self.snapshots is not None:
            self.snapshots.forget()
        taken_events = events[:]
        self._handed_over = self._handed_over or bool(taken_events)
        taken_values = values[:]
        del events[: len(taken_events)]
        del values[: len(taken_values)]
        return Batch(taken_events, taken_values, taken_kept)

    def close(self) -> None:
        """Hand over the rest and let go of everything, so that nothing waits for the collector."""
        for lane in self.lanes.values():
            lane.abandon_above(0)
        self.sink.extend(self._take())
        for lane in self.lanes.values():
            lane.release()
        self.lanes.clear()
        self.tensors.release()

    def _open_inputs(self) -> list[Any]:
        return [[c[INPUTS], c[NAMED]] for lane in self.lanes.values() for c in lane.stack]


def _batch_bits(most_events: float) -> int:
    """The low bits of the last id of a batch; small batches where few events are wanted."""
    size = _BATCH
    while size > max(most_events, 1):
        size >>= 1
    return size - 1


def count_call(name: ModuleName, node: StackNode) -> int:
    """The index of a call of a module, recomputed calls counted apart."""
    entry = name.entry
    if node.phase == RECOMPUTE:
        entry.recomputed += 1
        return entry.recomputed - 1
    entry.calls += 1
    return entry.calls - 1


_MARK = "_clew_recorded"


def mark(error: BaseException) -> None:
    """Remember on the exception itself that an event has it; it may pass many calls yet."""
    with contextlib.suppress(Exception):
        setattr(error, _MARK, True)


def is_marked(error: BaseException) -> bool:
    """Whether an event already has this exception."""
    return _MARK in getattr(error, "__dict__", ())


def unmark(error: BaseException) -> None:
    """Leave nothing on an exception that goes back to the program."""
    getattr(error, "__dict__", {}).pop(_MARK, None)


def error_text(exception: BaseException) -> str:
    """`Type: message`, whatever the exception's own `__str__` does."""
    try:
        return f"{type(exception).__name__}: {exception}"
    except Exception:
        return type(exception).__name__

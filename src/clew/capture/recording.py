"""What one recording shares between its sources: ids, tables, buffers, threads, faults.

Sources (`modules`, `ops`, `named`, ...) append to a `Recording`, which hands everything over to a
sink in batches. What a thread has open is its `Lane`.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable
from math import prod
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from clew.capture import plain
from clew.capture.budget import Budget
from clew.capture.changes import Look, look
from clew.capture.failures import error_text, is_marked, mark, unmark
from clew.capture.foreign import Foreign
from clew.capture.lanes import ID, INPUTS, NAMED, NO_FRAME, NODE, Call, Lane
from clew.capture.names import ModuleName, ModuleTable
from clew.capture.records import (
    EVENT_FIELDS,
    OPEN,
    Made,
    Note,
    Records,
    Shape,
    Taker,
    Token,
    UnknownShape,
    tokens_in,
)
from clew.capture.sources import Position, StackNode, StackTree
from clew.capture.structure import describe, is_tensor
from clew.events.model import Gap
from clew.events.records import Label

if TYPE_CHECKING:
    from torch import Tensor, nn

    from clew.capture.grads import GradSource
    from clew.capture.named import Named
    from clew.capture.samples import Sample
    from clew.capture.values import Keeper
    from clew.stream.batch import Batch

# The thread that writes a trace, and records nothing.
WRITER = "clew-writer"
_REMEMBERED = 4096
# Tensors of which something is remembered, before those that are gone are looked for.
_MANY = 256

# Events handed over at a time: few enough to stay small, enough to amortise the call.
_BATCH = 1 << 14
# About how many bytes a field of a record comes to, in memory and on disk.
_FIELD_BYTES = 16


class At(NamedTuple):
    """A line of a function: in a frame, or below the place a frame, or the open call, is at."""

    frame: FrameType | None
    position: Position
    below: bool


# Where a value was named; None if no line of Python did.
Where: TypeAlias = FrameType | At | None

_STACKS = StackTree()


class Recording:
    """Everything the sources of one trace write to.

    `table` makes the table of tensors: `capture.tensors.TensorTable` where there is torch.
    """

    def __init__(
        self,
        taker: Taker,
        clock: Callable[[], int],
        table: Callable[[ModuleTable], Any],
        budget: Budget,
        most_events: float = math.inf,
        batch: float = math.inf,
    ) -> None:
        self._taker = taker
        # What marks exceptions as recorded here; apart, so that they keep nothing else alive.
        self.owner = object()
        self.budget = budget
        self._most_events = most_events
        self._recorded = 0
        # The newest event within the limit, once it was reached.
        self._newest = -1.0
        # The exception that ends the block, if it came past the limit and waits to be handed over.
        self._crash: int | None = None
        self.halted = False
        self._has_events = False
        # How often records were handed over so far.
        self.hand_overs = 0
        # Called when the most events there may be are there.
        self.on_halt: Callable[[], None] = lambda: None
        # Records are handed over whenever an event id has all of these bits.
        self.batch_bits = _batch_bits(min(most_events, batch))
        self.clock = clock
        self.ids = itertools.count()
        self.events: list[Any] = []
        # Appends the fields of an event.
        self.push: Callable[[tuple[Any, ...]], None] = self.events.extend
        # What modules and optimizers were found to be set to since the last hand-over; they are
        # looked at again once a turn, which ends with every step and hand-over.
        self.attributes: list[Any] = []
        self.turn = [0]
        # Called when a module call begins, if somebody listens.
        self.on_enter: Callable[[Lane, Call], None] | None = None
        # Called before a module call is opened that went past the hooks and lies in no other.
        self.on_direct: Callable[[nn.Module], None] = lambda module: None
        # Whether module calls are recorded, and not only values that have a name.
        self.keeps_calls = True
        self.modules = ModuleTable()
        self.tensors = table(self.modules)
        # id of a token -> (token, content), of tensors that were named
        self._contents: dict[int, tuple[Token, Any]] = {}
        # What is kept of values beyond their facts: (token, `Kept`).
        self.kept: list[Any] = []
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
        # What other processes recorded, until it is handed over, and the threads they are here.
        self._foreign: list[Foreign] = []
        self._processes: dict[str, int] = {}
        self._draining = threading.Lock()
        self.on_fault: Callable[[BaseException, str], None] = lambda fault, where: None
        # Called with what could not be seen.
        self.on_gap: Callable[[Gap], Any] = lambda gap: None

    def next_id(self) -> int:
        """The id that the next event gets."""
        return int(repr(self.ids)[len("count(") : -1])

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
        if self.keeper is not None and self.keeper.ops:
            given = {**dict(enumerate(args)), **kwargs}
            self.keeper.keep_op(func, "in", given, self.tensors.known)
            self.keeper.keep_op(func, "out", out, self.tensors.known)
        if self.calls is not None and self.calls.ops:
            self.calls.ran(func, args, kwargs, out)

    def lane(self, boundary: int = NO_FRAME) -> Lane:
        """The lane of the running thread, opened if new."""
        ident = threading.get_ident()
        lane = self.lanes.get(ident)
        if lane is not None and lane.thread() is not threading.current_thread():
            # Its thread is over, and the system gave the number to a new one.
            lane.abandon_above(0)
            lane.release()
            lane = None
        if lane is None:
            lane = self.lanes[ident] = Lane(self, len(self.thread_names), boundary)
            self.thread_names.append(lane.name)
            lane.mute = self.halted
        return lane

    def end_call(self, call: Call, end: int, out: Any, error: str | None) -> None:
        """Record a module call that is over, or that will not be heard of again."""
        if not self.keeps_calls:
            return
        event, node, _, name, parent, start, number, inputs, named = call
        self.push((event, name, node, parent, start, end, number, inputs, named, out, error, None))
        if event & self.batch_bits == self.batch_bits or self.budget.is_full:
            self.drain()

    def failure(self, lane: Lane, call: Call, exception: BaseException) -> str:
        """The text of an exception leaving a call, noted as an event of its own if no op saw it."""
        text = error_text(exception)
        if not is_marked(exception, self.owner):
            mark(exception, self.owner)
            self.note_error(call[NODE], call[ID], exception, text)
        return text

    def note_error(self, base: StackNode, parent: int, error: BaseException, text: str) -> None:
        """Record an error that was raised outside any op, at the innermost line it came from."""
        node = self.stacks.descend_traceback(base, error.__traceback__)
        self.note("error", node, parent, text)

    def note(self, subject: str, node: StackNode, parent: int, text: str) -> None:
        """Record something that is not a call."""
        event, now = next(self.ids), self.clock()
        parent = parent if self.keeps_calls else -1
        if self.halted:
            self._crash, parent = event, -1
        self.events.extend(
            (event, Note(subject), node, parent, now, now, -1, [], None, None, text, None)
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
        if not self.keeps_calls:
            parent = -1
        event, now = next(self.ids), self.clock()
        begun = now if start is None else start
        self.push((event, label, node, parent, begun, now, -1, [], None, out, None, None))
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
                (
                    token,
                    0,
                    None,
                    leaf.stride,
                    leaf.dtype,
                    leaf.device,
                    leaf.extra,
                    False,
                    -1,
                    None,
                    None,
                )
            )
            payload = leaf.payload
            if payload is not None and self.budget.has_room(prod(payload.shape), len(payload.data)):
                self.kept.append((token, leaf.kept))
            out[leaf.path] = token
        now, root = self.clock(), lane.stack[0][NODE]
        whole = out[""] if list(out) == [""] else out
        self.push(
            (next(self.ids), sample.becomes(stage), root, -1, now, now, sample.step, [], None,
             whole, None, None)
        )  # fmt: skip

    def adopt(self, batch: Batch, source: str, process: str) -> None:
        """Take over what another process recorded; `source` tells it from every other."""
        if self.halted:
            return
        if process not in self._processes:
            self._processes[process] = len(self.thread_names)
            self.thread_names.append(process)
        ids = [next(self.ids) for _ in batch.columns["id"]]
        self._foreign.append(Foreign(batch, source, ids, self._processes[process]))

    def described(self, value: Any, full: bool) -> Any:
        """A value with tokens for everything in it, also for what is no tensor."""

        def keep(leaf: Any) -> Token:
            return self.leaf(leaf, full)

        return describe(value, keep, 0, keep)

    def leaf(self, value: Any, full: bool, stats: bool = True, now: Look | None = None) -> Token:
        """The token of a value that is no container; with `full` its data is kept.

        `now` is a fresh look at it, if somebody has taken one.
        """
        return self.kept_leaf(value, full, stats, now)[0]

    def kept_leaf(
        self, value: Any, full: bool, stats: bool = True, now: Look | None = None
    ) -> tuple[Token, Made | None]:
        """The same, and what was kept of it now, if anything was."""
        if not is_tensor(value):
            token, made = plain.record(value, self.tensors.values, full, self.budget, stats)
            if made is not None:
                self.kept.append((token, made))
            return token, made
        token = self._token_of_content(value, (now or look(value)).content)
        if self.snapshots is not None and (full or stats):
            return token, self.snapshots.keep(token, value, full)
        return token, None

    def _token_of_content(self, tensor: Tensor, content: Any) -> Token:
        """The token of a tensor, a new one if it was written to and no version tells of it."""
        token: Token = self.tensors.current(tensor)
        known = self._contents.get(id(token))
        if known is not None and known[1] != content:
            token = self.tensors.renewed(tensor)
        if len(self._contents) > _REMEMBERED:
            self._contents.clear()
        self._contents[id(token)] = (token, content)
        return token

    def mark(self, subject: Any) -> None:
        """Record something that concerns the whole run, at this moment."""
        if self.halted:
            return
        now = self.clock()
        root = self.lane().stack[0][NODE]
        self.events.extend(
            (next(self.ids), subject, root, -1, now, now, -1, [], None, None, None, None)
        )

    def crashed(self, error: BaseException) -> str:
        """Record the exception that leaves the recorded block, unless an event already has it."""
        text = error_text(error)
        if not is_marked(error, self.owner):
            self.note_error(self.lane().stack[0][NODE], -1, error, text)
        unmark(error, self.owner)
        return text

    def open_calls(self) -> list[Any]:
        """Records of the module calls that are open now."""
        records: list[Any] = []
        if not self.keeps_calls:
            return records
        for lane in list(self.lanes.values()):
            for event, node, _, name, parent, start, number, inputs, named in lane.stack[1:]:
                if self.halted and event > self._newest:
                    break
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
        return not self.events and not self._has_events

    def halt(self) -> None:
        """Record nothing more."""
        if not self.halted:
            self.halted = True
            for lane in list(self.lanes.values()):
                lane.mute = True

    def abandon(self) -> None:
        """Record nothing more in a process that inherited this recording by a fork."""
        self.halt()
        # A thread that is only in the parent may hold it.
        self._draining = threading.Lock()

    def drain(self) -> None:
        """Hand all records over; with the last ones there may be, record nothing more."""
        with self._draining:
            if self.halted and self._recorded >= self._most_events and self._crash is None:
                return
            records = self._take()
            ends = not self.halted and self._recorded >= self._most_events
            if ends:
                self.halt()
            records.surviving = self.surviving()
            records.is_shared = _has_threads()
            self._forget_gone(records.surviving)
            records.open_calls = self.open_calls()
            self._taker.take(records)
        if ends:
            self.on_halt()

    def _take(self) -> Records:
        events, values = self.events, self.tensors.values
        # Slices, so that records other threads append meanwhile wait for the next time. Values
        # last: an event is complete before it is appended, so are its values, and a value is
        # there before what is kept of it.
        taken_kept = self.kept[:]
        del self.kept[: len(taken_kept)]
        size, self.budget.pending = self.budget.pending, 0
        if self.snapshots is not None:
            self.snapshots.forget()
        taken_events = events[:]
        del events[: len(taken_events)]
        if self._most_events < math.inf:
            taken_events = self._within_limit(taken_events)
        self._has_events = self._has_events or bool(taken_events)
        taken_values = values[:]
        del values[: len(taken_values)]
        self.hand_overs += 1
        size += _FIELD_BYTES * (len(taken_events) + len(taken_values))
        records = Records(taken_events, taken_values, taken_kept, size=size)
        records.foreign, self._foreign = self._foreign, []
        records.attributes, self.attributes = self.attributes, []
        gone = self.tensors.gone
        records.gone = gone[:]
        del gone[: len(records.gone)]
        records.sizes, self.tensors.sizes = self.tensors.sizes, {}
        self.turn[0] += 1
        return records

    def _forget_gone(self, surviving: list[Any]) -> None:
        """Let go of what is remembered of tensors that are gone, once there is much of it."""
        keeper = self.snapshots
        if len(self._contents) + (0 if keeper is None else keeper.remembered) > _MANY:
            alive = {id(token) for token in tokens_in(surviving)}
            for key in [key for key in list(self._contents) if key not in alive]:
                self._contents.pop(key, None)
            if keeper is not None:
                keeper.forget_all_but(alive)

    def _within_limit(self, events: list[Any]) -> list[Any]:
        """The first of some events, as many as there may be, and those that go with them.

        Past the limit these are the calls that were open when it was reached, and the exception
        that ends the block.
        """
        room = EVENT_FIELDS * max(0, int(self._most_events) - self._recorded)
        first, rest = events[:room], events[room:]
        self._newest = max([self._newest, *first[::EVENT_FIELDS]])
        self._recorded += len(first) // EVENT_FIELDS
        for at in range(0, len(rest), EVENT_FIELDS):
            event, subject = rest[at : at + 2]
            was_open = event <= self._newest and isinstance(subject, ModuleName)
            if was_open or event == self._crash:
                first += rest[at : at + EVENT_FIELDS]
        self._crash = None
        return first

    def close(self) -> None:
        """Hand over the rest and let go of everything, so that nothing waits for the collector."""
        for lane in list(self.lanes.values()):
            lane.abandon_above(0)
        self._taker.take(self._take())
        for lane in list(self.lanes.values()):
            lane.release()
        self.lanes.clear()
        self.tensors.release()
        self.stacks.let_go_of_made()

    def surviving(self) -> list[Any]:
        """Tokens that records to come may mention: of tensors that live, and of open calls."""
        lanes = list(self.lanes.values())
        open_calls = [[c[INPUTS], c[NAMED]] for lane in lanes for c in lane.stack]
        return [*self.tensors.sweep(), *open_calls]


def _has_threads() -> bool:
    """Whether the program has several threads, each of which may be about to record."""
    return sum(thread.name != WRITER for thread in threading.enumerate()) > 1


def _batch_bits(most: float) -> int:
    """The low bits of the last id of a batch of at most so many events."""
    size = _BATCH
    while size > max(most, 1):
        size >>= 1
    return size - 1

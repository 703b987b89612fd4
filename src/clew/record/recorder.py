"""Collect the records of one trace's observers, and hand them over in batches.

Observers (`observe.modules`, `observe.dispatch`, ...) put event records into its `buffer` and value
records into its `values`; the recorder hands both over together.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from clew.deferred_signals import uninterrupted
from clew.events.vocabulary import Label
from clew.keep.budget import Budget
from clew.keep.changes import ValueState
from clew.keep.value_records import ValueRecords
from clew.program_errors import error_text, is_marked, mark, unmark
from clew.record.event_buffer import EventBuffer
from clew.record.event_limit import EventLimit
from clew.record.foreign import Foreign
from clew.record.gaps import TOO_DEEP, Gaps
from clew.record.module_registry import ModuleTable
from clew.record.stacks import STACKS, Position, StackNode
from clew.record.thread_state import ID, NODE, Call, ThreadState, ThreadStates
from clew.stream.records import Note, NumberedToken, Records, Taker, tokens_in

if TYPE_CHECKING:
    from torch import nn

    from clew.callbacks.samples import Sample
    from clew.record.live_feed import LiveFeed
    from clew.stream.batch import Batch

# The name of the thread that writes a trace; it records nothing itself.
WRITER = "clew-writer"
# About how many bytes a field of a record takes, in memory and on disk.
_FIELD_BYTES = 16


class At(NamedTuple):
    """A line of a function: in a frame, or below the position of a frame or of the open call."""

    frame: FrameType | None
    position: Position
    below: bool


# The line of Python that a labelled value comes from; None if there is none.
Where: TypeAlias = FrameType | At | None


class Recorder:
    """Collects what the observers of one trace record; `taker` gets it, `batch` events at a time.

    `table` makes the table of tensors: `keep.identity.TensorTable` with torch. Without
    `keeps_calls`, module calls are followed only for their names, and only labelled values are
    recorded. `on_halt` is called when the limit of events is reached, `on_direct` before an
    outermost module call is recorded that went past the hooks.
    """

    def __init__(
        self,
        taker: Taker,
        clock: Callable[[], int],
        table: Callable[[ModuleTable], Any],
        budget: Budget,
        gaps: Gaps,
        most_events: float = math.inf,
        batch: float = math.inf,
        keeps_calls: bool = True,
        on_halt: Callable[[], None] = lambda: None,
        on_direct: Callable[[nn.Module], None] = lambda module: None,
    ) -> None:
        self._taker = taker
        self.clock = clock
        self.modules = ModuleTable()
        self.values = ValueRecords(table(self.modules), budget)
        self.gaps = gaps
        self.buffer = EventBuffer(min(most_events, batch))
        self.keeps_calls = keeps_calls
        self.threads = ThreadStates(self, on_direct)
        # Reports calls and events while the program runs, if there is a listener.
        self.feed: LiveFeed | None = None
        self.halted = False
        self._limit = EventLimit(most_events, on_halt)
        # The addresses that they have met.
        self.met_by_workers: set[str] = set()
        # Held from the first token of a named value to its event, so that no hand-over comes
        # between them, and from one end of a hand-over to the other.
        self.naming = threading.RLock()

    def thread(self) -> ThreadState:
        """Return the state of the running thread; make it if there is none."""
        return self.threads.of_thread()

    def end_call(self, call: Call, end: int, out: Any, error: str | None) -> None:
        """Record a module call that has ended, or whose end will not be seen."""
        if self.keeps_calls:
            event, node, _, name, parent, start, number, inputs, named = call
            self._add(
                (event, name, node, parent, start, end, number, inputs, named, out, error, None)
            )

    def _add(self, record: tuple[Any, ...]) -> None:
        """Record an event, and hand records over if there are enough of them."""
        self.buffer.push(record)
        bits = self.buffer.batch_bits
        if record[0] & bits == bits or self.values.budget.is_full:
            self.drain()

    def failure(self, thread: ThreadState, call: Call, exception: BaseException) -> str:
        """Return the text of an exception that leaves a call; record it if no event has it yet."""
        text = error_text(exception)
        if isinstance(exception, RecursionError):
            self.gaps.add(TOO_DEEP)
        if not is_marked(exception, self.threads.owner):
            mark(exception, self.threads.owner)
            self._note_error(call[NODE], call[ID], exception, text)
        return text

    def crashed(self, error: BaseException) -> str:
        """Record the exception that leaves the recorded block, unless an event already has it."""
        text = error_text(error)
        if not is_marked(error, self.threads.owner):
            self._note_error(self.thread().stack[0][NODE], -1, error, text)
        unmark(error, self.threads.owner)
        return text

    def _note_error(self, base: StackNode, parent: int, error: BaseException, text: str) -> None:
        """Record an error that was raised outside any op, at the innermost line it came from."""
        node = STACKS.descend_traceback(base, error.__traceback__)
        event, now = next(self.buffer.ids), self.clock()
        if self.halted:
            self._limit.let_in(event)
        is_inside = self.keeps_calls and not self.halted
        self.buffer.events.extend(
            (event, Note("error"), node, parent if is_inside else -1, now, now, -1, [], None, None,
             text, None)
        )  # fmt: skip

    def named(self, label: Label, value: Any, where: Where, now: ValueState | None = None) -> int:
        """Record a labelled value as it is now, and return the event's id.

        `now` is its fresh `ValueState`, if the caller has one.
        """
        if self.halted:
            return -1
        with self.naming:
            return self.record_described(label, self.values.described(value, now), where)

    def record_described(
        self, label: Label, out: Any, where: Where, start: int | None = None
    ) -> int:
        """Record a described value under a label; `start` is when the code that made it began."""
        thread = self.thread()
        if self.halted:
            return -1
        top = thread.stack[-1]
        node, parent = top[NODE], top[ID]
        frame = where.frame if isinstance(where, At) else where
        if frame is not None:
            node, parent = thread.place(frame)
        if isinstance(where, At):
            above = node if where.below or node.parent is None else node.parent
            node = STACKS.below(above, where.position)
        if not self.keeps_calls:
            parent = -1
        event, now = next(self.buffer.ids), self.clock()
        begun = now if start is None else start
        self._add((event, label, node, parent, begun, now, -1, [], None, out, None, None))
        return event

    def gathered(self, sample: Sample, stage: str) -> None:
        """Record a value that was gathered from a rank, with its step and rank."""
        thread = self.thread()
        if self.halted:
            return
        label = sample.becomes(stage)
        with self.naming:
            out = self.values.gathered(sample)
            event, now, root = next(self.buffer.ids), self.clock(), thread.stack[0][NODE]
            self._add((event, label, root, -1, now, now, sample.step, [], None, out, None, None))

    def mark(self, subject: Any, hand_over: bool = True) -> None:
        """Record something that concerns the whole run, without reporting it to listeners.

        With `hand_over`, records may be handed over here.
        """
        if self.halted:
            return
        event, now, root = next(self.buffer.ids), self.clock(), self.thread().stack[0][NODE]
        self.buffer.events.extend(
            (event, subject, root, -1, now, now, -1, [], None, None, None, None)
        )
        if hand_over and event & self.buffer.batch_bits == self.buffer.batch_bits:
            self.drain()

    def adopt(self, batch: Batch, source: str, process: str) -> None:
        """Take over a batch that another process recorded; `source` identifies the process."""
        if not self.halted:
            ids = [next(self.buffer.ids) for _ in batch.columns["id"]]
            self.buffer.foreign.append(
                Foreign(batch, source, ids, self.threads.of_process(process))
            )

    def listen(self, feed: LiveFeed) -> None:
        """Report each call that begins and each event that ends."""
        self.feed = feed
        self.buffer.tell(feed.ended)

    def is_empty(self) -> bool:
        """Return whether no event was recorded so far."""
        return self.buffer.is_empty()

    def halt(self) -> None:
        """Record nothing more."""
        if not self.halted:
            self.halted = True
            self.threads.mute()

    def abandon(self) -> None:
        """Record nothing more in a process that inherited this recorder by a fork."""
        self.halt()
        # A thread that is only in the parent may hold it.
        self.naming = threading.RLock()

    def drain(self) -> None:
        """Hand all records over; with the last ones there may be, record nothing more.

        What is handed over refers to what was before, so nothing may interrupt it half way.
        """
        uninterrupted(self._drain)

    def _drain(self) -> None:
        with self.naming:
            if self.halted and self._limit.is_over:
                return
            records = self._take()
            ends = not self.halted and self._limit.is_reached
            if ends:
                self.halt()
            records.surviving = self.surviving()
            records.is_shared = _has_threads()
            self.values.forget_all_but(records.surviving)
            if self.keeps_calls:
                admitted = self._limit.has if self.halted else _all
                records.open_calls = self.threads.open_calls(admitted)
            self._taker.take(records)
        if ends:
            self._limit.on_reached()

    def _take(self, are_last: bool = False) -> Records:
        # Values last: an event is appended only after its values, and what is kept of a value only
        # after the value, so none of them can be missing.
        kept, size = self.values.take_kept()
        events, attributes = self.buffer.take()
        given = self.threads.given()
        held = [t.number for t in tokens_in(given) if type(t) is NumberedToken] if given else []
        native = self.values.take_native(held, are_last)
        events, native = self._limit.first_ended(events, native)
        events = self._limit.within(events)
        records = Records(events, [], kept, attributes=attributes, native=native)
        self.values.take_into(records)
        records.size = size + _FIELD_BYTES * (len(events) + len(records.values))
        if native is not None:
            self.buffer.was_taken = self.buffer.was_taken or bool(native.events)
            records.size += native.size
            records.attributes += native.noted
        records.foreign, self.buffer.foreign = self.buffer.foreign, []
        if self.feed is not None:
            self.feed.handed_over()
        return records

    def close(self) -> None:
        """Hand over the rest and drop all references, so that no garbage collection is needed."""
        self.threads.end_all()
        uninterrupted(lambda: self._taker.take(self._take(are_last=True)))
        self.threads.release()
        self.values.tensors.release()
        STACKS.let_go_of_made()

    def surviving(self) -> list[Any]:
        """Return the tokens that later records may use: of live tensors and of open calls."""
        return [*self.values.tensors.sweep(), *self.threads.given()]


def _all(event: int) -> bool:
    return True


def _has_threads() -> bool:
    """Return whether the program has several threads, each of which may be about to record."""
    return sum(thread.name != WRITER for thread in threading.enumerate()) > 1

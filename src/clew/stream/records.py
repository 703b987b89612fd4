"""Raw records: how observers in this process note events, until a batch is made of them.

Observers append to two flat lists, because that is the hot path and a container per event would
keep the garbage collector busy: `events`, EVENT_FIELDS items per event in the order in which events
end, and `values`, VALUE_FIELDS items per tensor version. The `encoder` turns them into batches of
plain integers (`clew.stream`). Records hold facts about tensors, never tensors, frames or modules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from clew.events.vocabulary import Kept

if TYPE_CHECKING:
    from clew.record.foreign import Foreign

# Fields of an event. SUBJECT is the op, the `ModuleName` of a module, a `Note`, a `StepMark` or a
# `Label`. NODE is a `StackNode`; PARENT the id of the enclosing module call or -1. NUMBER is the
# call index of a module, for an op its autograd number (see `observe.dispatch`), and for a gathered
# value its step. ARGS, KWARGS and OUT are the arguments and result as lists, dicts, constants and
# tokens. ERROR is None or the text of the exception. SEEN is, for an op, how many storages were
# found to be freed since the last batch, alone or with the generator it drew from and how often
# that was used before; else None.
ID, SUBJECT, NODE, PARENT, START, END, NUMBER, ARGS, KWARGS, OUT, ERROR, SEEN = range(12)
EVENT_FIELDS = 12

# END of a call that has not returned.
OPEN = -1

# Fields of a value: one tensor at one version. TOKEN is the object that stands for it in ARGS,
# KWARGS and OUT: its shape, a tuple made for this value alone and compared by identity. STORAGE is
# None for new memory, the token of the value whose memory it shares, or a number that all tensors
# on the same memory have. VERSION is the tensor's version counter; with a token for STORAGE it is
# None for a view, which has the version of the memory, and the new version after a write, WRITTEN
# if torch keeps no count (inference tensors). EXTRA is None for a plain strided tensor. GRAD is
# requires_grad. PRODUCER is the id of the event that made it, -1 if that was not seen, SAME if it
# equals the value whose memory it has except for GRAD. NAME is the path of a parameter or buffer,
# else None. REFERENCE is the id that is reported when its memory is freed, None if another value
# has it.
TOKEN, VERSION, STORAGE, STRIDE, DTYPE, DEVICE, EXTRA, GRAD, PRODUCER, NAME, REFERENCE = range(11)
VALUE_FIELDS = 11
WRITTEN = -1
SAME = -2

# Described arguments use lists and dicts for containers, so a tuple is always a token.
Token: TypeAlias = tuple[Any, ...]


def tokens_in(described: Any) -> Iterator[Token]:
    """Yield the tokens in a described value."""
    if isinstance(described, tuple):
        yield described
    elif isinstance(described, list):
        for item in described:
            yield from tokens_in(item)
    elif isinstance(described, dict):
        yield from tokens_in(list(described.values()))


class Extra(NamedTuple):
    """What makes a tensor differ from a plain strided one."""

    layout: str
    cls: str
    placements: str | None
    local_shape: tuple[int, ...] | None


class UnknownShape(tuple[int, ...]):
    """Token of a tensor that has no plain shape."""

    __slots__ = ()


class Note(str):
    """Subject of an event that is not a call: `error`, `fault`."""

    __slots__ = ()


class StepMark(int):
    """Subject of a step event: the number of the step that begins."""

    __slots__ = ()


class Shape(tuple[int, ...]):
    """Token of a value that is no tensor: equal to its shape, identical only to itself."""

    __slots__ = ()


class NumberedToken(tuple[int, ...]):
    """Token of a tensor whose value the native engine has numbered."""

    number: int


# Statistics and data of a value, or a function that returns them when the records are stored.
Made: TypeAlias = Kept | Callable[[], Kept]


def once(make: Callable[[], Kept]) -> Callable[[], Kept]:
    """Return a function that calls `make` once and returns its result each time."""
    made: list[Kept] = []

    def get() -> Kept:
        if not made:
            made.append(make())
        return made[0]

    return get


# An event as the native engine writes it.
EVENT_ROW = np.dtype(
    [(name, np.int64) for name in ("id", "parent", "start", "end", "number", "first_ref")]
    + [(name, np.int32) for name in ("kind", "subject", "node", "arguments", "error", "generator",
                                     "draw", "refs")]
)  # fmt: skip


class NativeRows(NamedTuple):
    """What the native engine recorded since the last time, as `native/sources/rows.h` has it.

    `kept` are statistics of values, `marks` their fingerprints, `data` copies of their elements.

    `metas` and `arguments` are the new rows of its tables, as words, and their first numbers;
    `oldest_arguments` is the first row that may be used again. `odd_metas` are the facts of
    tensors that Python has read, `constants` objects that arguments refer to by number, `names` the
    names of tensors that no event made. All but these three come from the engine, in this order.
    """

    events: bytes
    refs: bytes
    values: bytes
    freed: bytes
    gone: bytes
    first_value: int
    metas: list[bytes]
    arguments: list[bytes]
    first_arguments: int
    oldest_arguments: int
    texts: list[str]
    errors: list[str | None]
    first_error: int
    open_calls: bytes
    kept: bytes
    marks: bytes
    data: list[Any]
    # Attributes of modules, as `record.attributes` notes them.
    noted: list[Any]
    names: list[str | None]
    odd_metas: list[Any]
    constants: list[Any]

    @property
    def size(self) -> int:
        """Return about how many bytes the rows hold, with what is kept of values."""
        rows = len(self.events) + len(self.refs) + len(self.values)
        kept = len(self.kept) + len(self.marks)
        return rows + kept + sum([memoryview(block).nbytes for block in self.data])

    def gone_numbers(self) -> list[int]:
        """Return the numbers of values that no later row refers to."""
        gone: list[int] = np.frombuffer(self.gone, np.int64).tolist()
        return gone


@dataclass(slots=True)
class Records:
    """What was recorded since the last time, in raw form."""

    events: list[Any]
    values: list[Any]
    # (token, `Made` of its value)
    kept: list[Any] = field(default_factory=list)
    # Tokens that later batches may refer to again.
    surviving: list[Any] = field(default_factory=list)
    # Whether other threads may be about to refer to values of these records.
    is_shared: bool = False
    # Records of the calls that are open now; each comes again, complete, when its call ends.
    open_calls: list[Any] = field(default_factory=list)
    # References to memory that was freed, in order.
    gone: list[Any] = field(default_factory=list)
    # Bytes of memory from outside, by its number.
    sizes: dict[int, tuple[int, int]] = field(default_factory=dict)
    # Settings of modules and optimizers.
    attributes: list[Any] = field(default_factory=list)
    # What other processes recorded.
    foreign: list[Foreign] = field(default_factory=list)
    # What the native engine recorded, if it records.
    native: NativeRows | None = None
    # About how many bytes the batch will have.
    size: int = 0


class Taker(Protocol):
    """Takes records over, and makes batches of them."""

    def take(self, records: Records) -> None:
        """Take over some records."""

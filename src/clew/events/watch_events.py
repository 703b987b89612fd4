"""Events of a watch: calls, and variables as they change. Data between capture and a view.

It contains no live values: a `ValueSummary` holds facts and short texts, never an array or an
object. These are tuples, because one is made for every line of text.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

What: TypeAlias = Literal[
    "enter", "input", "change", "delete", "line", "yield", "resume", "return", "raise", "note"
]

TENSOR, ARRAY, OTHER = "tensor", "array", "other"


class ValueSummary(NamedTuple):
    """Summary of a value at one moment.

    `kind` is TENSOR, ARRAY or OTHER, `cls` its class. `text` is the value itself if it is short.
    `items` are the leaves of a container by their paths, `length` is how many items the container
    itself has. `memory` distinguishes objects, and versions of one object.
    """

    kind: str
    cls: str
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    device: str = ""
    layout: str = ""
    strided: bool = False
    grad: bool = False
    stats: dict[str, Any] | None = None
    text: str | None = None
    items: tuple[tuple[str, ValueSummary], ...] = ()
    length: int | None = None
    memory: Any = None


class WatchedCall(NamedTuple):
    """One call of a watched function; `number` identifies it, in order.

    `chain` lists its callers, nearest first, if no other watched call made it. `begun` is False for
    a block that was entered in the middle of its function. `decorated` says that it is the
    decorated function itself. `worker` names another thread or process.
    """

    number: int
    parent: int | None
    depth: int
    function: str
    file: str
    line: int
    chain: tuple[str, ...] = ()
    begun: bool = True
    decorated: bool = False
    worker: str = ""


class WatchEvent(NamedTuple):
    """One event that a watch saw.

    `name` is a variable, `alias` the name its value has in the calling function. `changes` lists
    what differs between `before` and `after`, the most important first. `source` is the text of the
    line, for lines and changes; `seconds` is how long a call took.
    """

    what: What
    call: WatchedCall
    line: int
    name: str = ""
    alias: str = ""
    before: ValueSummary | None = None
    after: ValueSummary | None = None
    changes: tuple[str, ...] = ()
    source: str = ""
    seconds: float | None = None
    text: str = ""

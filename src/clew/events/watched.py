"""What a watch tells: calls, and variables as they change. Data on its way from capture to a view.

In come no live values: a `Seen` holds facts and short texts, never an array or an object. Tuples,
as they are made for every line of text.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

What: TypeAlias = Literal[
    "enter", "input", "change", "delete", "line", "yield", "resume", "return", "raise", "note"
]

TENSOR, ARRAY, OTHER = "tensor", "array", "other"


class Seen(NamedTuple):
    """What a value looked like at one moment.

    `kind` is TENSOR, ARRAY or OTHER, `cls` its class. `text` is the value itself where it is
    short. `items` are the leaves of a container by their paths, `length` is how many things it
    holds itself. `memory` tells objects and versions of one object apart.
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
    items: tuple[tuple[str, Seen], ...] = ()
    length: int | None = None
    memory: Any = None


class WatchedCall(NamedTuple):
    """One call of a function that is watched; `number` tells calls apart, in order.

    `chain` says who called it, nearest first, for calls that no other watched call made.
    `begun` is False for a block that was entered in the middle of its function. `decorated` says
    that it is the watched function itself. `worker` names another thread or process.
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


class Happening(NamedTuple):
    """One thing that a watch saw.

    `name` is a variable, `alias` the name its value has in the calling function. `changes` says
    what differs between `before` and `after`, the most telling first. `source` is the text of the
    line, of lines and changes, `seconds` how long a call took.
    """

    what: What
    call: WatchedCall
    line: int
    name: str = ""
    alias: str = ""
    before: Seen | None = None
    after: Seen | None = None
    changes: tuple[str, ...] = ()
    source: str = ""
    seconds: float | None = None
    text: str = ""

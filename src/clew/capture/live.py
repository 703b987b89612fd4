"""What is recorded, told as it happens: the feed of `clew.trace(live=True)`.

In come calls and records as the sources make them, out go plain words to a `Listener`. Slower
than recording by far, and made only when asked for.
"""

from __future__ import annotations

import linecache
from typing import Any, Protocol

from clew.capture.recording import INPUTS, NAME, NAMED, NODE, Call, Lane, Recording
from clew.capture.sources import StackNode, places_of
from clew.events.model import Source, short_dtype
from clew.events.records import ARGS as ARGUMENTS
from clew.events.records import (
    DTYPE,
    END,
    ERROR,
    KWARGS,
    OUT,
    START,
    SUBJECT,
    TOKEN,
    VALUE_FIELDS,
    Unseen,
)
from clew.events.records import NODE as RECORD_NODE


class Listener(Protocol):
    """Who wants to hear."""

    def enter(
        self, depth: int, path: str, cls: str, source: Source | None, inputs_text: str
    ) -> None: ...
    def leave(
        self, depth: int, path: str, cls: str, outputs_text: str, seconds: float, error: str | None
    ) -> None: ...
    def op(self, depth: int, source: Source | None, text: str, error: str | None) -> None: ...


class LiveFeed:
    """Turns calls and records into words."""

    def __init__(self, recording: Recording, listener: Listener) -> None:
        self._recording = recording
        self._listener = listener
        self._described: dict[int, tuple[Any, str]] = {}
        self._read = 0

    def entered(self, lane: Lane, call: Call) -> None:
        """A module call begins."""
        name: Any = call[NAME]
        inputs = self._arguments(call[INPUTS], call[NAMED])
        self._listener.enter(len(lane.stack) - 2, name.path, name.cls, _source(call[NODE]), inputs)

    def ended(self, record: tuple[Any, ...]) -> None:
        """An event is over: a module call, an op, a note."""
        lane = self._recording.lane()
        depth = len(lane.stack) - 1
        subject, error = record[SUBJECT], record[ERROR]
        if record[OUT] is Unseen:
            return
        outputs = self._text(record[OUT])
        if hasattr(subject, "entry"):
            seconds = max(record[END] - record[START], 0) / 1e9
            self._listener.leave(depth, subject.path, subject.cls, outputs, seconds, error)
        elif error is None or hasattr(subject, "_schema"):
            arguments = self._arguments(record[ARGUMENTS], record[KWARGS])
            arrow = f" -> {outputs}" if outputs else ""
            name = str(subject).removeprefix("aten.").removesuffix(".default")
            source = _source(record[RECORD_NODE])
            self._listener.op(depth, source, f"{name}({arguments}){arrow}", error)

    def _arguments(self, args: Any, kwargs: Any) -> str:
        positional = [self._text(a) for a in args or []]
        named = [f"{k}={self._text(v)}" for k, v in (kwargs or {}).items()]
        return ", ".join([*positional, *named])

    def _text(self, described: Any) -> str:
        if isinstance(described, tuple):
            return self._tensor(described)
        if isinstance(described, list):
            return "[" + ", ".join(self._text(item) for item in described) + "]"
        if isinstance(described, dict):
            return ", ".join(f"{k}: {self._text(v)}" for k, v in described.items())
        return "" if described is None else str(described)

    def _tensor(self, token: tuple[Any, ...]) -> str:
        values = self._recording.tensors.values
        if len(values) < self._read:
            self._read = 0  # handed to the store meanwhile
        for at in range(self._read, len(values), VALUE_FIELDS):
            shape, dtype = values[at + TOKEN], values[at + DTYPE]
            kind = short_dtype(str(dtype).replace("torch.", ""))
            text = f"{kind}[{','.join(map(str, shape))}]"
            self._described[id(shape)] = (shape, text)
        self._read = len(values)
        return self._described.get(id(token), (None, str(list(token))))[1]


def _source(node: StackNode) -> Source | None:
    """The innermost line of the user's own code at or above a node."""
    at: StackNode | None = node
    while at is not None and at.code is not None:
        [place] = places_of([_alone(at)])
        if not place.library:
            text = linecache.getline(place.file, place.line).strip()
            return Source(
                place.file, place.line, place.end_line, place.col, place.end_col,
                place.function, text,
            )  # fmt: skip
        at = at.parent
    return None


def _alone(node: StackNode) -> StackNode:
    return StackNode(node.index, None, node.code, node.lasti, node.phase, node.thread)

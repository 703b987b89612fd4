"""What is recorded, told as it happens: the feed of `clew.trace(live=...)`.

In come calls and records as the sources make them, out go `Happening`s to a `Listener`. Slower
than recording by far, and made only when asked for.
"""

from __future__ import annotations

import functools
import linecache
from typing import Any

from clew.capture.lanes import INPUTS, NAME, NAMED, NODE, Call, Lane
from clew.capture.recording import Recording
from clew.capture.sources import StackNode, places_of
from clew.events.live import Happening, Listener, LiveValue
from clew.events.model import Source
from clew.events.records import ARGS as ARGUMENTS
from clew.events.records import (
    DEVICE,
    DTYPE,
    END,
    ERROR,
    EXTRA,
    KINDS,
    KWARGS,
    OUT,
    START,
    SUBJECT,
    TOKEN,
    VALUE_FIELDS,
    Extra,
    Label,
    Note,
    UnknownShape,
    Unseen,
)
from clew.events.records import NODE as RECORD_NODE

_PLAIN = Extra("strided", "Tensor", None, None)


class LiveFeed:
    """Tells a listener of calls and records."""

    def __init__(self, recording: Recording, listener: Listener) -> None:
        self._recording = recording
        self._listener = listener
        self._values: dict[int, tuple[Any, LiveValue]] = {}
        self._read = 0
        self._failed = False

    def entered(self, lane: Lane, call: Call) -> None:
        """A module call begins."""
        name: Any = call[NAME]
        self._tell(
            "begins", "module", name.cls, name.path, len(lane.stack) - 2, call[NODE],
            call[INPUTS], call[NAMED], module=name.entry.ref,
        )  # fmt: skip

    def ended(self, record: tuple[Any, ...]) -> None:
        """An event is over."""
        subject, error = record[SUBJECT], record[ERROR]
        if record[OUT] is Unseen:
            return
        kind, name, path, module = "op", str(subject), None, _nothing
        if hasattr(subject, "entry"):
            kind, name, path, module = "module", subject.cls, subject.path, subject.entry.ref
        elif isinstance(subject, Label):
            kind, name, path = KINDS[subject.kind], subject.name, subject.module
        elif isinstance(subject, Note):
            kind = "note"
        depth = len(self._recording.lane().stack) - 1
        self._tell(
            "ends", kind, name, path, depth, record[RECORD_NODE], record[ARGUMENTS],
            record[KWARGS], record[OUT], max(record[END] - record[START], 0) / 1e9, error, module,
        )  # fmt: skip

    def _tell(
        self, what: str, kind: str, name: str, path: str | None, depth: int, node: StackNode,
        inputs: Any, keywords: Any, outputs: Any = None, seconds: float | None = None,
        error: str | None = None, module: Any = None,
    ) -> None:  # fmt: skip
        if self._failed:
            return
        self._learn()
        stack = functools.partial(_stack, node)
        event = Happening(
            kind, name, path, depth, self._seen(inputs or []), self._seen(keywords or {}),
            self._seen(outputs), seconds, error, _is_direct(node), stack, module or _nothing,
        )  # fmt: skip
        try:
            getattr(self._listener, what)(event)
        except Exception as fault:
            self._failed = True
            self._recording.on_fault(fault, "what was to be told as it happens")

    def _seen(self, described: Any) -> Any:
        if isinstance(described, tuple):
            known = self._values.get(id(described))
            return str(list(described)) if known is None else known[1]
        if isinstance(described, list):
            return [self._seen(item) for item in described]
        if isinstance(described, dict):
            return {key: self._seen(item) for key, item in described.items()}
        return described

    def _learn(self) -> None:
        """Take note of the values met since the last time."""
        values = self._recording.tensors.values
        if len(values) < self._read:
            self._read = 0  # handed to the store meanwhile
        for at in range(self._read, len(values), VALUE_FIELDS):
            token, extra = values[at + TOKEN], values[at + EXTRA] or _PLAIN
            shape = None if isinstance(token, UnknownShape) else tuple(token)
            value = LiveValue(
                str(values[at + DTYPE]).replace("torch.", ""), shape, str(values[at + DEVICE]),
                extra.layout, extra.cls, extra.placements, extra.local_shape,
            )  # fmt: skip
            self._values[id(token)] = (token, value)
        self._read = len(values)


def _nothing() -> None:
    return None


def _stack(node: StackNode) -> tuple[Source, ...]:
    """The program's own lines at and above a node, outermost first."""
    found = []
    at: StackNode | None = node
    while at is not None:
        [place] = places_of([_alone(at)])
        if place.line > 0 and not place.library:
            text = linecache.getline(place.file, place.line).strip()
            line, end_line, col, end_col = place.line, place.end_line, place.col, place.end_col
            found.append(Source(place.file, line, end_line, col, end_col, place.function, text))
        at = at.parent
    return tuple(reversed(found))


def _is_direct(node: StackNode) -> bool:
    [place] = places_of([_alone(node)])
    return not place.library


def _alone(node: StackNode) -> StackNode:
    alone = StackNode(node.index, None, node.code, node.lasti, node.phase, node.thread)
    alone.site = node.site
    return alone

"""Report records while the program runs: the feed of `clew.trace(live=...)`.

Input: calls and records as the observers make them. Output: `Happening`s to a `Listener`. Far
slower than recording, and only on when asked for.
"""

from __future__ import annotations

from typing import Any

from clew.events.live_events import Happening, Listener, LiveValue
from clew.events.model import Source
from clew.events.vocabulary import KINDS, Label, Opaque, Unseen
from clew.record.recorder import Recorder
from clew.record.stacks import StackNode, lines_of
from clew.record.thread_state import INPUTS, NAME, NAMED, NODE, Call, ThreadState
from clew.stream.records import ARGS as ARGUMENTS
from clew.stream.records import (
    DEVICE,
    DTYPE,
    END,
    ERROR,
    EXTRA,
    KWARGS,
    OUT,
    START,
    SUBJECT,
    TOKEN,
    VALUE_FIELDS,
    Extra,
    Note,
    UnknownShape,
    tokens_in,
)
from clew.stream.records import NODE as RECORD_NODE

# Modules that define the classes that compilers make.
_COMPILERS = ("torch.fx.", "torch._")
_PLAIN = Extra("strided", "Tensor", None, None)


class LiveFeed:
    """Reports calls and records to a listener."""

    def __init__(self, recorder: Recorder, listener: Listener) -> None:
        self._recorder = recorder
        self._listener = listener
        self._values: dict[int, tuple[Any, LiveValue]] = {}
        self._read = 0
        self._is_new_batch = False
        self._failed = False

    def handed_over(self) -> None:
        """Start a new batch: the records so far, and values nobody references, are gone."""
        self._is_new_batch = True

    def entered(self, thread: ThreadState, call: Call) -> None:
        """Report that a module call begins."""
        name: Any = call[NAME]
        self._tell(
            "begins", "module", name.cls, name.path, len(thread.stack) - 2, call[NODE],
            call[INPUTS], call[NAMED], module=name.entry.ref,
        )  # fmt: skip

    def ended(self, record: tuple[Any, ...]) -> None:
        """Report that an event is over."""
        subject, error = record[SUBJECT], record[ERROR]
        if record[OUT] is Unseen:
            return
        stack = self._recorder.thread().stack
        around: Any = stack[-1][NAME]
        kind, name, module = "op", str(subject), _nothing
        path = None if around is None else around.path
        if hasattr(subject, "entry"):
            kind, name, path, module = "module", subject.cls, subject.path, subject.entry.ref
        elif isinstance(subject, Label):
            kind, name, path = KINDS[subject.kind], subject.name, subject.module
        elif isinstance(subject, Note):
            kind = "note"
        self._tell(
            "ends", kind, name, path, len(stack) - 1, record[RECORD_NODE], record[ARGUMENTS],
            record[KWARGS], record[OUT], max(record[END] - record[START], 0) / 1e9, error, module,
            stack[-1] if kind == "op" else None,
        )  # fmt: skip

    def _tell(
        self, what: str, kind: str, name: str, path: str | None, depth: int, node: StackNode,
        inputs: Any, keywords: Any, outputs: Any = None, seconds: float | None = None,
        error: str | None = None, module: Any = None, around: Call | None = None,
    ) -> None:  # fmt: skip
        if self._failed:
            return
        self._learn()
        lines = lines_of(node)
        is_direct = node.parent is not None and lines is not node.parent.lines
        event = Happening(
            kind, name, path, depth, self._seen(inputs or []), self._seen(keywords or {}),
            self._seen(outputs), seconds, error, is_direct, lambda: lines, module or _nothing,
            None if around is None else _caller(lines, around),
        )  # fmt: skip
        try:
            getattr(self._listener, what)(event)
        except Exception as fault:
            self._failed = True
            self._recorder.gaps.fault(fault, "what was to be told as it happens")

    def _seen(self, described: Any) -> Any:
        if isinstance(described, tuple):
            known = self._values.get(id(described))
            return Opaque(list(described)) if known is None else known[1]
        if isinstance(described, list):
            return [self._seen(item) for item in described]
        if isinstance(described, dict):
            return {key: self._seen(item) for key, item in described.items()}
        return described

    def _learn(self) -> None:
        """Read the values recorded since the last call."""
        recorder = self._recorder
        values = recorder.values.tensors.values
        if self._is_new_batch:
            self._is_new_batch, self._read = False, 0
            alive = set(map(id, tokens_in(recorder.surviving())))
            self._values = {key: known for key, known in self._values.items() if key in alive}
        for at in range(self._read, len(values), VALUE_FIELDS):
            token, extra = values[at + TOKEN], values[at + EXTRA] or _PLAIN
            shape = None if isinstance(token, UnknownShape) else tuple(token)
            value = LiveValue(
                str(values[at + DTYPE]).replace("torch.", ""), shape, str(values[at + DEVICE]),
                extra.layout, extra.cls, extra.placements, extra.local_shape,
            )  # fmt: skip
            self._values[id(token)] = (token, value)
        self._read = len(values)


def _caller(lines: tuple[Source, ...], around: Call) -> str | None:
    """Return the name of the function that ran an op in a module call."""
    name: Any = around[NAME]
    # No line of user code has run since the call began.
    is_inside = name is not None and lines is lines_of(around[NODE])
    if is_inside and not type(name.entry.ref()).__module__.startswith(_COMPILERS):
        return f"{name.cls}.forward"
    return lines[-1].function if lines else None


def _nothing() -> None:
    return None

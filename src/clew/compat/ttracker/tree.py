"""The tree of Tensor Tracker: the happenings of a watch as lines in that tool's form, in English.

In come happenings and what values look like, out go lines to `logs`.
"""

from __future__ import annotations

import threading

from clew.compat.ttracker.logs import log2file
from clew.events.watched import Happening
from clew.views.text import facts
from clew.watch_output import Output


class IndentManager:
    """How deep this thread is in the tree."""

    _local = threading.local()

    @classmethod
    def increase(cls, by: int = 1) -> None:
        cls._local.level = max(getattr(cls._local, "level", 0) + by, 0)

    @classmethod
    def decrease(cls) -> None:
        cls.increase(-1)

    @classmethod
    def get_indent(cls) -> str:
        return "│   " * getattr(cls._local, "level", 0)


class Tree(Output):
    """The output of a watch: lines as Tensor Tracker writes them."""

    def __init__(self, every_call: bool = False) -> None:
        self._every_call = every_call
        self._waiting: set[int] = set()  # generators that have let their caller go on

    def tell(self, happening: Happening) -> None:
        call, what, now = happening.call, happening.what, happening.after
        is_shown, indent = call.decorated or self._every_call, IndentManager.get_indent()
        if what == "note":
            log2file(f"{indent}├─ [WARN] {happening.text}")
        elif what == "line":
            log2file(f"{indent}├─ [{facts.place(call.file, happening.line)}] {happening.source}")
        elif what == "enter" and is_shown:
            log2file(f"{indent}┌── {facts.header(call)}")
            IndentManager.increase()
        elif what == "input" and is_shown and now is not None:
            if happening.name != "self" or now.text is not None:
                log2file(facts.named(indent[4:], "input", happening.name, 0, now))
        elif what in ("change", "delete") or (what == "input" and happening.changes):
            log2file(*facts.changed(happening, indent))
        elif is_shown:
            self._pass(happening)

    def _pass(self, happening: Happening) -> None:
        """A call ends, or lets another go on."""
        number, what = happening.call.number, happening.what
        if (number in self._waiting) == (what == "resume"):
            IndentManager.increase(1 if what == "resume" else -1)
        self._waiting.discard(number)
        indent = IndentManager.get_indent()
        if what == "yield":
            self._waiting.add(number)
            log2file(f"{indent}├─ yield {facts.value_text(happening.after)}")
        elif what != "resume":
            lines = [*facts.outcome(happening), f"time {happening.seconds or 0:.4f} s"]
            log2file(*[f"{indent}└─ {line}" for line in lines])


class Stack(Output):
    """The output of a watch that tells nothing but the stack of each call."""

    def tell(self, happening: Happening) -> None:
        if happening.what == "enter":
            log2file(*facts.stack(happening.call))

"""The tree of Tensor Tracker: the happenings of a watch as lines in that tool's form, in English.

In come happenings and what values look like, out go lines to `logs`.
"""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass

from clew.compat.ttracker.logs import log2file
from clew.events.watched import OTHER, TENSOR, Happening, Seen, WatchedCall

_FEW_ITEMS = 8


class IndentManager:
    """How deep this thread is in the tree."""

    _local = threading.local()

    @classmethod
    def level(cls) -> int:
        """The number of calls that are open."""
        return int(getattr(cls._local, "level", 0))

    @classmethod
    def move_to(cls, level: int) -> None:
        """Go on at another depth."""
        cls._local.level = max(level, 0)

    @classmethod
    def get_indent(cls) -> str:
        return "│   " * cls.level()

    @classmethod
    def increase(cls) -> None:
        cls.move_to(cls.level() + 1)

    @classmethod
    def decrease(cls) -> None:
        cls.move_to(cls.level() - 1)


@dataclass(slots=True)
class _Open:
    """A call that is open: its depth in the tree, and names that another tracker tells of."""

    level: int
    others: frozenset[str]
    waits: bool = False


# File and line of the functions that have a tracker of their own -> what it tracks.
TRACKED: dict[tuple[str, int], frozenset[str]] = {}


class Tree:
    """The output of a watch: lines as Tensor Tracker writes them."""

    def __init__(self, every_call: bool = False) -> None:
        self._every_call = every_call
        self._open: dict[int, _Open] = {}
        self._last: dict[str, Seen | None] = {}

    def flush(self) -> None:
        """Lines are there as soon as they are told."""

    def files(self) -> list[str]:
        return []

    def tell(self, happening: Happening) -> None:
        call, what = happening.call, happening.what
        if what == "note":
            log2file(f"{IndentManager.get_indent()}├─ [WARN] {happening.text}")
        elif what == "enter":
            self._enter(call)
        elif what in ("return", "raise", "yield", "resume"):
            self._pass(happening)
        elif what == "line":
            place = f"{os.path.basename(call.file)}:{happening.line}"
            log2file(f"{IndentManager.get_indent()}├─ [{place}] {happening.source}")
        else:
            self._variable(happening)

    def _is_shown(self, call: WatchedCall) -> bool:
        return call.decorated or self._every_call

    def _enter(self, call: WatchedCall) -> None:
        above = self._open.get(-1 if call.parent is None else call.parent)
        others = above.others if above is not None else frozenset()
        if not call.decorated:
            others |= TRACKED.get((call.file, call.line), frozenset())
        self._open[call.number] = state = _Open(IndentManager.level(), others)
        if self._is_shown(call):
            log2file(f"{IndentManager.get_indent()}┌── {_header(call)}")
            IndentManager.move_to(state.level + 1)

    def _pass(self, happening: Happening) -> None:
        """A call ends, or lets another go on."""
        call, what = happening.call, happening.what
        is_over = what in ("return", "raise")
        state = self._open.pop(call.number, None) if is_over else self._open.get(call.number)
        if state is None or not self._is_shown(call):
            return
        if what == "resume":
            state.level, state.waits = IndentManager.level(), False
            IndentManager.move_to(state.level + 1)
            return
        indent = "│   " * state.level
        if what == "yield":
            log2file(f"{indent}├─ yield {_outcome(happening.after)}")
        elif what == "raise":
            log2file(f"{indent}└─ raised {_first_line(happening.text)}")
        else:
            for name, item in _results(happening.after):
                log2file(f"{indent}└─ {name} {_outcome(item)}")
        if not state.waits:
            IndentManager.move_to(state.level)
        state.waits = what == "yield"
        if is_over:
            log2file(f"{indent}└─ time {happening.seconds or 0:.4f} s")

    def _variable(self, happening: Happening) -> None:
        call, name, now = happening.call, happening.name, happening.after
        is_input = happening.what == "input"
        state = self._open.get(call.number)
        if state is not None and re.split(r"[.\[]", name)[0] in state.others:
            return
        indent = IndentManager.get_indent()
        if is_input and self._is_shown(call):
            self._last[name] = now
            if now is not None and not (name == "self" and now.text is None):
                log2file(line_of("│   " * (state.level if state else 0), "input", name, 0, now))
            return
        # What is not tracked, what a tracker of its own tells, or the caller's own, handed down.
        known = (call.file, call.line) in TRACKED or self._last.get(name) == now
        if is_input and (known or not happening.changes):
            return
        self._last[name] = now
        before = happening.before
        if now is None:
            log2file(f"{indent}├─ [Var] {name}@{happening.line} deleted")
            return
        if before is not None and before.dtype and now.dtype and before.dtype != now.dtype:
            log2file(f"{indent}├─ [WARN] dtype changed: {_dtype(before)} → {_dtype(now)}")
        log2file(line_of(indent, "", name, happening.line, now))


class Stack(Tree):
    """The output of a watch that tells nothing but the stack of each call."""

    def tell(self, happening: Happening) -> None:
        call = happening.call
        if happening.what != "enter":
            return
        for place, name in map(_caller, reversed(call.chain)):
            log2file(f"-> {name}() at {place}")
        log2file(f"-> {call.function}() at {os.path.basename(call.file)}:{call.line}")


def _header(call: WatchedCall) -> str:
    text = f"[{os.path.basename(call.file)}:{call.line}] function [{call.function}]"
    callers = [_caller(caller) for caller in call.chain]
    if not callers:
        return text
    (place, name), places = callers[0], " <- ".join(place for place, _ in callers)
    return f"{text} called at {name}:{place.rpartition(':')[2]} ({places})"


def _caller(text: str) -> tuple[str, str]:
    """The place and the function of a caller: `a.py:3 run`, without a function at the top."""
    found = re.fullmatch(r"(.*?:\d+)(?: (.*))?", text)
    return (found[1], found[2] or "<module>") if found else (text, "")


def _results(result: Seen | None) -> list[tuple[str, Seen | None]]:
    """A result, or the items of a tuple or list of tensors."""
    items = () if result is None or result.cls not in ("tuple", "list") else result.items
    if any(item.kind != OTHER for _, item in items):
        return [(f"output[{path}]", item) for path, item in items]
    return [("output", result)]


def line_of(indent: str, prestr: str, name: str, lineno: int, value: Seen) -> str:
    kind, arrow = ("[Var]", "") if value.kind == OTHER else ("[Tensor]", "→ ")
    return f"{indent}├─ {prestr}{' ' * bool(prestr)}{kind} {name}@{lineno} {arrow}{info(value)}"


def _outcome(value: Seen | None) -> str:
    return "value: None" if value is None else info(value)


def _dtype(value: Seen) -> str:
    return f"torch.{value.dtype}" if value.kind == TENSOR else value.dtype


def info(value: Seen) -> str:
    """What a value is: `shape=… | dtype=… | sum=…`, `value: 3`, `len(value): 4 | …`."""
    if value.kind == OTHER:
        if value.length is None:
            return f"value: {value.cls if value.text is None else value.text}"
        parts = [f"{path}: {item.text or info(item)}" for path, item in value.items[:_FEW_ITEMS]]
        more = len(value.items) - _FEW_ITEMS
        parts += [f"{more} more"] if more > 0 else []
        return " | ".join([f"len(value): {value.length}", *([", ".join(parts)] if parts else [])])
    shape = f"torch.Size({list(value.shape or ())})" if value.kind == TENSOR else f"{value.shape}"
    parts = [f"shape={shape}", f"dtype={_dtype(value)}", *_numbers(value)]
    if value.device not in ("cpu", ""):
        parts.append(f"device={value.device}")
    if value.layout or value.strided:
        parts.append(f"layout={value.layout or 'strided'}")
    return " | ".join(parts + ["requires_grad=True"] * value.grad)


def _numbers(value: Seen) -> list[str]:
    stats = value.stats or {}
    if "mean" not in stats:
        return []
    whole = value.dtype.startswith(("int", "uint", "bool"))
    finite = stats["count"] - stats["nan"] - stats["inf"]
    shown = {name: stats[name] for name in ("mean", "min", "max")}
    if not value.dtype.startswith("complex"):
        shown = {"sum": stats["mean"] * finite, **shown}
    texts = [f"{k}={round(n) if whole and k != 'mean' else f'{n:.6g}'}" for k, n in shown.items()]
    return texts + [f"{name}={stats[name]}" for name in ("nan", "inf") if stats[name]]


def _first_line(text: str) -> str:
    return text.partition("\n")[0]

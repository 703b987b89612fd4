"""The tree of Tensor Tracker: the happenings of a watch as lines in that tool's form, in English.

In come happenings and what values look like, out go lines to `logs`.
"""

from __future__ import annotations

import os
import re
import threading

from clew.compat.ttracker.logs import log2file
from clew.events.watched import OTHER, TENSOR, Happening, Seen, WatchedCall
from clew.watch_output import Output

_FEW_ITEMS = 8
_NOTHING: frozenset[str] = frozenset()
# File and line of the functions that have a tracker of their own -> what it tracks.
TRACKED: dict[tuple[str, int], frozenset[str]] = {}


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
        # Open calls with the names that a tracker of their own tells; generators that wait.
        self._others: dict[int | None, frozenset[str]] = {}
        self._waiting: set[int] = set()
        self._last: dict[str, Seen | None] = {}

    def tell(self, happening: Happening) -> None:
        call, what = happening.call, happening.what
        is_shown = call.decorated or self._every_call
        if what == "note":
            log2file(f"{IndentManager.get_indent()}├─ [WARN] {happening.text}")
        elif what == "line":
            place = f"{os.path.basename(call.file)}:{happening.line}"
            log2file(f"{IndentManager.get_indent()}├─ [{place}] {happening.source}")
        elif what in ("input", "change", "delete"):
            self._variable(happening, is_shown and what == "input")
        elif what == "enter":
            own = _NOTHING if call.decorated else TRACKED.get((call.file, call.line), _NOTHING)
            self._others[call.number] = own | self._others.get(call.parent, _NOTHING)
            if is_shown:
                log2file(f"{IndentManager.get_indent()}┌── {_header(call)}")
                IndentManager.increase()
        else:
            if what in ("return", "raise"):
                self._others.pop(call.number, None)
            if is_shown:
                self._pass(happening)

    def _pass(self, happening: Happening) -> None:
        """A call ends, or lets another go on."""
        number, what = happening.call.number, happening.what
        if (number in self._waiting) == (what == "resume"):
            IndentManager.increase(1 if what == "resume" else -1)
        self._waiting.discard(number)
        indent, time = IndentManager.get_indent(), f"└─ time {happening.seconds or 0:.4f} s"
        if what == "yield":
            self._waiting.add(number)
            log2file(f"{indent}├─ yield {_outcome(happening.after)}")
        elif what == "raise":
            first = happening.text.partition("\n")[0]
            log2file(f"{indent}└─ raised {first}", indent + time)
        elif what == "return":
            found = _results(happening.after)
            lines = [f"{indent}└─ {name} {_outcome(item)}" for name, item in found]
            log2file(*lines, indent + time)

    def _variable(self, happening: Happening, is_own_input: bool) -> None:
        call, name, before, now = happening.call, happening.name, happening.before, happening.after
        if re.split(r"[.\[]", name)[0] in self._others.get(call.number, _NOTHING):
            return
        indent = IndentManager.get_indent()
        if is_own_input:
            if now is not None and not (name == "self" and now.text is None):
                log2file(line_of(indent[4:], "input", name, 0, now))
        # Told unless not tracked, told by another tracker, or the caller's own, handed down.
        elif happening.what == "input" and (
            not happening.changes
            or (call.file, call.line) in TRACKED
            or self._last.get(name) == now
        ):
            return
        elif now is None:
            log2file(f"{indent}├─ [Var] {name}@{happening.line} deleted")
        else:
            lines = [line_of(indent, "", name, happening.line, now)]
            if before is not None and before.dtype and now.dtype not in ("", before.dtype):
                change = f"{_dtype(before)} → {_dtype(now)}"
                lines.insert(0, f"{indent}├─ [WARN] dtype changed: {change}")
            log2file(*lines)
        self._last[name] = now


class Stack(Output):
    """The output of a watch that tells nothing but the stack of each call."""

    def tell(self, happening: Happening) -> None:
        call = happening.call
        if happening.what == "enter":
            lines = [f"-> {name}() at {place}" for place, name in map(_caller, call.chain[::-1])]
            own = f"-> {call.function}() at {os.path.basename(call.file)}:{call.line}"
            log2file(*lines, own)


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
    size = list(value.shape or ()) if value.kind == TENSOR else value.shape
    shape = f"torch.Size({size})" if value.kind == TENSOR else size
    text = f"shape={shape} | dtype={_dtype(value)}{_numbers(value)}"
    if value.device not in ("cpu", ""):
        text += f" | device={value.device}"
    if value.layout or value.strided:
        text += f" | layout={value.layout or 'strided'}"
    return f"{text} | requires_grad=True" if value.grad else text


def _numbers(value: Seen) -> str:
    stats = value.stats
    if not stats or "mean" not in stats:
        return ""
    mean, low, high, nan, inf = (stats[name] for name in ("mean", "min", "max", "nan", "inf"))
    is_whole = value.dtype.startswith(("int", "uint", "bool"))
    texts = [f"{round(n) if is_whole else f'{n:.6g}'}" for n in (low, high)]
    total = mean * (stats["count"] - nan - inf)
    text = f" | mean={mean:.6g} | min={texts[0]} | max={texts[1]}"
    if not value.dtype.startswith("complex"):
        text = f" | sum={round(total) if is_whole else f'{total:.6g}'}{text}"
    return text + f" | nan={nan}" * bool(nan) + f" | inf={inf}" * bool(inf)

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
            log2file(f"{indent}├─ [{place(call.file, happening.line)}] {happening.source}")
        elif what == "enter" and is_shown:
            log2file(f"{indent}┌── {_header(call)}")
            IndentManager.increase()
        elif what == "input" and is_shown and now is not None:
            if happening.name != "self" or now.text is not None:
                log2file(line_of(indent[4:], "input", happening.name, 0, now))
        elif what in ("change", "delete") or (what == "input" and happening.changes):
            log2file(*_changed(happening, indent))
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
            log2file(f"{indent}├─ yield {info(happening.after)}")
        elif what != "resume":
            lines = [*_outcome(happening), f"time {happening.seconds or 0:.4f} s"]
            log2file(*[f"{indent}└─ {line}" for line in lines])


class Stack(Output):
    """The output of a watch that tells nothing but the stack of each call."""

    def tell(self, happening: Happening) -> None:
        call = happening.call
        if happening.what == "enter":
            above = [f"-> {name}() at {place}" for place, name in map(_caller, call.chain[::-1])]
            log2file(*above, f"-> {call.function}() at {place(call.file, call.line)}")


def place(file: str, line: int) -> str:
    return f"{os.path.basename(file)}:{line}"


def _header(call: WatchedCall) -> str:
    text = f"[{place(call.file, call.line)}] function [{call.function}]"
    if not call.chain:
        return text
    places, names = zip(*map(_caller, call.chain), strict=True)
    return f"{text} called at {names[0]}:{places[0].rpartition(':')[2]} ({' <- '.join(places)})"


def _caller(text: str) -> tuple[str, str]:
    """The place and the function of a caller: `a.py:3 run`, without a function at the top."""
    found = re.fullmatch(r"(.*?:\d+)(?: (.*))?", text)
    return (found[1], found[2] or "<module>") if found else (text, "")


def _changed(happening: Happening, indent: str) -> list[str]:
    name, line, before, now = happening.name, happening.line, happening.before, happening.after
    if now is None:
        return [f"{indent}├─ [Var] {name}@{line} deleted"]
    told = [line_of(indent, "", name, line, now)]
    if before is not None and before.dtype and now.dtype not in ("", before.dtype):
        told.insert(0, f"{indent}├─ [WARN] dtype changed: {_dtype(before)} → {_dtype(now)}")
    return told


def line_of(indent: str, prestr: str, name: str, lineno: int, value: Seen) -> str:
    kind, arrow = ("[Var]", "") if value.kind == OTHER else ("[Tensor]", "→ ")
    return f"{indent}├─ {prestr}{' ' * bool(prestr)}{kind} {name}@{lineno} {arrow}{info(value)}"


def _outcome(happening: Happening) -> list[str]:
    """An exception, a result, or the items of a tuple or list of tensors."""
    result = happening.after
    if happening.what == "raise":
        return [f"raised {happening.text.partition(chr(10))[0]}"]
    if result is not None and result.cls in ("tuple", "list"):
        if any(item.kind != OTHER for _, item in result.items):
            return [f"output[{path}] {info(item)}" for path, item in result.items]
    return [f"output {info(result)}"]


def _dtype(value: Seen) -> str:
    return f"torch.{value.dtype}" if value.kind == TENSOR else value.dtype


def info(value: Seen | None) -> str:
    """What a value is: `shape=… | dtype=… | sum=…`, `value: 3`, `len(value): 4 | …`."""
    if value is None or (value.kind == OTHER and value.length is None):
        return f"value: {None if value is None else value.text or value.cls}"
    if value.kind == OTHER:
        parts = [f"{path}: {item.text or info(item)}" for path, item in value.items[:_FEW_ITEMS]]
        more = len(value.items) - _FEW_ITEMS
        parts += [f"{more} more"] * (more > 0)
        return f"len(value): {value.length}" + (f" | {', '.join(parts)}" if parts else "")
    shape = f"torch.Size({list(value.shape or ())})" if value.kind == TENSOR else value.shape
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
    shown = round if value.dtype.startswith(("int", "uint", "bool")) else "{:.6g}".format
    mean, nan, inf = stats["mean"], stats["nan"], stats["inf"]
    total = shown(mean * (stats["count"] - nan - inf))
    text = "" if value.dtype.startswith("complex") else f" | sum={total}"
    text += f" | mean={mean:.6g} | min={shown(stats['min'])} | max={shown(stats['max'])}"
    return text + f" | nan={nan}" * bool(nan) + f" | inf={inf}" * bool(inf)

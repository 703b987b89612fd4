"""Events of a watch as Tensor Tracker prints them: `shape=… | dtype=… | sum=…`.

Every value is printed in full, with who called and what came of it. Input: `WatchEvent`s and
summaries of values. Output: lines, indented by the depth of their thread.
"""

from __future__ import annotations

import math
import os
import threading
from typing import Any

from clew.events.watch_events import OTHER, TENSOR, ValueSummary, WatchedCall, WatchEvent
from clew.plain_text import plain

_FEW_ITEMS = 8


class Depth(threading.local):
    """How deep each thread is in the tree."""

    level = 0

    def increase(self, by: int = 1) -> None:
        """Indent deeper."""
        self.level = max(self.level + by, 0)

    def decrease(self) -> None:
        """Indent one level less; never less than none."""
        self.increase(-1)

    def get_indent(self) -> str:
        """Return the beginning of a line at this depth."""
        return "│   " * self.level


class FactsText:
    """Events of a watch as a tree; with `every_call` also calls that are not decorated."""

    def __init__(self, depth: Depth, every_call: bool = False) -> None:
        self._depth = depth
        self._every_call = every_call
        self._waiting: set[int] = set()  # generators that have yielded and wait
        self._own = Depth()  # depth of the calls written here

    def lines(self, event: WatchEvent) -> list[str]:
        """Return the lines for an event."""
        return list(map(plain, self._lines(event)))

    def _lines(self, event: WatchEvent) -> list[str]:
        call, what, now = event.call, event.what, event.after
        is_shown, indent = call.decorated or self._every_call, self._depth.get_indent()
        if what == "note":
            return [f"{indent}├─ [WARN] {event.text}"]
        if what == "line":
            return [f"{indent}├─ [{place(call.file, event.line)}] {event.source}"]
        if what == "enter" and is_shown:
            self._move(1)
            return [f"{indent}┌── {header(call)}"]
        if what == "input" and is_shown and now is not None:
            is_shown = event.name != "self" or now.text is not None
            return [named(indent[4:], "├─ input", event.name, 0, now)] if is_shown else []
        if what in ("change", "delete") or (what == "input" and event.changes):
            return changed(event, indent)
        return self._passed(event) if is_shown else []

    def _passed(self, event: WatchEvent) -> list[str]:
        """Write the end of a call, a yield, or its resumption."""
        number, what = event.call.number, event.what
        if (number in self._waiting) == (what == "resume"):
            self._move(1 if what == "resume" else -1)
        self._waiting.discard(number)
        indent = self._depth.get_indent()
        if what == "yield":
            self._waiting.add(number)
            return [f"{indent}├─ yield {value_text(event.after)}"]
        if what == "resume":
            return []
        told = [*outcome(event), f"time {event.seconds or 0:.4f} s"]
        return [f"{indent}└─ {line}" for line in told]

    def _move(self, by: int) -> None:
        self._depth.increase(by)
        self._own.increase(by)

    def ended(self) -> None:
        """Go back to the top: all calls are over, also those whose end was not seen."""
        if self._own.level:
            self._move(-self._own.level)


def place(file: str, line: int) -> str:
    """Write a line of a file in short."""
    return plain(f"{os.path.basename(file)}:{line}")


def header(call: WatchedCall) -> str:
    """Write the beginning of a call: where its function is, and who called it."""
    text = f"[{place(call.file, call.line)}] function [{call.function}]"
    if not call.chain:
        return text
    places, names = zip(*map(_caller, call.chain), strict=True)
    return f"{text} called at {names[0]}:{places[0].rpartition(':')[2]} ({' <- '.join(places)})"


def stack(event: WatchEvent) -> list[str]:
    """Write the whole stack of a call as it begins, outermost first; nothing for later events."""
    if event.what != "enter":
        return []
    call = event.call
    above = [f"-> {name}() at {where}" for where, name in map(_caller, call.chain[::-1])]
    found = [*above, f"-> {call.function}() at {place(call.file, call.line)}"]
    return list(map(plain, found))


def _caller(text: str) -> tuple[str, str]:
    """Return place and function of a caller: `a.py:3 run`, without a function at the top."""
    where, _, name = text.rpartition(" ")
    return (where, name) if where and ":" not in name else (text, "<module>")


def changed(event: WatchEvent, indent: str) -> list[str]:
    """Write a variable after a change, with a warning if its dtype changed."""
    name, line, before, now = event.name, event.line, event.before, event.after
    if now is None:
        return [f"{indent}├─ [Var] {name}@{line} deleted"]
    told = [named(indent, "├─", name, line, now)]
    if before is not None and before.dtype and now.dtype not in ("", before.dtype):
        told.insert(0, f"{indent}├─ [WARN] dtype changed: {_dtype(before)} → {_dtype(now)}")
    return told


def named(indent: str, prestr: str, name: str, lineno: int, value: ValueSummary) -> str:
    """Write a value with its name and what comes before it: `├─ input [Var] n@0 value: 3`."""
    kind, arrow = ("[Var]", "") if value.kind == OTHER else ("[Tensor]", "→ ")
    start = f"{indent}{prestr} " if prestr else indent
    return plain(f"{start}{kind} {name}@{lineno} {arrow}{value_text(value)}")


def outcome(event: WatchEvent) -> list[str]:
    """Write an exception, a result, or the items of a tuple or list of tensors."""
    result = event.after
    if event.what == "raise":
        return [f"raised {event.text.partition(chr(10))[0]}"]
    is_several = result is not None and result.cls in ("tuple", "list")
    if result is not None and is_several and any(item.kind != OTHER for _, item in result.items):
        return [f"output[{path}] {value_text(item)}" for path, item in result.items]
    return [f"output {value_text(result)}"]


def _dtype(value: ValueSummary) -> str:
    return f"torch.{value.dtype}" if value.kind == TENSOR else value.dtype


def value_text(value: ValueSummary | None) -> str:
    """Write a value: `shape=… | dtype=… | sum=…`, `value: 3`, `len(value): 4 | …`."""
    if value is None or (value.kind == OTHER and value.length is None):
        return f"value: {None if value is None else value.text or value.cls}"
    if value.kind == OTHER:
        text, items = f"len(value): {value.length}", value.items
        for n, (path, item) in enumerate(items[:_FEW_ITEMS]):
            is_whole = item.text and item.cls != _MASKED and not _is_sparse(item)
            text += f"{', ' if n else ' | '}{path}: {item.text if is_whole else value_text(item)}"
        return text if len(items) <= _FEW_ITEMS else f"{text}, {len(items) - _FEW_ITEMS} more"
    known = _texts.get(id(value.stats))
    if known is None or known[0][:-1] != value[:-1]:  # differs in more than its memory
        if len(_texts) >= _MOST_TEXTS:
            _texts.clear()
        known = _texts[id(value.stats)] = (value, _facts(value))
    return known[1]


# Texts of tensors, by their statistics: the output of one function is the input of the next.
_texts: dict[int, tuple[ValueSummary, str]] = {}
_MOST_TEXTS = 64


def _facts(value: ValueSummary) -> str:
    shape = f"torch.Size({list(value.shape or ())})" if value.kind == TENSOR else value.shape
    text = f"shape={shape} | dtype={_dtype(value)}{_numbers_text(value)}"
    if value.device not in ("cpu", ""):
        text += f" | device={value.device}"
    if value.layout or value.strided:
        text += f" | layout={value.layout or 'strided'}"
    return f"{text} | requires_grad=True" if value.grad else text


def _numbers_text(value: ValueSummary) -> str:
    stats = value.stats
    is_plain = value.dtype in _FLOATS and not value.layout and value.cls != _MASKED
    if is_plain and stats and stats["count"] and not (stats["nan"] or stats["inf"]):
        # Fast path for the usual case, which is nearly every line.
        mean, low, high = stats["mean"], stats["min"], stats["max"]
        total = mean * stats["count"]
        return f" | sum={total:.6g} | mean={mean:.6g} | min={low:.6g} | max={high:.6g}"
    text = ""
    for name, number in _numbers(value).items():
        text += f" | {name}={number if isinstance(number, int) else f'{number:.6g}'}"
    return text


def as_dict(value: ValueSummary) -> dict[str, Any]:
    """Return the same facts of a tensor or array by their names."""
    kind = "Tensor" if value.kind == TENSOR else "ndarray"
    return {"type": kind, "shape": value.shape, "dtype": _dtype(value), **_numbers(value)}


def _numbers(value: ValueSummary) -> dict[str, float]:
    """Return sum, mean, min and max of all elements if known, and counts of NaN and Inf.

    Recorded statistics are of finite elements, of the parts of complex numbers, of what a sparse
    tensor stores, and of masked elements too. Numbers that would be wrong for the whole tensor are
    left out.
    """
    stats = value.stats
    if not stats or value.cls == _MASKED:
        return {}
    nan, inf, stored = stats["nan"], stats["inf"], stats["count"]
    count = math.prod(value.shape or ())
    is_complex, is_sparse = value.dtype.startswith("complex"), _is_sparse(value)
    parts = " parts" if is_complex else ""
    odd = {f"nan{parts}": nan} if nan else {}
    odd |= {f"inf{parts}": inf} if inf else {}
    if is_complex or not count or (stored != count and not is_sparse):
        return odd
    low, high, mean = (stats.get(name, 0.0) for name in ("min", "max", "mean"))
    total = mean * (stored - nan - inf)
    if nan:
        low = high = total = math.nan
    elif inf:
        low, high = stats["lowest"], stats["highest"]
        total = sum(end for end in (low, high) if math.isinf(end))
    if is_sparse and stored < count:
        low, high = min(low, 0.0), max(high, 0.0)
    found = {
        "sum": total, "mean": mean if stored == count and not odd else total / count,
        "min": low, "max": high,
    }  # fmt: skip
    if value.dtype == "bool" or value.dtype.startswith(("int", "uint")):
        found |= {n: round(x) for n, x in found.items() if n != "mean" and abs(x) < _EXACT}
    return found | odd


def _is_sparse(value: ValueSummary) -> bool:
    return value.layout.startswith("sparse")


_FLOATS = ("float32", "float64", "bfloat16", "float16")
_MASKED = "MaskedArray"
# Integers up to here are exact in statistics.
_EXACT = 1 << 52

"""The text of a watch: a tree of calls, with each variable as it changes.

Input: `WatchEvent`s one by one. Output: lines. A variable is printed in full the first time, then
only what has changed. Repeats in a loop are printed a few times, then counted. Pure: no stream, no
clock, nothing live.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from clew.events.number_text import measured
from clew.events.tensor_text import short_dtype
from clew.events.watch_events import ARRAY, OTHER, ValueSummary, WatchedCall, WatchEvent
from clew.plain_text import first_line, plain, plain_code
from clew.views.text.style import Style, clipped, time_text

REPEATS = 3
_ITEMS = 4
_BRACKETS = {"tuple": ("(", ")"), "list": ("[", "]"), "dict": ("{", "}")}
_NAME_WIDTH = 6
_PLACE_AT = 66

# The colours of each change; the first change of an event decides.
_LOOKS = {
    "new": ("green",), "type": ("bold", "magenta"), "shape": ("bold", "magenta"),
    "dtype": ("magenta",), "device": ("magenta",), "layout": ("blue",),
    "requires_grad": ("blue",), "NaN": ("bold", "red"), "Inf": ("bold", "red"),
    "range": ("yellow",), "values": ("yellow",), "items": ("yellow",), "in place": ("cyan",),
}  # fmt: skip
_RESHAPED = ("type", "shape", "dtype", "device", "layout", "requires_grad")


@dataclass(slots=True)
class _Repeated:
    """An event that was printed often enough: how often it happened since, and the last one."""

    count: int = 0
    hushed: int = 0
    last: WatchEvent | None = None


@dataclass(slots=True)
class _Open:
    """A call whose lines are being written; a hushed call is counted and not shown."""

    hushed: bool
    sites: dict[tuple[Any, ...], _Repeated] = field(default_factory=dict)
    place: tuple[int, tuple[object, ...]] | None = None


class WatchText:
    """Writes the lines; make one for each output."""

    def __init__(self, style: Style, repeats: int = REPEATS, stack: bool = False) -> None:
        self._style = style
        self._stack = stack
        self._repeats = repeats
        self._open: dict[int | None, _Open] = {None: _Open(False)}

    def lines(self, event: WatchEvent) -> list[str]:
        """Return the lines that one event adds; none while it repeats."""
        if event.what == "note":
            text = self._style.paint(f"clew: {plain(event.text)}", "yellow")
            return [self._style.finish(text)]
        if event.what == "enter":
            found = self._enter(event)
        elif event.what in ("return", "raise"):
            found = self._leave(event)
        else:
            found = self._inside(event)
        label = f"[{plain(event.call.worker)}] " if event.call.worker else ""
        return [self._style.finish_line(label + line) for line in found]

    # Calls

    def _enter(self, event: WatchEvent) -> list[str]:
        call = event.call
        around = self._open.get(call.parent) or self._open[None]
        key = ("call", call.function, call.file, call.line)
        repeated = around.sites.setdefault(key, _Repeated())
        repeated.count += 1
        # Calls from outside the watched code are each printed; those in a loop are not.
        hushed = around.hushed or (call.parent is not None and repeated.count > self._repeats)
        found = self._caught_up(around, call, key) if not hushed else []
        self._open[call.number] = _Open(hushed, place=(call.parent or 0, key))
        if hushed:
            return []
        where = f"{_file(call.file)}:{call.line}"
        callers = list(map(plain, call.chain))
        chain = "".join(f" ← {caller}" for caller in callers)
        mark = "▶" if call.begun else "▷"
        if self._stack:
            found += [self._style.paint(f"-> {caller}", "dim") for caller in reversed(callers)]
            chain = ""
        text = self._style.paint(plain(call.function), "bold") + self._style.paint(
            f"  {where}{chain}", "dim"
        )
        return [*found, f"{self._indent(call.depth, branch=True)}{mark} {text}"]

    def _leave(self, event: WatchEvent) -> list[str]:
        call = event.call
        state = self._open.pop(call.number, None)
        if state is None:
            return []
        if state.hushed:
            self._count_call(event, state)
            return []
        found = self._summaries(state, call)
        time = "" if event.seconds is None else time_text(event.seconds)
        if event.what == "raise":
            first = first_line(event.text) or "an exception"
            text = self._style.paint(f"✗ {first}", "red", "bold")
            text += self._style.paint(f"  {_file(call.file)}:{event.line}", "dim")
        else:
            shown = "" if event.after is None else summary_text(event.after)
            text = f"◀ {shown or plain(call.function)}"
        indent = self._indent(call.depth)
        return [*found, f"{indent}{text}  {self._style.paint(time, 'dim')}".rstrip()]

    def _count_call(self, event: WatchEvent, state: _Open) -> None:
        around = self._open.get(event.call.parent)
        if around is not None and not around.hushed and state.place is not None:
            repeated = around.sites[state.place[1]]
            repeated.hushed += 1
            repeated.last = event

    # Inside a call

    def _inside(self, event: WatchEvent) -> list[str]:
        call = event.call
        state = self._open.get(call.number)
        if state is None:
            # The block was open before the text began, so its first line is missing.
            state = self._open[call.number] = _Open(False)
        if state.hushed:
            return []
        key = (event.what, event.name, event.line)
        repeated = state.sites.setdefault(key, _Repeated())
        repeated.count += 1
        if repeated.count > self._repeats and event.what != "input":
            repeated.hushed += 1
            repeated.last = event
            return []
        found = self._caught_up(state, call, key)
        return [*found, self._line(event)]

    def _caught_up(self, state: _Open, call: WatchedCall, key: tuple[object, ...]) -> list[str]:
        """Return one line for a repeating event, once something new comes after it."""
        return self._summaries(state, call) if state.sites[key].count == 1 else []

    def _summaries(self, state: _Open, call: WatchedCall) -> list[str]:
        found = []
        for repeated in state.sites.values():
            if repeated.hushed and repeated.last is not None:
                found.append(self._repeat_line(repeated.last, repeated.hushed))
                repeated.hushed = 0
        return found

    def _repeat_line(self, last: WatchEvent, count: int) -> str:
        style = self._style
        if last.what in ("return", "raise"):
            indent = self._indent(last.call.depth, branch=True)
            shown = plain(last.text) if last.what == "raise" else ""
            if last.after is not None:
                shown = summary_text(last.after)
            function = plain(last.call.function)
            return f"{indent}▶ {function}  … ×{count:,} more, last: {shown}".rstrip()
        indent = self._indent(last.call.depth + 1)
        where = f"{_file(last.call.file)}:{last.line}"
        if last.what == "line":
            return f"{indent}{style.paint(f'… ×{count:,} more  {where}', 'dim')}"
        shown = summary_text(last.after) if last.after is not None else ""
        name = plain(last.name).ljust(_NAME_WIDTH) if last.name else last.what
        return f"{indent}{name} … ×{count:,} more, last: {shown}  {style.paint(where, 'dim')}"

    def _line(self, event: WatchEvent) -> str:
        style, call = self._style, event.call
        indent = self._indent(call.depth + 1)
        place = f"{_file(call.file)}:{event.line}"
        if event.what == "line":
            code = plain_code(event.source)
            return f"{indent}{style.paint(f'{event.line:>4} {code}', 'dim')}"
        if event.what == "resume":
            return f"{indent}{style.paint(f'goes on  {place}', 'dim')}"
        if event.what == "yield":
            shown = "None" if event.after is None else summary_text(event.after)
            return f"{indent}yields {shown}  {style.paint(place, 'dim')}"
        name = plain(event.name).ljust(_NAME_WIDTH)
        if event.alias:
            name = plain(f"{event.name} ({event.alias})")
        if event.what == "delete":
            return f"{indent}{name} deleted  {style.paint(place, 'dim')}"
        text = change_text(event)
        if event.what == "input":
            return f"{indent}{name} {text}"
        looks = _LOOKS.get(event.changes[0] if event.changes else "", ())
        painted = style.paint(text, *looks) if looks else text
        room = max(_PLACE_AT - len(indent) - len(name) - len(text), 0)
        room_left = max(style.width - _PLACE_AT - len(place) - 4, 12)
        source = clipped(plain_code(event.source), room_left)
        tail = style.paint(f"{place}  {source}".rstrip(), "dim")
        return f"{indent}{name} {painted}{' ' * room}  {tail}"

    def _indent(self, depth: int, branch: bool = False) -> str:
        if branch:
            return self._style.paint("│  " * (depth - 1) + "├─", "dim") if depth else ""
        return self._style.paint("│  " * depth, "dim")


# Words for values


def change_text(event: WatchEvent) -> str:
    """Write a variable in full the first time, then what has changed of it."""
    return plain(_change_text(event))


def _change_text(event: WatchEvent) -> str:
    before, after, changes = event.before, event.after, event.changes
    if after is None:
        return ""
    if before is None or "new" in changes or event.what == "input":
        shown = summary_text(after)
        return shown if event.what == "input" else f"= {shown}"
    if not changes:
        return "≡ same"
    mark = "✎ " if "in place" in changes else ""
    if "type" in changes or before.kind != after.kind:
        return f"{mark}{summary_text(before, True, False)} → {summary_text(after, True)}"
    if after.kind == OTHER:
        return mark + _other_change(before, after)
    parts = [_reshaped(before, after, name) for name in _RESHAPED if name in changes]
    symbol = "⇄ " if parts else "" if mark else "~ "
    numbers = _numbers_change(before, after)
    if parts and numbers == ["values"]:
        numbers = []  # the same numbers in another order
    return mark + symbol + "  ".join([*parts, *numbers])


def _reshaped(before: ValueSummary, after: ValueSummary, name: str) -> str:
    if name == "shape":
        return f"shape {_shape(before)}→{_shape(after)}"
    if name == "dtype":
        return f"{short_dtype(before.dtype)}→{short_dtype(after.dtype)}"
    if name == "device":
        return f"{before.device}→{after.device}"
    if name == "layout":
        return f"layout {_layout(before)}→{_layout(after)}"
    return f"requires_grad {before.grad}→{after.grad}"


def _numbers_change(before: ValueSummary, after: ValueSummary) -> list[str]:
    if after.text is not None:
        same = before.text == after.text or before.text is None
        text = after.text if same else f"{before.text} → {after.text}"
        return [" ".join([text, *_alarms(after.stats or {})])]
    old, new = before.stats or {}, after.stats or {}
    if not new or not new.get("count"):
        return [] if new or before.shape != after.shape else ["values"]
    found = []
    if not old or _range(old) != _range(new):
        found.append(f"{_range(old)}→{_range(new)}" if old.get("count") else _range(new))
    for name, sign in (("mean", "μ"), ("std", "σ")):
        if name in new and (was := _moment(old, name)) != (now := _moment(new, name)):
            found.append(f"{sign}{was}→{now}" if was else f"{sign}{now}")
    found += [f"no {sign} left" for name, sign in (("nan", "NaN"), ("inf", "Inf"))
              if old.get(name) and not new.get(name)]  # fmt: skip
    if not found and old.get("digest") != new.get("digest"):
        found.append("values")
    return [*found, *_alarms(new)]


def _other_change(before: ValueSummary, after: ValueSummary) -> str:
    if not before.items and not after.items:
        if after.text is None:
            return f"another {after.cls}"
        return f"{_plain(before)} → {_plain(after)}"
    old, new = dict(before.items), dict(after.items)
    parts = [f"{path}: {summary_text(old[path], stats=False)} → {summary_text(new[path])}"
             for path in new if path in old and _facts(old[path]) != _facts(new[path])]  # fmt: skip
    parts += [f"+{path}: {summary_text(new[path])}" for path in new if path not in old]
    parts += [f"-{path}" for path in old if path not in new]
    return "~ " + _limited(parts, ", ")


def _facts(summary: ValueSummary) -> tuple[object, ...]:
    digest = (summary.stats or {}).get("digest")
    return (
        summary.cls, summary.dtype, summary.shape, summary.device, summary.text, digest,
        summary.items,
    )  # fmt: skip


def summary_text(summary: ValueSummary, origin: bool = False, stats: bool = True) -> str:
    """Write a value in one line: `f32[2,3]  [-1 2] μ0.5 σ0.9`; `origin` adds whose tensor it is."""
    return plain(_summary_text(summary, origin, stats))


def _summary_text(summary: ValueSummary, origin: bool, stats: bool) -> str:
    if summary.kind == OTHER:
        return _plain(summary)
    prefix = "np." if summary.kind == ARRAY else "torch." if origin else ""
    text = f"{prefix}{short_dtype(summary.dtype)}{_shape(summary)}"
    known = ("Tensor", "ndarray", "Parameter")
    is_shown = summary.cls not in known and summary.cls not in summary.layout
    parts = [text, summary.cls] if is_shown else [text]
    if summary.device not in ("cpu", ""):
        parts.append(summary.device)
    if summary.layout:
        parts.append(summary.layout)
    if summary.strided:
        parts.append("strided")
    if summary.grad:
        parts.append("grad")
    shown = " ".join(parts)
    numbers = summary.text if summary.text is not None else _stats(summary) if stats else ""
    if summary.text is not None and summary.stats:
        numbers = " ".join([summary.text, *_alarms(summary.stats)])
    return f"{shown}  {numbers}" if numbers else shown


def _plain(summary: ValueSummary) -> str:
    if summary.items:
        return _items(summary)
    return summary.text if summary.text is not None else summary.cls


def _items(summary: ValueSummary) -> str:
    opening, closing = _BRACKETS.get(summary.cls, (f"{summary.cls}(", ")"))
    texts = [(path, summary_text(item, stats=False)) for path, item in summary.items]
    if summary.cls in ("tuple", "list") and all(path.isdecimal() for path, _ in texts):
        parts = [text for _, text in texts]
    else:
        parts = [f"{path}: {text}" for path, text in texts]
    return f"{opening}{_limited(parts, ', ')}{closing}"


def _limited(parts: list[str], between: str) -> str:
    more = f"{between}… {len(parts) - _ITEMS} more" if len(parts) > _ITEMS else ""
    return between.join(parts[:_ITEMS]) + more


def _shape(summary: ValueSummary) -> str:
    sizes = ["?"] if summary.shape is None else ["?" if n < 0 else str(n) for n in summary.shape]
    return f"[{','.join(sizes)}]"


def _layout(summary: ValueSummary) -> str:
    return summary.layout or ("strided" if summary.strided else "contiguous")


def _stats(summary: ValueSummary) -> str:
    stats = summary.stats or {}
    if not stats.get("count") or "mean" not in stats:
        return "empty" if summary.shape is not None and 0 in summary.shape else ""
    numbers = f"{_range(stats)} μ{_moment(stats, 'mean')} σ{_moment(stats, 'std')}"
    return " ".join([numbers, *_alarms(stats)])


def _range(stats: dict[str, object]) -> str:
    return f"[{_number(stats.get('min'))} {_number(stats.get('max'))}]"


def _alarms(stats: dict[str, object]) -> list[str]:
    count = stats.get("count", 0)
    named = (("nan", "NaN!"), ("inf", "Inf!"))
    return [f"{sign} {stats[name]:,}/{count:,}" for name, sign in named if stats.get(name)]


def _moment(stats: dict[str, Any], name: str) -> str:
    """Write mean or standard deviation; nothing if it is only a rounding error."""
    number = stats.get(name)
    spread = max(abs(stats.get("min") or 0.0), abs(stats.get("max") or 0.0))
    return "0" if number is not None and abs(number) < 1e-12 * spread else _number(number)


def _number(number: Any) -> str:
    return "" if number is None else measured(float(number))


def _file(file: str) -> str:
    return plain(os.path.basename(file))

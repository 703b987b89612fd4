"""Watch decorated functions as Tensor Tracker does: each call in full, each variable reported once.

Input: functions to decorate, and the output that their events go to. Output: `Watch`es that keep
nothing. Where decorated functions call each other, a variable is reported by the function's own
watch, or in the caller, which passed it as an argument. Also summarizes and compares values.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

from clew.events.watch_events import OTHER, ValueSummary, What
from clew.keep import describing
from clew.observe.variables.selector import VariableSelector, watched_names
from clew.observe.variables.watched_calls import OpenCall, WatchOptions
from clew.watch_output import Output
from clew.watch_trace import has_torch
from clew.watching import Watch

_FAST_SUMMARIES = "clew.keep.fast_summaries"
_NOTHING: frozenset[str] = frozenset()

# Functions that are decorated to be reported in full -> the variables that are reported too.
_decorated: dict[CodeType, frozenset[str]] = {}


class NestedWatches:
    """What one watch leaves to the watches of other functions; an `OtherWatches`."""

    def __init__(self) -> None:
        # Open calls of functions that are not the watch's own -> what other watches report there.
        self._others: dict[int | None, frozenset[str]] = {}
        self._last: dict[str, ValueSummary] = {}

    @staticmethod
    def register(code: CodeType, names: VariableSelector) -> None:
        """Let other watches leave the variables of a function to its own watch."""
        _decorated[code] = frozenset(address.text for address in names.addresses)

    def opened(self, call: OpenCall) -> None:
        """Note a call of a function that is not the watch's own."""
        around = self._others.get(call.info.parent, _NOTHING)
        own = _decorated.get(call.code, _NOTHING)
        self._others[call.info.number] = around | own

    def is_left(self, call: OpenCall, name: str) -> bool:
        """Return whether another watch reports a variable of a call."""
        return name in self._others.get(call.info.number, _NOTHING)

    def is_reported(
        self, call: OpenCall, what: What, name: str, variable: str, summary: ValueSummary
    ) -> bool:
        """Return whether another watch reports this value, or a caller passed it on unchanged."""
        last, self._last[variable] = self._last.get(variable), summary
        if call.info.decorated:
            return False
        is_own = call.code in _decorated
        is_handed_down = what == "input" and (is_own or last == summary)
        return is_handed_down or self.is_left(call, name)

    def deleted(self, variable: str) -> None:
        """Forget a deleted variable; it is new if it is bound again."""
        self._last.pop(variable, None)

    def clear(self) -> None:
        """Forget all calls, as they are over."""
        self._others.clear()


def watch_calls(output: Output, *names: str, lines: bool = False, stack: bool = False) -> Watch:
    """Send each call of a function, with its arguments and result, to an output of another form.

    In what the function calls, only the variables that are named and, with `lines`, the lines are
    followed. Nothing of it is stored, unless a `clew.trace` records it.
    """
    selector = watched_names(names) if names else VariableSelector(())
    depth = None if names or lines else 0
    options = WatchOptions(selector, lines=lines, stack=stack, depth=depth, others=NestedWatches)
    return Watch(options, (), output, keeps=False)


def summary_of(value: object) -> ValueSummary:
    """Describe a value now, as a watch prints it: facts, numbers, the leaves of a container.

    >>> import numpy as np
    >>> summary_of(np.arange(3)).stats["max"]
    2.0
    """
    if _FAST_SUMMARIES not in sys.modules:
        _learn_tensors()
    try:
        return describing.summarize(value, numbers=True)
    except Exception:  # a kind of tensor that cannot be read
        return ValueSummary(OTHER, type(value).__name__)


def is_same(one: object, other: object, equal: Callable[[Any, Any], Any] | None = None) -> bool:
    """Return whether a watch takes two values as the same; `equal` compares what is not data.

    >>> is_same([1.0, float("nan")], [1.0, float("nan")])
    True
    """
    _learn_tensors()
    return describing.is_same(one, other, equal)


def _learn_tensors() -> None:
    if has_torch():
        importlib.import_module(_FAST_SUMMARIES)

"""Decide which of several watches reports a variable, where decorated functions call each other.

Input: the calls and variables that a watch of decorated functions sees. Output: whether they are
reported elsewhere: by the function's own watch, or in the caller, which passed them as arguments.
"""

from __future__ import annotations

from types import CodeType

from clew.events.watched import Seen, What
from clew.observe.variables.open_calls import OpenCall
from clew.observe.variables.selector import Wishes

_NOTHING: frozenset[str] = frozenset()

# Functions that are decorated to be reported in full -> the variables that are reported too.
_decorated: dict[CodeType, frozenset[str]] = {}


def told_in_full(code: CodeType, names: Wishes) -> None:
    """Register a function so that other watches leave its variables to its own watch."""
    _decorated[code] = frozenset(address.text for address in names.addresses)


class ToldOnce:
    """What one watch leaves to others, and what it saw last of each variable."""

    def __init__(self) -> None:
        # Open calls of functions that are not the watch's own -> what other watches report there.
        self._others: dict[int | None, frozenset[str]] = {}
        self._last: dict[str, Seen] = {}

    def opened(self, call: OpenCall) -> None:
        """Record that a call begins of a function that is not the watch's own."""
        around = self._others.get(call.info.parent, _NOTHING)
        own = _decorated.get(call.function.code, _NOTHING)
        self._others[call.info.number] = around | own

    def is_left(self, call: OpenCall, name: str) -> bool:
        """Return whether another watch reports a variable of a call."""
        return name in self._others.get(call.info.number, _NOTHING)

    def is_told(self, call: OpenCall, what: What, name: str, variable: str, seen: Seen) -> bool:
        """Return whether another watch reports this value, or a caller passed it on unchanged."""
        last, self._last[variable] = self._last.get(variable), seen
        if call.info.decorated:
            return False
        is_own = call.function.code in _decorated
        is_handed_down = what == "input" and (is_own or last == seen)
        return is_handed_down or self.is_left(call, name)

    def deleted(self, variable: str) -> None:
        """Forget a deleted variable; it is new if it is bound again."""
        self._last.pop(variable, None)

    def clear(self) -> None:
        """Forget all calls, as they are over."""
        self._others.clear()

"""Which of several watches tells a variable, where functions are decorated one below the other.

In come the calls and variables that a watch of decorated functions meets, out comes whether
somebody else tells them: the watch of the function's own, or the caller, who has handed them down.
"""

from __future__ import annotations

from types import CodeType

from clew.events.watched import Seen, What
from clew.observe.variables.open_calls import OpenCall
from clew.observe.variables.selector import Wishes

_NOTHING: frozenset[str] = frozenset()

# Functions that are decorated to be told in full -> the variables that are told with them.
_decorated: dict[CodeType, frozenset[str]] = {}


def told_in_full(code: CodeType, names: Wishes) -> None:
    """Leave a function's variables to its own watch where another one comes by."""
    _decorated[code] = frozenset(address.text for address in names.addresses)


class ToldOnce:
    """What one watch leaves to others, and what it told last."""

    def __init__(self) -> None:
        # Open calls that are not the watch's own, and what others tell there.
        self._others: dict[int | None, frozenset[str]] = {}
        self._last: dict[str, Seen] = {}

    def opened(self, call: OpenCall) -> None:
        """A call begins of a function that is not the watch's own."""
        around = self._others.get(call.info.parent, _NOTHING)
        own = _decorated.get(call.function.code, _NOTHING)
        self._others[call.info.number] = around | own

    def is_left(self, call: OpenCall, name: str) -> bool:
        """Whether another watch tells a variable of a call."""
        return name in self._others.get(call.info.number, _NOTHING)

    def is_told(self, call: OpenCall, what: What, name: str, variable: str, seen: Seen) -> bool:
        """Whether a variable as it is now is another watch's to tell, or handed down unchanged."""
        last, self._last[variable] = self._last.get(variable), seen
        if call.info.decorated:
            return False
        is_own = call.function.code in _decorated
        is_handed_down = what == "input" and (is_own or last == seen)
        return is_handed_down or self.is_left(call, name)

    def deleted(self, variable: str) -> None:
        """A variable is gone, and new if it comes again."""
        self._last.pop(variable, None)

    def clear(self) -> None:
        """All calls are over."""
        self._others.clear()

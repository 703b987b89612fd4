"""Calls of followed functions while they run, and which of their variables have changed.

Input: frames, and the values of wanted variables. Output: the open call of a frame, and the places
inside a value that are to be recorded. `captured` and `watched` both use it. Holds no frame.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, NamedTuple, TypeVar

from clew.address import join
from clew.events.model import Gap
from clew.events.vocabulary import Label
from clew.keep.changes import ValueState, not_read_whole, state_of
from clew.machinery import MACHINERY, OURS
from clew.observe.variables.frames.paths import follow
from clew.observe.variables.wanted_variables import Function, WantedVariable, join_names
from clew.record.gaps import Gaps

_Call = TypeVar("_Call")
# The variables of a call as they were last recorded, by the stems of their labels.
LastStates = dict[str, ValueState]


class OpenCalls(dict[int, _Call]):
    """The open calls of followed functions, by the ids of their frames."""

    def here(self) -> _Call | None:
        """Return the call that runs."""
        return self.get(id(user_frame()))

    def close(self) -> _Call | None:
        """Remove the call that runs, as it ends, and return it."""
        return self.pop(id(user_frame()), None)


class ChangedPlace(NamedTuple):
    """A variable, or a place inside one, that is to be recorded: it is new or has changed."""

    label: Label
    value: Any
    before: ValueState | None
    now: ValueState


def changed_places(
    last: LastStates, name: str, value: Any, wanted: Iterable[tuple[WantedVariable, Function]],
    always: bool, on_gap: Callable[[Gap], Any],
) -> Iterator[ChangedPlace]:  # fmt: skip
    """Yield what is to be recorded of a variable, each place once; with `always`, all places.

    `wanted` says what is wanted of it, and in which function. Updates `last`.
    """
    done: set[str] = set()
    for variable, function in wanted:
        called = variable.called or name
        found = _places(variable, called, value, on_gap) if variable.inside else ((called, value),)
        for place, inside in found:
            label = function.label(place)
            stem = label.stem
            if stem in done:
                continue
            done.add(stem)
            now, before = state_of(inside), last.get(stem)
            last[stem] = now
            if now.cut:
                on_gap(not_read_whole(stem))
            if always or before is None or before.same != now.same:
                yield ChangedPlace(label, inside, before, now)


def _places(
    wanted: WantedVariable, name: str, value: Any, on_gap: Callable[[Gap], Any]
) -> Iterable[tuple[str, Any]]:
    """Return what a path inside a variable leads to: the name of each place, and what is there."""
    walk = follow(value, wanted.inside)
    if walk.cut is not None:
        where = wanted.address or join((name, *wanted.inside))
        on_gap(Gap("places of a variable", where, walk.cut, "name fewer of them"))
    return [(join_names(name, inside), found) for inside, found in walk.places]


@contextlib.contextmanager
def guarded(gaps: Gaps, function: str, name: str) -> Iterator[None]:
    """Keep from the program what goes wrong in the block, and the block from `torch.jit`."""
    jit = MACHINERY.pause_jit()
    try:
        yield
    except Exception as fault:
        gaps.fault(fault, f"{function}.{name}")
    finally:
        if jit is not None:
            MACHINERY.resume_jit(jit)


def user_frame() -> FrameType:
    """Return the innermost frame of the program, passing over those of Clew."""
    frame = sys._getframe(2)
    while frame.f_code.co_filename.startswith(OURS) and frame.f_back is not None:
        frame = frame.f_back
    return frame

"""Watched calls while they run: their function, their callers, the last state of their variables.

Input: frames. Output: names, callers and the state of open calls. Holds no frame.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType

from clew.events.notebook_cells import shown_file
from clew.events.watched import Seen, WatchedCall
from clew.keep.changes import Look
from clew.machinery import OURS
from clew.observe.variables.looking import join_names
from clew.observe.variables.selector import TOP_LEVEL, Function
from clew.observe.variables.user_code import is_library

# The files of Clew that call the program's functions on its behalf.
BETWEEN = (
    OURS + "watching.py",
    os.path.join(OURS, "session", "decorating.py"),
    os.path.join(OURS, "observe", "dataloader.py"),
)
_CHAIN = 3


@dataclass(slots=True)
class OpenCall:
    """One watched call that is open. `told` holds its variables as they were last reported."""

    info: WatchedCall
    function: Function
    start: int
    quiet: bool = False
    told: dict[str, tuple[Look, Seen]] = field(default_factory=dict)
    # Parameters that hold an object which the caller watches, with its name there.
    aliases: dict[str, str] = field(default_factory=dict)
    # Watched variable -> id of the object that it holds now, which lives as long as it does.
    held: dict[str, int] = field(default_factory=dict)
    # id of an object that a watched variable of a caller holds -> the variable
    given: dict[int, str] = field(default_factory=dict)
    result: tuple[Seen | None, int] | None = None
    error: str | None = None

    def names_of_objects(self) -> dict[int, str]:
        """Return the objects that watched variables hold, here and in the callers, by their ids."""
        own = {held: self.aliases.get(name, name) for name, held in self.held.items()}
        return {**self.given, **own}


def name_of(where: Function) -> str:
    """Return the name of a call in the text."""
    if where.owner is not None:
        return join_names(where.owner, where.code.co_name)
    return "top level" if where.parts == TOP_LEVEL else ".".join(where.parts[-2:])


def chain_of(frame: FrameType | None, whole: bool) -> Iterator[str]:
    """Yield the callers, nearest first: the whole stack, or a few functions of the program."""
    count = 0
    while frame is not None and (whole or count < _CHAIN):
        code = frame.f_code
        top = code.co_name == "<module>"
        ours = code.co_filename.startswith((OURS, "<frozen "))
        if not ours and (whole or not is_library(code.co_filename)):
            count += 1
            name = "" if top else f" {code.co_name}"
            yield f"{os.path.basename(shown_file(code.co_filename))}:{frame.f_lineno}{name}"
            if top and not whole:
                return  # further callers only run the program
        frame = frame.f_back

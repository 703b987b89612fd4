"""What `captured` and `watched` both do with the value of a variable.

Input: the values of variables. Output: the places inside them, whether one has changed since it
was last recorded, the label it is recorded by, and the frame it belongs to. Stores nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import CodeType, FrameType
from typing import Any

from clew.address import Segment, join
from clew.events.model import Gap
from clew.events.records import VARIABLE, Label
from clew.keep.changes import Look, look
from clew.machinery import OURS
from clew.observe.variables.frames.paths import follow

RETURN = "return"


def places(
    name: str, value: Any, path: tuple[Segment, ...]
) -> tuple[Iterable[tuple[str, Any]], Gap | None]:
    """Return what a path inside a variable leads to: the name of each place, and what is there.

    Also return a gap if there were too many places and some were left out.
    """
    if not path:
        return ((name, value),), None
    walk = follow(value, path)
    found = [(join_names(name, inside), value) for inside, value in walk.places]
    if walk.cut is None:
        return found, None
    return found, Gap("places of a variable", join((name, *path)), walk.cut, "name fewer of them")


def look_again(value: Any, before: Look | None) -> tuple[Look, bool]:
    """Return the state of a variable now, and whether it equals the state before."""
    now = look(value)
    return now, before is not None and before.same == now.same


def label_of(stem: str, variable: str, owner: str | None, code: CodeType, package: str) -> Label:
    """Return the label of a variable of a module's method, or of any other function."""
    if owner is not None:
        return Label(VARIABLE, stem, variable, module=owner)
    return Label(VARIABLE, stem, variable, file=code.co_filename, package=package)


def join_names(*names: str) -> str:
    """Join names with dots, except before a bracket; leave out empty ones."""
    text = ""
    for name in names:
        text += name if not text or not name or name.startswith("[") else f".{name}"
    return text


def user_frame() -> FrameType:
    """Return the innermost frame of the program, passing over those of Clew."""
    frame = sys._getframe(2)
    while frame.f_code.co_filename.startswith(OURS) and frame.f_back is not None:
        frame = frame.f_back
    return frame

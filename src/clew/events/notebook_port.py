"""Connects types that notebooks show with `views.notebook`, which knows how to show them.

`views.notebook` registers a function for each type; the types themselves only call `bundle`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Bundle = dict[str, str]

_SHOWN: dict[type, Callable[[Any], Bundle]] = {}


def shows(kind: type, how: Callable[[Any], Bundle]) -> None:
    """Register how objects of a type are shown."""
    _SHOWN[kind] = how


def bundle(thing: object) -> Bundle:
    """Return an object in the forms from which a notebook chooses."""
    how = _SHOWN.get(type(thing))
    return {"text/plain": repr(thing)} if how is None else how(thing)


class Shown:
    """Base of objects that notebooks show."""

    __slots__ = ()

    def _repr_mimebundle_(self, **kwargs: object) -> Bundle:
        return bundle(self)

    def _repr_html_(self) -> str | None:
        return bundle(self).get("text/html")

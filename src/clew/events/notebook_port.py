"""The port between things people look at and the room that knows how notebooks show them.

`views.notebook` says for each type how; the types themselves only ask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Bundle = dict[str, str]

_SHOWN: dict[type, Callable[[Any], Bundle]] = {}


def shows(kind: type, how: Callable[[Any], Bundle]) -> None:
    """Say how things of a type are shown."""
    _SHOWN[kind] = how


def bundle(thing: object) -> Bundle:
    """A thing in the forms a notebook chooses from."""
    how = _SHOWN.get(type(thing))
    return {"text/plain": repr(thing)} if how is None else how(thing)


class Shown:
    """Something that notebooks show."""

    __slots__ = ()

    def _repr_mimebundle_(self, **kwargs: Any) -> Bundle:
        return bundle(self)

    def _repr_html_(self) -> str | None:
        return bundle(self).get("text/html")

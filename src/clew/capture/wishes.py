"""Which variables a watch is about: plain names, paths inside values, addresses.

In come the names a user gave (`video`, `self.cache.k`, `data.py:load.video`,
`layers.*.forward.attn`) and the variables of functions as they run; out go the paths to look at.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import CodeType

from clew.address import (
    Address,
    Segment,
    compile_pattern,
    matches_file,
    parse,
    segment_matches,
)
from clew.errors import ClewError

RETURN = "return"
# Before Python 3.11 a code object knows its own name, and not the class it was written in.
_TELLS_CLASSES = hasattr(CodeType, "co_qualname")
Paths = tuple[tuple[Segment, ...], ...]


class Wishes:
    """The variables that were asked for; all tensors and arrays if none was named."""

    def __init__(self, names: Iterable[str]) -> None:
        self.addresses = [_parsed(name) for name in names]
        self.matched: set[str] = set()
        self._known: dict[tuple[int, str, str | None], tuple[CodeType, Paths]] = {}

    @property
    def everything(self) -> bool:
        """Whether no variable was named."""
        return not self.addresses

    def paths(self, code: CodeType, package: str, name: str, owner: str | None) -> Paths:
        """The paths to look at inside a variable of a function; `()` is the value itself.

        `owner` is the path of the module whose method it is, None for any other function.
        """
        known = self._known.get((id(code), name, owner))
        if known is None:
            found = [
                (address, rest)
                for address in self.addresses
                for rest in _rests(address, code, package, name, owner)
            ]
            self.matched.update(address.text for address, _ in found)
            paths = tuple(dict.fromkeys(rest for _, rest in found))
            known = self._known[id(code), name, owner] = (code, paths)
        return known[1]

    def missed(self) -> list[Address]:
        """What was asked for and never met."""
        return [address for address in self.addresses if address.text not in self.matched]


def _parsed(name: str) -> Address:
    if not isinstance(name, str):
        raise ClewError(
            f"clew.watch was given a {type(name).__name__}; name variables by text, such as "
            "clew.watch('video'), and write @clew.watch() to decorate without naming any"
        )
    address = parse(name)
    if address.role is not None or address.call is not None or address.kind in ("op", "line"):
        raise ClewError(
            f"clew.watch follows variables, and {name!r} names something else; "
            "write a name such as 'video', 'self.cache.k' or 'data.py:load.video'"
        )
    return address


def _rests(
    address: Address, code: CodeType, package: str, name: str, owner: str | None
) -> list[tuple[Segment, ...]]:
    """What an address leaves to follow inside a variable, for each way to read it."""
    segments = address.segments
    if address.kind == "function":
        if not (address.path == package or matches_file(address.path, code.co_filename)):
            return []
        return _in_function(segments, qualified(code), name)
    found = []
    if segments and segment_matches(segments[0], name):
        found.append(segments[1:])
    if owner is not None:
        for path, rest in address.splits():
            if len(rest) > 1 and compile_pattern(path)(owner):
                found += _in_function(rest, (code.co_name,), name)
    return found


def _in_function(
    segments: tuple[Segment, ...], function: tuple[str, ...], name: str
) -> list[tuple[Segment, ...]]:
    """The rest of segments that begin with a function and one of its variables."""
    if function == ("<module>",):  # at the top of a file there is no function
        return [segments[1:]] if segments and segment_matches(segments[0], name) else []
    if not _TELLS_CLASSES and len(segments) > 1 and not segment_matches(segments[0], function[0]):
        segments = segments[1:]
    cut = len(function)
    if len(segments) < cut or not all(map(segment_matches, segments[:cut], function)):
        return []
    rest = segments[cut:]
    if not rest:
        return [()] if name == RETURN else []
    return [rest[1:]] if segment_matches(rest[0], name) else []


def qualified(code: CodeType) -> tuple[str, ...]:
    """The names of the classes and functions around a function, and its own."""
    qualname = getattr(code, "co_qualname", code.co_name)
    parts = [part for part in qualname.split(".") if part != "<locals>"]
    return tuple(parts)


def stem_of(code: CodeType, file: str, owner: str | None, variable: str) -> str:
    """The address of a variable: `data.py:load.video`, `layers.0.forward.attn`."""
    if owner is not None:
        return join_names(owner, code.co_name, variable)
    function = "" if code.co_name == "<module>" else ".".join(qualified(code))
    return f"{file}:{join_names(function, variable)}"


def join_names(*names: str) -> str:
    """Names with dots in between, but before a bracket."""
    text = ""
    for name in names:
        text += name if not text or not name or name.startswith("[") else f".{name}"
    return text

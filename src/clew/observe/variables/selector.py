"""Select the variables that a watch follows: by plain names, paths inside values, addresses.

Input: the names a user gave (`video`, `self.cache.k`, `data.py:load.video`,
`layers.*.forward.attn`) and the variables of functions as they run. Output: the paths to follow.
"""

from __future__ import annotations

import dis
import os
from collections.abc import Iterable
from dataclasses import dataclass
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
from clew.observe.variables.frames.functions import self_name, unwrap
from clew.observe.variables.looking import RETURN, join_names
from clew.request.ledger import Ledger

TOP_LEVEL = ("<module>",)
Paths = tuple[tuple[Segment, ...], ...]


@dataclass(frozen=True, slots=True)
class Function:
    """A function as addresses name it.

    `parts` are the classes and functions that enclose it, and its own name. `owner` is the path of
    the module whose method it is, None for any other.
    """

    code: CodeType
    parts: tuple[str, ...]
    package: str
    owner: str | None

    def stem(self, variable: str) -> str:
        """Return the address of a variable: `data.py:load.video`, `layers.0.forward.attn`."""
        if self.owner is not None:
            return join_names(self.owner, self.code.co_name, variable)
        function = "" if self.parts == TOP_LEVEL else ".".join(self.parts)
        return f"{os.path.basename(self.code.co_filename)}:{join_names(function, variable)}"


class Wishes:
    """The variables that were asked for; all tensors and arrays if none was named."""

    def __init__(self, names: Iterable[str]) -> None:
        self.addresses = [_parsed(name) for name in names]
        self.ledger = Ledger(self.addresses)
        self._possible: dict[str, bool] = {}
        self._known: dict[tuple[int, str, str | None], tuple[CodeType, Paths]] = {}

    @property
    def everything(self) -> bool:
        """Return whether no variable was named, so that all are followed."""
        return not self.addresses

    @property
    def nothing(self) -> bool:
        """Return whether no variable is followed at all."""
        return False

    def may_be(self, name: str) -> bool:
        """Return whether a variable of this name can be one of them, in whatever function."""
        known = self._possible.get(name)
        if known is None:
            known = self._possible[name] = any(
                segment_matches(segment, name) for a in self.addresses for segment in a.segments
            )
        return known

    def concern(self, code: CodeType) -> bool:
        """Return whether a function can have one of them, judged by the names in its code."""
        own = self_name(code)
        if own is not None and self.may_be("self"):
            self._possible[own] = True
        return any(_may_hold(address, code) for address in self.addresses)

    def paths(self, where: Function, name: str) -> Paths:
        """Return the paths to follow inside a variable of a function; `()` is the value itself."""
        key = (id(where.code), name, where.owner)
        known = self._known.get(key)
        if known is None:
            names = (name, "self") if name == self_name(where.code) else (name,)
            found = [
                (a, rest) for a in self.addresses for n in names for rest in _rests(a, where, n)
            ]
            self.ledger.came.update(address.text for address, _ in found)
            paths = tuple(dict.fromkeys(rest for _, rest in found))
            known = self._known[key] = (where.code, paths)
        return known[1]


class NoWishes(Wishes):
    """No variable at all: only calls, with their arguments and results."""

    def __init__(self) -> None:
        super().__init__(())

    @property
    def everything(self) -> bool:
        """Return False: no variable is followed."""
        return False

    @property
    def nothing(self) -> bool:
        return True


def _parsed(name: str) -> Address:
    if not isinstance(name, str):
        raise ClewError(
            f"clew.watch was given {name!r:.60}; name variables by text, such as "
            "clew.watch('video'), and write @clew.watch() to decorate without naming any"
        )
    address = parse(name)
    if address.role is not None or address.call is not None or address.kind in ("op", "line"):
        raise ClewError(
            f"clew.watch follows variables, and {name!r} names something else; "
            "write a name such as 'video', 'self.cache.k' or 'data.py:load.video'"
        )
    if address.rank is not None:
        raise ClewError(
            f"clew.watch follows variables on every rank, and {name!r} names one; leave the rank "
            f"out, or write clew.trace(watch=[{name!r}])"
        )
    return address


_STORE_GLOBAL = dis.opmap["STORE_GLOBAL"]


def _may_hold(address: Address, code: CodeType) -> bool:
    if address.kind == "function":
        is_file = address.path.endswith(".py") or "/" in address.path
        if is_file and not matches_file(address.path, code.co_filename):
            return False
        return any(segment_matches(segment, code.co_name) for segment in address.segments)
    names = [*code.co_varnames, *code.co_cellvars, *code.co_freevars]
    if self_name(code) is not None:
        names.append("self")
    if _STORE_GLOBAL in code.co_code[::2]:
        names += code.co_names
    return any(segment_matches(segment, name) for segment in address.segments for name in names)


def _rests(address: Address, where: Function, name: str) -> list[tuple[Segment, ...]]:
    """Return what an address leaves to follow inside a variable, for each way to read it."""
    segments = address.segments
    if address.kind == "function":
        file = where.code.co_filename
        if address.path != where.package and not matches_file(address.path, file):
            return []
        return _in_function(segments, where.parts, name)
    found = []
    if segments and segment_matches(segments[0], name):
        found.append(segments[1:])
    if where.owner is not None:
        for path, rest in address.splits():
            if len(rest) > 1 and compile_pattern(path)(where.owner):
                found += _in_function(rest, where.parts[-1:], name)
    return found


def _in_function(
    segments: tuple[Segment, ...], function: tuple[str, ...], name: str
) -> list[tuple[Segment, ...]]:
    """Return the rest of segments that begin with a function and one of its variables."""
    cut = 0 if function == TOP_LEVEL else len(function)
    if len(segments) < cut or not all(map(segment_matches, segments[:cut], function)):
        return []
    rest = segments[cut:]
    if not rest:
        return [()] if name == RETURN else []
    return [rest[1:]] if segment_matches(rest[0], name) else []


def parts_of(code: CodeType, owner: object) -> tuple[str, ...]:
    """Return the names of the classes and functions that enclose a function, and its own."""
    qualname = getattr(code, "co_qualname", None)
    if qualname is None:  # before Python 3.11 code does not know the class it was written in
        cls = next((cls for cls in type(owner).__mro__ if _defines(cls, code)), None)
        qualname = code.co_name if cls is None else f"{cls.__qualname__}.{code.co_name}"
    return tuple(part for part in qualname.split(".") if part != "<locals>")


def _defines(cls: type, code: CodeType) -> bool:
    return any(f.__code__ is code for f in unwrap(cls.__dict__.get(code.co_name), code.co_name))

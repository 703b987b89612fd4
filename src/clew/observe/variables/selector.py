"""Select variables by names, paths inside values and addresses, for `capture=` and `watch` alike.

Input: what a user asked for (`video`, `self.cache.k`, `data.py:load.video`,
`layers.*.forward.attn`), and functions: those that exist, those of a module, or one that runs.
Output: the variables wanted of each. The ledger learns which addresses had a function or a value.
"""

from __future__ import annotations

import dis
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any

from clew.address import Address, Segment, compile_path, matches_file, parse, segment_matches
from clew.errors import ClewError
from clew.machinery import MACHINERY
from clew.observe.variables.frames.existing import Functions
from clew.observe.variables.frames.functions import (
    Found,
    methods,
    resolve,
    self_name,
    unwrap,
    variables,
)
from clew.observe.variables.wanted_variables import (
    RETURN,
    Function,
    WantedVariable,
    WantedVariables,
    join_names,
)
from clew.request.ledger import Ledger

Selected = tuple[Found, WantedVariable]
# A function that was called, with its code, so that no other gets its id.
_Known = tuple[Function, WantedVariables, CodeType]


class VariableSelector:
    """Finds the variables that addresses name; with `everything`, all tensors and arrays."""

    def __init__(
        self, addresses: Iterable[Address], ledger: Ledger | None = None, everything: bool = False
    ) -> None:
        self.addresses = list(addresses)
        self.ledger = Ledger(self.addresses) if ledger is None else ledger
        self.everything = everything
        self._possible: dict[str, bool] = {}
        self._known: dict[tuple[int, str | None, bool], _Known] = {}

    @property
    def nothing(self) -> bool:
        """Return whether no variable is followed at all."""
        return not self.addresses and not self.everything

    # Functions before they run: for `capture=`

    def in_functions(self, functions: Functions) -> Iterator[Selected]:
        """Yield the functions that exist now and have a wanted variable, with it."""
        for address in self.addresses:
            if address.kind == "function":
                for match in resolve(address.path, address.segments, functions):
                    if _has_variable(match):
                        yield self._selected(address, match, None)

    def in_module(self, path: str, module: Any) -> Iterator[Selected]:
        """Yield the methods of a module that have a wanted variable, with it."""
        for address in self.addresses:
            for name, rest in address.splits() if address.kind == "path" else ():
                if rest and compile_path(name)(path):
                    for match in methods(module, rest):
                        if _has_variable(match) and _is_of_program(match, name == path):
                            yield self._selected(address, match, {id(module): path})

    def _selected(self, address: Address, match: Found, owners: dict[int, str] | None) -> Selected:
        self.ledger.found.add(address.text)
        function = match.function
        own = self_name(function.__code__, function.__qualname__)
        name, inside = _variable(match.rest, own)
        called = "self" if match.rest[:1] == ("self",) else ""
        code_name = getattr(function.__code__, "co_qualname", function.__qualname__)
        written = code_name.replace(".<locals>", "") if owners is None else match.name
        written = join_names(written, match.inner)
        return match, WantedVariable(
            address.text, name, inside, called, written, owners, match.gets_owner
        )

    # Functions as they run: for `watch`

    def may_be(self, name: str) -> bool:
        """Return whether a variable of this name can be wanted, in whatever function."""
        known = self._possible.get(name)
        if known is None:
            known = self._possible[name] = self.everything or any(
                segment_matches(segment, name) for a in self.addresses for segment in a.segments
            )
        return known

    def concern(self, code: CodeType) -> bool:
        """Return whether a function can have a named variable, judged by the names in its code."""
        own = self_name(code)
        if own is not None and self.may_be("self"):
            self._possible[own] = True
        return any(_may_hold(address, code) for address in self.addresses)

    def in_call(
        self, code: CodeType, package: str, owner: object, path: str | None
    ) -> tuple[Function, WantedVariables]:
        """Return a function that is called, and what is wanted of it; `path` is its module's."""
        key = (id(code), path, owner is None)
        known = self._known.get(key)
        if known is None:
            names, own = _names_of(code, owner), self_name(code)
            short = code.co_name if path is not None else ".".join(names)
            function = Function(code.co_filename, package, path, short)
            rests = [(a.text, rest) for a in self.addresses for rest in _rests(a, function, names)]
            found = [WantedVariable(text, *_variable(rest, own)) for text, rest in rests]
            known = self._known[key] = (function, WantedVariables(found), code)
        return known[:2]


def watched_names(names: Iterable[str]) -> VariableSelector:
    """Return a selector of the variables named to `clew.watch`: all of them if none was named."""
    addresses = [_parsed(name) for name in names]
    return VariableSelector(addresses, everything=not addresses)


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


def _rests(
    address: Address, where: Function, names: tuple[str, ...]
) -> Iterator[tuple[Segment, ...]]:
    """Yield what an address leaves for a variable of a function, for each way to read it."""
    segments = address.segments
    if address.kind == "function":
        is_here = address.path == where.package or matches_file(address.path, where.file)
        if is_here and _begins(segments, names):
            yield segments[len(names) :]
        return
    if segments:
        yield segments
    if where.owner is not None:
        for path, rest in address.splits():
            if compile_path(path)(where.owner) and _begins(rest, names[-1:]):
                yield rest[1:]


def _begins(segments: tuple[Segment, ...], names: tuple[str, ...]) -> bool:
    return len(segments) >= len(names) and all(map(segment_matches, segments, names))


def _variable(rest: tuple[Segment, ...], own: str | None) -> tuple[Segment, tuple[Segment, ...]]:
    """Split what follows a function into the variable and the path inside it.

    `own` is the name that a method has for its object, if not `self`.
    """
    if not rest:
        return RETURN, ()
    return (own if own is not None and rest[0] == "self" else rest[0]), rest[1:]


def _has_variable(match: Found) -> bool:
    names = (*variables(match.function, match.inner), RETURN)
    return not match.rest or any(segment_matches(match.rest[0], known) for known in names)


def _is_of_program(match: Found, is_named: bool) -> bool:
    """Return whether a method is the program's own; generated code is, if named exactly."""
    file = match.function.__code__.co_filename
    # Torch's code that calls modules has any module as its `self`.
    if MACHINERY.call_frame is not None and file == MACHINERY.call_frame.co_filename:
        return False
    return is_named or not file.startswith(MACHINERY.generated)


def _names_of(code: CodeType, owner: object) -> tuple[str, ...]:
    """Return the names of the classes and functions that enclose a function, and its own.

    The top level has none.
    """
    qualname = getattr(code, "co_qualname", None)
    if qualname is None:  # before Python 3.11 code does not know the class it was written in
        cls = next((cls for cls in type(owner).__mro__ if _defines(cls, code)), None)
        qualname = code.co_name if cls is None else f"{cls.__qualname__}.{code.co_name}"
    return tuple(part for part in qualname.split(".") if part not in ("<locals>", "<module>"))


def _defines(cls: type, code: CodeType) -> bool:
    return any(f.__code__ is code for f in unwrap(cls.__dict__.get(code.co_name), code.co_name))

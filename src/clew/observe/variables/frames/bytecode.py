"""Find what each instruction of a code object does to its variables.

In: a code object. Out: the offsets at which names are bound or deleted, lines begin and generators
stop, with the sites there; and the values of a frame's variables.
Must not know: how one learns that an instruction runs.
"""

from __future__ import annotations

import dis
import inspect
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any, TypeAlias

from clew.observe.variables.frames.sites import Kind, Site

Positions: TypeAlias = tuple[int, int, int, int]

_STORES = {"STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF", "STORE_FAST_LOAD_FAST"}
_DELETES = {"DELETE_FAST", "DELETE_NAME", "DELETE_GLOBAL", "DELETE_DEREF"}
_YIELDED = 1  # the argument of RESUME after a plain `yield`


@dataclass(frozen=True, slots=True)
class NameStep:
    """One instruction of interest: the names it binds, those it deletes, the line it begins."""

    bound: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    line: int = 0
    at: Positions = (0, 0, 0, 0)


class CodeMap:
    """The instructions of one code object, as far as its variables are concerned."""

    __slots__ = (
        "begins", "code", "following", "globals", "handled", "origin", "owner", "params", "steps",
        "targets", "yields",
    )  # fmt: skip

    def __init__(self, code: CodeType, origin: CodeType | None = None) -> None:
        self.code = code
        # The code as its author wrote it, where `code` is rewritten.
        self.origin = origin or code
        listed = list(dis.get_instructions(code))
        self.steps: dict[int, NameStep] = {}
        self.following: dict[int, tuple[int, ...]] = {}
        self.targets = {one.offset for one in listed if one.is_jump_target}
        self.globals: set[str] = set()
        # Offsets where a call begins (before 3.11: none), and where a generator hands out a value.
        self.begins: set[int] = set()
        self.yields: set[int] = set()
        # Where an exception handler ends without raising its exception again.
        self.handled = {
            one.offset
            for one, after in itertools.pairwise(listed)
            if one.opname == "POP_EXCEPT" and after.opname != "RERAISE"
        }
        self._read(code, listed)
        count = code.co_argcount + code.co_kwonlyargcount
        flags = code.co_flags
        count += bool(flags & inspect.CO_VARARGS) + bool(flags & inspect.CO_VARKEYWORDS)
        self.params = code.co_varnames[:count]
        first = code.co_varnames[0] if code.co_argcount else None
        touched = {n for step in self.steps.values() for n in (*step.bound, *step.deleted)}
        self.owner = first if first not in touched else None

    def _read(self, code: CodeType, listed: list[Any]) -> None:
        inlined = list(_inlined(listed))
        lines = {start: line for start, _, line in code.co_lines() if line}
        begun = 0
        for index, instruction in enumerate(listed):
            after = listed[index + 1] if index + 1 < len(listed) else None
            before = listed[index - 1] if index else None
            bound = tuple(
                name
                for name in _names(instruction, _STORES)
                if not _is_cleanup(before, instruction, after)
                and not any(_within(instruction, name, own) for own in inlined)
            )
            deleted = tuple(
                name for name in _names(instruction, _DELETES) if not _after_cleanup(listed, index)
            )
            starts = lines.get(instruction.offset, 0)
            line = starts if starts and starts != begun else 0
            begun = starts or begun
            if instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                self.globals.update((*bound, *deleted))
            if bound or deleted or line:
                at = _positions(instruction, begun)
                self.steps[instruction.offset] = NameStep(bound, deleted, line, at)
            if after is not None:
                self.following[instruction.offset] = _offsets(instruction, after)
            self._note_suspension(instruction, after)

    def _note_suspension(self, instruction: Any, after: Any) -> None:
        if instruction.opname == "RESUME" and instruction.arg == 0:
            self.begins.add(instruction.offset)
        if instruction.opname == "YIELD_VALUE":
            plain = after is not None and after.opname == "RESUME" and after.arg & 3 == _YIELDED
            if plain or sys.version_info < (3, 11):
                self.yields.add(instruction.offset)

    def site(self, kind: Kind, name: str, at: Positions) -> Site:
        code = self.origin
        function = getattr(code, "co_qualname", code.co_name)
        line, end_line, col, end_col = at
        return Site(kind, name, code, code.co_filename, function, line, end_line, col, end_col)

    def whole(self, line: int = 0) -> Positions:
        line = line or self.code.co_firstlineno
        return line, line, 0, 0


_maps: dict[tuple[int, int], CodeMap] = {}
_MOST_MAPS = 1000


def map_of(code: CodeType, origin: CodeType | None = None) -> CodeMap:
    """Return the map of a code object, read once; a map holds its code, so the id stays valid."""
    key = (id(code), id(origin or code))
    found = _maps.get(key)
    if found is None:
        if len(_maps) >= _MOST_MAPS:
            _maps.clear()
        found = _maps[key] = CodeMap(code, origin)
    return found


def bound_names(code: CodeType) -> set[str]:
    """Return the names that a function binds, parameters included."""
    found = map_of(code)
    return {*found.params, *(name for step in found.steps.values() for name in step.bound)}


def _offsets(instruction: Any, after: Any) -> tuple[int, ...]:
    """Return the offsets reported for the next instruction: a long argument may precede it."""
    first = instruction.offset + 2
    return tuple(dict.fromkeys((after.offset, getattr(after, "start_offset", first), first)))


def _names(instruction: Any, among: set[str]) -> tuple[str, ...]:
    opname, value = instruction.opname, instruction.argval
    if opname == "STORE_FAST_STORE_FAST" and among is _STORES:
        return tuple(value)
    if opname not in among:
        return ()
    # STORE_FAST_LOAD_FAST stores to the first of its two names.
    return (value[0] if isinstance(value, tuple) else value,)


def _is_cleanup(before: Any, store: Any, after: Any) -> bool:
    """Return whether it is the end of `except … as y`, where y becomes None and is deleted."""
    return (
        before is not None
        and after is not None
        and before.opname == "LOAD_CONST"
        and before.argval is None
        and after.opname in _DELETES
        and after.argval == store.argval
    )


def _after_cleanup(listed: list[Any], index: int) -> bool:
    return index >= 2 and _is_cleanup(listed[index - 2], listed[index - 1], listed[index])


def _inlined(listed: list[Any]) -> Iterator[tuple[str, Positions]]:
    """Yield the name and place of each comprehension compiled into the function (3.12)."""
    for instruction in listed:
        if instruction.opname == "LOAD_FAST_AND_CLEAR":
            yield instruction.argval, _positions(instruction, 0)


def _within(store: Any, name: str, own: tuple[str, Positions]) -> bool:
    """Return whether a store is a comprehension's: to its variable, or to restore the outer one."""
    variable, (line, end_line, col, end_col) = own
    first, last, begin, end = _positions(store, 0)
    return name == variable and (line, col) <= (first, begin) and (last, end) <= (end_line, end_col)


def _positions(instruction: Any, line: int) -> Positions:
    found = getattr(instruction, "positions", None)
    if found is None or found.lineno is None:
        return line, line, 0, 0
    return (
        found.lineno,
        found.end_lineno or found.lineno,
        found.col_offset or 0,
        found.end_col_offset or 0,
    )

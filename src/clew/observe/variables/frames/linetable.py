"""Correct the line tables of rewritten code: give added code the line that ran before it.

In: code compiled from a tree in which some nodes stand `NOWHERE`. Out: the same code, with those
instructions at the place of the one before each: no debugger sees a line that does not exist.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any, TypeAlias

from clew.observe.variables.frames.hooks import code_tree

# Past the end of any source, yet near enough for the table of 3.10, which moves by 127.
NOWHERE = 1 << 20

_Place: TypeAlias = tuple[int | None, int | None, int | None, int | None]
_UNITS_PER_ENTRY = 8
_LONG_FORM, _NO_COLUMNS, _NO_PLACE = 14, 13, 15


def settle(code: CodeType) -> CodeType:
    """Give every instruction that is `NOWHERE` a place, here and in nested code."""
    consts = tuple(settle(c) if isinstance(c, CodeType) else c for c in code.co_consts)
    if any(new is not old for new, old in zip(consts, code.co_consts, strict=True)):
        code = code.replace(co_consts=consts)
    if not any(line is not None and line >= NOWHERE for *_, line in code.co_lines()):
        return code
    encode: Any = _encode if sys.version_info >= (3, 11) else _encode_3_10
    return code.replace(co_linetable=encode(code))


def is_fragile(code: CodeType) -> bool:
    """Return whether torch.compile may fail to split this code where its graph breaks.

    Seen in torch 2.13: it loses its place when a protected stretch, or its handler, begins with
    an instruction whose argument does not fit into one byte.
    """
    return any(
        part.co_code[at] == dis.EXTENDED_ARG
        for part in code_tree(code)
        for at in _protected(getattr(part, "co_exceptiontable", b""))
    )


def _protected(table: bytes) -> Iterator[int]:
    """Yield the offsets at which the ranges of an exception table and their handlers begin."""
    numbers = iter(_numbers(table))
    for start, _length, target, _depth in zip(numbers, numbers, numbers, numbers, strict=False):
        yield 2 * start
        yield 2 * target


def _numbers(table: bytes) -> Iterator[int]:
    value = 0
    for byte in table:
        value = value << 6 | byte & 63
        if not byte & 64:
            yield value
            value = 0


def _encode(code: CodeType) -> bytes:
    """Write a location table (Objects/locations.md of CPython), in the long form throughout."""
    table = bytearray()
    line = code.co_firstlineno
    for place, units in _runs(code):
        start, end, col, end_col = place
        if start is None:
            table.append(0x80 | _NO_PLACE << 3 | units - 1)
            continue
        if end is None or col is None or end_col is None:
            table.append(0x80 | _NO_COLUMNS << 3 | units - 1)
            table += _signed(start - line)
        else:
            table.append(0x80 | _LONG_FORM << 3 | units - 1)
            table += _signed(start - line) + _varint(end - start)
            table += _varint(col + 1) + _varint(end_col + 1)
        line = start
    return bytes(table)


def _runs(code: CodeType) -> Iterator[tuple[_Place, int]]:
    """Yield runs of instructions at one place, as (place, number of code units)."""
    positions: Iterator[_Place] = getattr(code, "co_positions")()  # noqa: B009 - 3.10 has none
    place: _Place = (code.co_firstlineno, code.co_firstlineno, 0, 0)
    run, units = place, 0
    for found in positions:
        if found[0] is None or found[0] < NOWHERE:
            settled = found
            place = found if found[0] is not None else place
        else:
            settled = place
        if units and (settled != run or units == _UNITS_PER_ENTRY):
            yield run, units
            units = 0
        run, units = settled, units + 1
    if units:
        yield run, units


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= 64:
        found.append(0x40 | value & 63)
        value >>= 6
    found.append(value)
    return bytes(found)


def _signed(value: int) -> bytes:
    return _varint(-value << 1 | 1 if value < 0 else value << 1)


def _encode_3_10(code: CodeType) -> bytes:
    """Write a line table of 3.10: pairs of bytes passed and lines moved, -128 for no line."""
    table = bytearray()
    written = last = code.co_firstlineno
    for start, end, line in code.co_lines():
        if line is not None:
            line = last if line >= NOWHERE else line
            last = line
        moved = 0 if line is None else line - written
        written = written if line is None else line
        for passed, step in _steps_3_10(end - start, moved, line is None):
            table += bytes((passed, step & 0xFF))
    return bytes(table)


def _steps_3_10(passed: int, moved: int, nowhere: bool) -> Iterator[tuple[int, int]]:
    while not -127 <= moved <= 127:
        step = 127 if moved > 0 else -127
        yield 0, step
        moved -= step
    while passed > 254:
        yield 254, -128 if nowhere else moved
        moved, passed = 0, passed - 254
    yield passed, -128 if nowhere else moved

"""Parse an address: `parse` returns an `Address`, the data every other room works with.

Where a module path ends and a method or variable begins is decided by the resolver, which knows the
names that exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from clew.address.cursor import Cursor
from clew.address.matching import compile_file
from clew.address.ranks import split_rank
from clew.address.roles import MISTAKEN_ROLES, ROLES, nearest_role, word_at
from clew.address.segments import Key, Segment, join
from clew.errors import AddressSyntaxError, ClewError


@dataclass(frozen=True, slots=True)
class Address:
    """An address taken apart; `text` is what was written, `rank` None for every rank.

    kind      path                                segments
    path      dotted pattern, "" is the root      its parts: module, method, variable, keys
    op        op-name pattern                     its parts
    line      file pattern                        ()
    function  file or module before the colon     what follows: class, function, variable, keys
    """

    text: str
    kind: str
    path: str
    function: str | None = None
    line: int | None = None
    call: int | None = None
    role: str | None = None
    field: tuple[Segment, ...] = ()
    segments: tuple[Segment, ...] = ()
    rank: int | None = None

    def __str__(self) -> str:
        return self.text

    def splits(self) -> Iterator[tuple[str, tuple[Segment, ...]]]:
        """Yield every cut of the segments into a dotted name and the rest, longest name first."""
        for cut in range(len(self.segments), -1, -1):
            yield join(self.segments[:cut]), self.segments[cut:]


def parse(text: str) -> Address:
    """Take an address apart, or raise AddressSyntaxError.

    path[#call][:role[.field]]                  encoder.layers.*.self_attn#2:in.mask
    file.py:name[#call][:role[.field]]          dataset.py:get_item.video (or a dotted module)
                                                f.py:make.<locals>.f.x, or f.py:make.f.x
    op:pattern[#call][:role[.field]]            op:aten._softmax*
    line:file:number                            line:model.py:57
    any of these, then @rank                    encoder.layers.0#2:in@1, @* for every rank

    Brackets have three meanings. A quoted string is always a key: `cache['a.b']`. Digits
    directly after a name or another subscript are an index: `cache[0]`. Everything else is a
    class, one character as in glob: `[0-3]`, `[ab]`, `[!x]`, and, after a dot, `.[12].`.
    `#2` at the end or before a role is the third call; before a dot it belongs to the name,
    as in `MLP#2.fc`, and so does an '@'. A last name that has an '@' is quoted: `['x@1']` is not
    `x@1`, which is `x` on rank 1. A module that is called `op` or `line` is written `['op']:in`.

    >>> address = parse("encoder.layers.0:in.mask")
    >>> address.path, address.role, address.field
    ('encoder.layers.0', 'in', ('mask',))
    """
    if not isinstance(text, str):
        raise ClewError(
            f"an address is text such as 'encoder.layers.0', not {text!r}; "
            "events by their number are in .events, .modules and .ops"
        )
    head, rank = split_rank(text)
    try:
        return replace(_parse_without_rank(head), text=text, rank=rank)
    except AddressSyntaxError as error:
        raise AddressSyntaxError(error.what, text, error.position, error.instead) from None


def _parse_without_rank(text: str) -> Address:
    if text != text.strip():
        at = 0 if text[0].isspace() else len(text.rstrip())
        raise AddressSyntaxError("space around it", text, at, "remove the space")
    if text.startswith("line:"):
        return _parse_line(text)
    if text.startswith("op:"):
        return _parse_op(text)
    colon = text.find(":")
    if colon > 0 and _names_function(text, colon):
        return _parse_function(text, colon)
    cursor = Cursor(text)
    segments = () if cursor.at_tail() or not text else _names(cursor)
    return _finish(cursor, "path", join(segments), segments)


def _finish(cursor: Cursor, kind: str, path: str, segments: tuple[Segment, ...]) -> Address:
    """Read what may follow any path: call index, role, field."""
    # `Dataset.get_item` may be a method, or a function and its variable; a lone name cannot.
    function = join(segments) if kind == "function" and len(segments) == 1 else None
    call = cursor.call()
    role = cursor.role()
    field = cursor.field(role) if role else ()
    cursor.refuse_rank()
    if cursor.at("#"):
        cursor.fail("the call index comes before the role", cursor.pos, "write fc#2:out")
    if not cursor.at_end():
        what = "a second role" if cursor.at(":") else "text directly after ']'"
        cursor.fail(what, cursor.pos, "write one role and its field, :in.mask")
    return Address(cursor.text, kind, path, function, None, call, role, field, segments)


def _names(cursor: Cursor) -> tuple[Segment, ...]:
    """Read segments; the `<locals>` that Python writes between nested functions is skipped."""
    segments = cursor.segments()
    return tuple(part for part in segments if part != "<locals>" or isinstance(part, Key))


def _parse_op(text: str) -> Address:
    cursor = Cursor(text, len("op:"))
    name = text.removeprefix("op:")
    if "::" in name:
        dotted = name.replace("::", ".")
        cursor.fail("'::' does not separate names", text.index("::", 3), f"write op:{dotted}")
    segments = cursor.segments()
    return _finish(cursor, "op", join(segments), segments)


def _parse_line(text: str) -> Address:
    file, colon, digits = text.removeprefix("line:").rpartition(":")
    if number := re.match("[0-9]+(?=@)", digits):
        Cursor(text, len(text) - len(digits) + number.end()).refuse_rank()
    if not (colon and file and re.fullmatch("[1-9][0-9]{0,17}", digits)):
        raise AddressSyntaxError(
            "a line address is a file and a line number",
            text,
            len(text) - len(digits),
            "write line:model.py:57; a module called 'line' is ['line']",
        )
    _check_file(text, file, len("line:"))
    return Address(text, "line", file, line=int(digits))


def _parse_function(text: str, colon: int) -> Address:
    _check_file(text, text[:colon], 0)
    cursor = Cursor(text, colon + 1)
    if re.fullmatch("[0-9]+", text[colon + 1 :]):
        cursor.fail("a function cannot be a number", colon + 1, f"for the line, write line:{text}")
    segments = _names(cursor)
    return _finish(cursor, "function", text[:colon], segments)


def _check_file(text: str, file: str, offset: int) -> None:
    """Compile a file pattern early, so that an error shows the whole address."""
    try:
        compile_file(file)
    except AddressSyntaxError as error:
        at = offset + error.position
        raise AddressSyntaxError(error.what, text, at, error.instead) from None


def _names_function(text: str, colon: int) -> bool:
    """Return whether the colon separates a file or module from a function in it."""
    where, word = text[:colon], word_at(text, colon + 1)
    if word in ROLES or "'" in where or '"' in where:
        return False
    if where.endswith(".py"):
        return True
    if word in MISTAKEN_ROLES or not all(part.isidentifier() for part in where.split(".")):
        return False
    alone = colon + 1 + len(word) == len(text)
    return bool(word) and not (alone and nearest_role(word))

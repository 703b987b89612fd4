"""Rules that several rooms share: which labels an address names, which are counted together.

Input: an `Address` and a `Label`. Output: yes or no, or the key by which a label is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clew.address import Address, compile_pattern, join, matches_file, matches_op
from clew.events.vocabulary import GRADIENT, TAP, VARIABLE, Label

OP_STEM = "op:"


def counted_as(number: int, label: Label) -> Any:
    """Return the key by which events of a label are counted: equal for equal addresses.

    `number` is the label's number, for labels whose events are not found by address.
    """
    if label.stage is not None or label.kind not in (VARIABLE, TAP, GRADIENT):
        return number
    return label.stem, label.role


def is_named(address: Address, label: Label) -> bool:
    """Return whether an address names a variable, tap or gradient, ignoring its call index."""
    if label.stage is not None or label.role != address.role:
        return False
    return _names_stem(address, label)


def is_made_of(address: Address, label: Label) -> bool:
    """Return whether an address names results that callbacks or a gather made from its values."""
    return (
        label.stage is not None and label.role == role_of(address) and _names_stem(address, label)
    )


def role_of(address: Address) -> str | None:
    """Return the side of a call that an address names, with the path; None for the whole result.

    >>> from clew.address import parse
    >>> role_of(parse("fc:in.mask")), role_of(parse("fc:out"))
    ('in.mask', None)
    """
    if address.role not in ("in", "out"):
        return address.role
    role = ".".join([address.role, *map(str, address.field)])
    return None if role == "out" else role


def _names_stem(address: Address, label: Label) -> bool:
    if address.kind == "op":
        stem = label.stem
        return stem.startswith(OP_STEM) and matches_op(address.path, stem.removeprefix(OP_STEM))
    matcher = compile_pattern(join(address.segments))
    if address.kind == "path":
        return label.file is None and _matches(matcher, label.stem)
    if label.file is None or not _matches(matcher, label.stem.partition(":")[2]):
        return False
    return label.package == address.path or matches_file(address.path, label.file)


def _matches(matcher: Callable[[str], bool], stem: str) -> bool:
    """Return whether a pattern matches a stem; a function's name matches its return value."""
    return matcher(stem) or (stem.endswith(".return") and matcher(stem.removesuffix(".return")))

"""The address language: one way to name a module, value, local, operation or source line.

In: an address as text, and names as text. Out: an `Address` (data), yes or no, near misses.
Must not know: what a name stands for.
"""

from __future__ import annotations

from clew.address.cursor import split
from clew.address.matching import (
    compile_path,
    compile_pattern,
    has_wildcard,
    matches,
    matches_field,
    matches_file,
    matches_op,
    segment_matches,
)
from clew.address.parsing import Address, parse
from clew.address.ranks import split_rank, with_rank
from clew.address.roles import ROLES
from clew.address.segments import Key, Segment, join, written
from clew.address.spelling import nearest

__all__ = [
    "ROLES",
    "Address",
    "Key",
    "Segment",
    "compile_path",
    "compile_pattern",
    "has_wildcard",
    "join",
    "matches",
    "matches_field",
    "matches_file",
    "matches_op",
    "nearest",
    "parse",
    "segment_matches",
    "split",
    "split_rank",
    "with_rank",
    "written",
]

"""Parts of an address: names, indices and quoted keys, read from text and written back.

Knows nothing of whole addresses, roles or patterns.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import TypeAlias

Segment: TypeAlias = str | int

_QUOTED = r"\['(?P<single>[^'\\]*(?:\\.[^'\\]*)*)'\]|\[\"(?P<double>[^\"\\]*(?:\\.[^\"\\]*)*)\"\]"
SUBSCRIPT = re.compile(rf"\[(?P<index>0|[1-9][0-9]*)\]|{_QUOTED}", re.DOTALL)
QUOTED_KEY = re.compile(_QUOTED, re.DOTALL)
# Characters with a meaning in an address; `#` has one only at the end.
_SIGN = re.compile(r"[:@\[\]*?'\"]|^\s|\s$")
_PLAIN_KEY = re.compile(r"[^.\[\]*?'\"#:@\s]+")


class Key(str):
    """A quoted segment: taken literally, never as a pattern."""

    __slots__ = ()


def join(segments: Iterable[Segment]) -> str:
    """Write segments as one dotted name; a `Key` is quoted if it needs to be.

    Indices become plain segments, because `matches` treats `cache[0]` and `cache.0` the same.

    >>> join(["cache", Key("a.b"), 0])
    "cache['a.b'].0"
    """
    text = ""
    for segment in segments:
        if isinstance(segment, Key) and not _PLAIN_KEY.fullmatch(segment):
            escaped = segment.replace("\\", "\\\\").replace("'", "\\'")
            text += f"['{escaped}']"
        else:
            text += f".{segment}" if text else str(segment)
    return text


@functools.lru_cache(maxsize=4096)
def written(name: str) -> str:
    """Write a dotted name so that it parses as itself: segments with special characters are quoted.

    >>> written("convs.paper:cites.lin")
    "convs['paper:cites'].lin"
    """
    if not _SIGN.search(name):
        return name
    return join(Key(part) if _SIGN.search(part) else part for part in name.split("."))


def unquoted(subscript: re.Match[str]) -> Key:
    """Return the key that a match of `SUBSCRIPT` or `QUOTED_KEY` holds, its escapes resolved."""
    quoted = subscript["double"] if subscript["single"] is None else subscript["single"]
    return Key(re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL))


def class_ranges(members: str) -> list[tuple[str, str]]:
    """Return the members of a class as ranges; a '-' in first or last position is literal."""
    found = re.findall(r"(.)-(.)|(.)", members, re.DOTALL)
    return [(low or one, high or one) for low, high, one in found]

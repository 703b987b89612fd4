"""Match names against patterns: dotted names, op names and files.

In: patterns and names as text. Out: yes or no, or a test for use on many names.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from clew.address.cursor import Cursor, split
from clew.address.segments import SUBSCRIPT, Key, Segment, class_ranges, join, unquoted, written

# Matching works on one string per name in which every segment ends with a dot; a dot inside a
# key is written \0. So a dot is always a boundary, and the root, "", has no segment.

_ANY_SEGMENTS = r"(?:[^.]*\.)*?"
_GLOB_TOKEN = re.compile(r"(?P<run>\*+)|(?P<one>\?)|\[(?P<members>!?.[^\]]*)\]|[^*?\[]+", re.DOTALL)
_NAME_TOKEN = re.compile(rf"(?:{SUBSCRIPT.pattern})(?=[.\[]|\Z)|\.|[^.\[]+|\[", re.DOTALL)


def has_wildcard(pattern: str) -> bool:
    """Return whether a pattern, or one segment of an address, can match more than one name."""
    return not isinstance(pattern, Key) and any(map(_is_glob, split(pattern)))


def matches(pattern: str, name: str) -> bool:
    """Return whether a dotted name matches a dotted pattern.

    `*` and `?` stay within one segment, `**` as a segment is any number of segments, also none.

    >>> matches("encoder.**.self_*", "encoder.layers.0.self_attn")
    True
    """
    return compile_pattern(pattern)(name)


@functools.lru_cache(maxsize=1024)
def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Return the test `matches` makes, for use on many names."""
    segments = split(pattern)
    if not any(map(_is_glob, segments)):
        wanted = _subject(segments)
        return lambda name: _subject_of_name(name) == wanted
    fullmatch = re.compile(_regex(segments), re.DOTALL).fullmatch
    return lambda name: fullmatch(_subject_of_name(name)) is not None


def compile_path(pattern: str) -> Callable[[str], bool]:
    """Return the test whether a path of a module, parameter or buffer matches a pattern.

    Torch lets a name have any letter but a dot, so a bracket in it is a letter too.

    >>> compile_path("heads['x[0]']")("heads.x[0]")
    True
    """
    matches_written = compile_pattern(pattern)
    return lambda path: matches_written(written(path))


def segment_matches(segment: Segment, name: Segment) -> bool:
    """Return whether one segment of an address matches this attribute, key or index."""
    if isinstance(segment, str) and _is_glob(segment):
        compiled = _compile_segment(segment)
        return compiled.fullmatch(_subject([Key(name)])) is not None
    return str(segment) == str(name)


def matches_field(field: Sequence[Segment], path: str) -> bool:
    """Return whether a path inside arguments or a result is, or lies inside, a field.

    >>> [matches_field(("states",), path) for path in ("states", "states.0", "state")]
    [True, True, False]
    """
    text = ".".join(map(str, field))
    if path == text or path.startswith(text + ".") or (text == "0" and not path):
        return True
    return any(map(_is_glob, field)) and compile_pattern(join((*field, "**")))(path)


def matches_op(pattern: str, name: str) -> bool:
    """Return whether a pattern matches an op: in full, without its overload, or by bare name.

    >>> [matches_op(p, "aten._softmax.default") for p in ("aten._softmax*", "_softmax", "aten")]
    [True, True, False]
    """
    test = compile_pattern(pattern)
    if test(name):
        return True
    parts = name.split(".")
    return len(parts) > 1 and (test(".".join(parts[:2])) or test(parts[1]))


def matches_file(pattern: str, file: str) -> bool:
    """Return whether a file pattern matches a file; a relative pattern matches from the end.

    >>> matches_file("models/*.py", "/home/me/models/vit.py")
    True
    """
    if file == pattern:
        return True  # a notebook cell, `In[2]`, has literal brackets
    subject = file.replace(".", "\0").replace("/", ".") + "."
    return compile_file(pattern).fullmatch(subject) is not None


def _is_glob(segment: Segment) -> bool:
    return (
        isinstance(segment, str)
        and not isinstance(segment, Key)
        and ("*" in segment or "?" in segment or "[" in segment)
    )


def _subject(segments: Iterable[Segment]) -> str:
    return "".join(str(segment).replace(".", "\0") + "." for segment in segments)


def _subject_of_name(name: str) -> str:
    if "[" not in name:
        return name + "." if name else ""
    return _subject(_name_segments(name))


def _name_segments(name: str) -> list[str]:
    """Split a name that exists: brackets that are no subscript are letters, nothing is refused."""
    found: list[str] = []
    open_segment: str | None = ""
    for token in _NAME_TOKEN.finditer(name):
        is_key = token["single"] is not None or token["double"] is not None
        if is_key or (token["index"] is not None and open_segment != ""):
            if open_segment:
                found.append(open_segment)
            found.append(unquoted(token) if is_key else token["index"])
            open_segment = None
        elif token[0] == ".":
            if open_segment is not None:
                found.append(open_segment)
            open_segment = ""
        else:
            open_segment = (open_segment or "") + token[0]
    return found if open_segment is None else [*found, open_segment]


def _regex(segments: Sequence[Segment]) -> str:
    """Write segments as a regular expression that needs no exponential backtracking.

    The segments between two `**` have a fixed number, so their first position is as good as any:
    once found there, no other is tried (see `_atomic`).
    """
    groups = itertools.count()
    blocks = [""]
    for segment in segments:
        if segment == "**" and not isinstance(segment, Key):
            blocks.append("")
        else:
            blocks[-1] += _segment_regex(segment, groups)
    first, *rest = blocks
    if not rest:
        return first
    *middle, last = rest
    found = "".join(_atomic(_ANY_SEGMENTS + block, groups) for block in middle if block)
    return first + found + (_ANY_SEGMENTS + last if last else ".*")


def _segment_regex(segment: Segment, groups: Iterator[int]) -> str:
    if not _is_glob(segment):
        return re.escape(_subject([segment]))
    pieces = [""]
    for token in _GLOB_TOKEN.finditer(str(segment)):
        if token["run"]:
            pieces.append("")
        elif token["one"]:
            pieces[-1] += "[^.]"
        elif token["members"]:
            pieces[-1] += _class_regex(token["members"])
        else:
            pieces[-1] += re.escape(token[0].replace(".", "\0"))
    first, *rest = pieces
    if not rest:
        return first + r"\."
    *middle, last = rest
    found = "".join(_atomic("[^.]*?" + piece, groups) for piece in middle if piece)
    return first + found + "[^.]*" + last + r"\."


def _atomic(regex: str, groups: Iterator[int]) -> str:
    # Python 3.10 has no (?>...); a lookahead is never re-entered, which does the same.
    name = f"g{next(groups)}"
    return f"(?=(?P<{name}>{regex}))(?P={name})"


def _class_regex(members: str) -> str:
    ranges = class_ranges(members.removeprefix("!"))
    inside = "".join(f"{re.escape(low)}-{re.escape(high)}" for low, high in ranges)
    if any(low <= "." <= high for low, high in ranges):
        inside += r"\0"
    return rf"(?!\.)[{'^' if members.startswith('!') else ''}{inside}]"


@functools.lru_cache(maxsize=1024)
def _compile_segment(segment: str) -> re.Pattern[str]:
    return re.compile(_segment_regex(segment, itertools.count()), re.DOTALL)


@functools.lru_cache(maxsize=256)
def compile_file(pattern: str) -> re.Pattern[str]:
    """Return the expression that a file, written as `matches_file` does, must match."""
    cursor = Cursor(pattern)
    while (bracket := pattern.find("[", cursor.pos)) >= 0:
        cursor.pos = bracket
        cursor.character_class(opens_segment=True)
    parts = pattern.removeprefix("./").split("/")
    segments = parts if pattern.startswith("/") else ["**", *parts]
    return re.compile(_regex(segments), re.DOTALL)

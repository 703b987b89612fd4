"""Which functions around two ops read otherwise in the two runs.

Input: an op of each of two runs, whose traces keep the source. Output: a sentence for each function
on their call stacks, and each constructor of a class on them, whose text is not the same. Sources
are read line by line, never parsed: a trace may come from a stranger.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from clew.events.columns import Place
from clew.run.run import Run, source_lines

# Functions of the same name that share less than this are different functions.
_ALIKE = 0.5
# So many functions are compared, and so many changes of one are written.
_MOST_FUNCTIONS, _MOST_CHANGES = 40, 3
# Longer functions are not compared: that takes quadratic time.
_LONGEST = 1_500
_LONGEST_TEXT = 100

_QUOTES = re.compile(r'"""|' + "'''")


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    text: str


def own_places(run: Run, row: int) -> list[Place]:
    """Return the lines of user code on the stack of an event, innermost first."""
    places = run.columns.places
    at = int(run.columns.place[row])
    found: list[Place] = []
    while at >= 0:
        if places[at].line > 0 and not places[at].library:
            found.append(places[at])
        at = places[at].parent
    return found


def changed_functions(
    run_a: Run, rows_a: Sequence[int], run_b: Run, rows_b: Sequence[int]
) -> list[str]:
    """Say how functions that events of both runs ran in differ, those nearest to them first."""
    mine, theirs = _functions(run_a, rows_a), _functions(run_b, rows_b)
    said: list[str] = []
    for name in [name for name in mine if name in theirs][:_MOST_FUNCTIONS]:
        sides = _text_of(run_a, mine[name], name), _text_of(run_b, theirs[name], name)
        said += _changes(name, mine[name], sides[0], theirs[name], sides[1])
    return said


def _functions(run: Run, rows: Sequence[int]) -> dict[str, Place]:
    """Return the functions on the stacks of events, and the constructors of their classes."""
    found: dict[str, Place] = {}
    stacks = [own_places(run, row) for row in rows]
    for place in [place for stack in stacks for place in stack]:
        found.setdefault(place.function, place)
    for name, place in list(found.items()):
        owner = name.rpartition(".")[0]
        if owner and not owner.endswith("<locals>"):
            found.setdefault(f"{owner}.__init__", place)
    return found


def _text_of(run: Run, place: Place, name: str) -> list[_Line]:
    lines = source_lines(run.columns.sources.get(place.file, ""))
    return code_of(lines, place.line, place.function, name)


def code_of(lines: Sequence[str], line: int, around: str, name: str) -> list[_Line]:
    """Return the lines of a function, without blank lines, comments and docstrings.

    It is the function around a line, or another one of the same class.
    """
    owner, _, function = name.rpartition(".")
    if name == around:
        start = _above(lines, line, rf"(async\s+)?def\s+{re.escape(function)}\b")
    else:
        start = _in_class(lines, line, owner.rpartition(".")[2], function)
    return [] if start < 0 else list(_code(lines, start))


def _above(lines: Sequence[str], line: int, pattern: str) -> int:
    """Return the index of the nearest line up from one that begins with a pattern, else -1."""
    begins = re.compile(r"\s*" + pattern)
    return next((n for n in range(min(line, len(lines)) - 1, -1, -1) if begins.match(lines[n])), -1)


def _in_class(lines: Sequence[str], line: int, owner: str, function: str) -> int:
    """Return the index of the line where a class around a line defines a function, else -1."""
    first = _above(lines, line, rf"class\s+{re.escape(owner)}\b")
    if first < 0:
        return -1
    begins = re.compile(rf"\s+def\s+{re.escape(function)}\b")
    for number in range(first + 1, len(lines)):
        text = lines[number]
        if (
            text.strip()
            and _indent(text) <= _indent(lines[first])
            and text.strip()[0] not in ")]}#"
        ):
            return -1
        if begins.match(text):
            return number
    return -1


def _code(lines: Sequence[str], start: int) -> Iterator[_Line]:
    indent, quoted = _indent(lines[start]), False
    for number in range(start, min(start + _LONGEST, len(lines))):
        text = lines[number].strip()
        inside = quoted
        quoted ^= len(_QUOTES.findall(text)) % 2 == 1
        ends = number > start and text[:1] not in ("", ")", "]", "}", "#") and not inside
        if ends and _indent(lines[number]) <= indent:
            return
        if text and text[0] not in "#\"'" and not inside and not quoted:
            yield _Line(number + 1, text)


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


def _changes(
    name: str, place_a: Place, a: list[_Line], place_b: Place, b: list[_Line]
) -> Iterator[str]:
    """Write what two texts of one function do not share, if they are about the same."""
    texts = [one.text for one in a], [one.text for one in b]
    if not a or not b or texts[0] == texts[1]:
        return
    matcher = SequenceMatcher(None, *texts, autojunk=False)
    if matcher.ratio() < _ALIKE:
        return
    parts = []
    for tag, start_a, end_a, start_b, end_b in matcher.get_opcodes():
        if tag != "equal":
            sides = [
                _quoted(place, lines[first:last], side)
                for side, place, lines, first, last in (
                    ("a", place_a, a, start_a, end_a),
                    ("b", place_b, b, start_b, end_b),
                )
                if last > first
            ]
            parts.append(", ".join(sides) if len(sides) > 1 else f"only {sides[0]}")
    more = len(parts) - _MOST_CHANGES
    shown = parts[:_MOST_CHANGES] + ([f"{more} more changes"] if more > 0 else [])
    yield f"{name} reads otherwise: {'; '.join(shown)}"


def _quoted(place: Place, lines: list[_Line], side: str) -> str:
    text = lines[0].text
    text = text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 3] + "..."
    last = "" if len(lines) == 1 else f"-{lines[-1].number}"
    return f"{side} `{text}` ({short_file(place.file)}:{lines[0].number}{last})"


def short_file(file: str) -> str:
    """Return the last part of a path."""
    return file.replace("\\", "/").rpartition("/")[2]

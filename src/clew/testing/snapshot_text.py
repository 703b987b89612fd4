"""Snapshots of a model's numbers as text: a line per module call, made to be read in a review.

Input: sections of lines, or the text of a file. Output: the other. Each number has as many digits
as its tolerance allows, so that noise rarely changes a line. It must not know torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, floor, isfinite, log10, sqrt

from clew.errors import ClewError
from clew.plain_text import plain

_TITLE = "clew snapshot 1 of "
_MADE_WITH = "made with: "
# Numbers that a line may have, in the order in which they are written.
MOMENTS = ("mean", "std")
EXTREMES = ("min", "max")
COUNTS = ("nan", "inf")
_ORDER = (*MOMENTS, *EXTREMES, "axes", *COUNTS, "weights", "tol")
# A single element strays further than a mean.
EXTREME_MARGIN = 4.0
WEIGHTS_TOLERANCE = 1e-6
# Relative error of a mean that counts as noise on any machine, by dtype; more where it is measured.
_USUAL = {"f64": 1e-10, "c128": 1e-10, "f32": 1e-5, "c64": 1e-5, "f16": 2e-3, "bf16": 1e-2}
_FLOAT8 = 5e-2
_EXACT = 1e-9


def usual_tolerance(look: str) -> float:
    """Return the noise of a tensor such as `f32[2,3]` where none was measured."""
    dtype = look.partition("[")[0]
    return _FLOAT8 if dtype.startswith("f8") else _USUAL.get(dtype, _EXACT)


@dataclass(frozen=True, slots=True)
class SnapshotLine:
    """What is kept of one value: of a module call's result, an input, a gradient.

    `numbers` has `mean`, `std`, `min` and `max` of the finite elements, `axes` (for each axis, the
    mean of the elements weighted by where they are along it), `nan` and `inf` if there are any, and
    `weights`, the norm of the module's own parameters and buffers. `tolerance` is the relative
    error that counts as noise; it is written where it is not the usual one.
    """

    name: str
    cls: str
    look: str
    numbers: Mapping[str, tuple[float, ...]]
    tolerance: float

    @property
    def size(self) -> float:
        """Return the size of a typical element: the root of the mean square."""
        mean, std = (self.numbers.get(name, (0.0,))[0] for name in MOMENTS)
        return sqrt(mean * mean + std * std)

    @property
    def largest(self) -> float:
        """Return the absolute value of the element that is furthest from 0."""
        return max(abs(self.numbers.get(name, (0.0,))[0]) for name in EXTREMES)


@dataclass(frozen=True, slots=True)
class Section:
    """The lines of one check, in the order in which the calls ended, and where they were made."""

    name: str
    made_with: tuple[str, ...]
    lines: tuple[SnapshotLine, ...]


@dataclass(slots=True)
class SnapshotFile:
    """The sections of one test."""

    test: str
    sections: dict[str, Section] = field(default_factory=dict)


def unit_of(number: str, line: SnapshotLine) -> float:
    """Return what the error of a number is relative to."""
    if number in EXTREMES:
        return EXTREME_MARGIN * line.largest
    if number == "weights":
        return abs(line.numbers[number][0])
    return line.size


def write_file(file: SnapshotFile) -> str:
    """Write all sections of a test."""
    parts = [f"{_TITLE}{plain(file.test)}\n"]
    parts += [_write_section(section) for section in file.sections.values()]
    return "\n".join(parts)


def _write_section(section: Section) -> str:
    lines = [f"[{section.name}]", _MADE_WITH + ", ".join(section.made_with)]
    lines += [write_line(line) for line in section.lines]
    return "\n".join(lines) + "\n"


def write_line(line: SnapshotLine) -> str:
    """Write a line: name, class, dtype and shape, and the numbers by name."""
    words = [_word(line.name), _word(line.cls), _word(line.look)]
    for name in _ORDER:
        if name in line.numbers:
            words += [name, ",".join(written(x, name, line) for x in line.numbers[name])]
    if line.tolerance != usual_tolerance(line.look):
        words += ["tol", f"{line.tolerance:.0e}"]
    return " ".join(words)


def written(number: float, name: str, line: SnapshotLine) -> str:
    """Write a number with the digits that its tolerance leaves it."""
    if name in COUNTS:
        return str(int(number))
    tolerance = WEIGHTS_TOLERANCE if name == "weights" else line.tolerance
    return _rounded(number, tolerance * unit_of(name, line))


def _rounded(number: float, tolerance: float) -> str:
    if not isfinite(number) or not tolerance > 0:
        return repr(number + 0.0)
    decimals = ceil(-log10(tolerance / 2))
    if abs(number) < 10.0**-decimals / 2:
        return "0"
    if 0 <= decimals <= 9 and abs(number) < 1e6:
        return f"{number:.{decimals}f}"
    return f"{number:.{max(floor(log10(abs(number))) + decimals, 0)}e}"


def _word(text: str) -> str:
    """Write a text as one word: with quotes if it has a space or what a terminal would act on."""
    return text if text and not re.search(r'^\[|[\s"\\]', text) and plain(text) == text else (
        json.dumps(text).replace(" ", "\\u0020")
    )  # fmt: skip


def _unquoted(word: str) -> str:
    return str(json.loads(word)) if word.startswith('"') else word


def read_file(text: str, path: str) -> SnapshotFile:
    """Read what `write_file` wrote; ClewError names the line that is not understood."""
    rows = text.splitlines()
    if not rows or not rows[0].startswith(_TITLE):
        raise ClewError(f"{path} is no snapshot of this version of Clew: it begins otherwise")
    found = SnapshotFile(rows[0].removeprefix(_TITLE))
    name, made_with, lines = "", tuple[str, ...](), list[SnapshotLine]()

    def close() -> None:
        if name:
            found.sections[name] = Section(name, made_with, tuple(lines))

    for number, row in enumerate(rows[1:], start=2):
        if row.startswith("[") and row.endswith("]"):
            close()
            name, made_with, lines = row[1:-1], (), []
        elif row.startswith(_MADE_WITH):
            made_with = tuple(row.removeprefix(_MADE_WITH).split(", "))
        elif row.strip():
            lines.append(_read_line(row, f"{path}:{number}"))
    close()
    return found


def _read_line(row: str, place: str) -> SnapshotLine:
    try:
        name, cls, look, *words = row.split(" ")
        pairs = dict(zip(words[::2], words[1::2], strict=True))
        tolerance = float(pairs.pop("tol", usual_tolerance(_unquoted(look))))
        if not pairs.keys() <= set(_ORDER):
            raise ValueError(", ".join(pairs))
        numbers = {key: tuple(map(float, text.split(","))) for key, text in pairs.items()}
        return SnapshotLine(_unquoted(name), _unquoted(cls), _unquoted(look), numbers, tolerance)
    except (ValueError, KeyError):
        raise ClewError(
            f"{place} is no line of a snapshot: {plain(row)!r}; a merge may have left it so: "
            "write it again with --clew-update"
        ) from None

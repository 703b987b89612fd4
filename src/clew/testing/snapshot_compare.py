"""Compare what a model computes with its snapshot.

Input: the lines of both. Output: a `Mismatch`, which says where they part and what else changed, or
None. It must not know torch, pytest or files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from math import inf

from clew.testing.snapshot_text import COUNTS, WEIGHTS_TOLERANCE, SnapshotLine, unit_of, written

# A few repeats show less than all that may happen: so many times what they show is noise.
_MARGIN = 12.0
_MOST_NAMES = 6


@dataclass(frozen=True, slots=True)
class Change:
    """A line of the snapshot and the one found in its place; None where there is none."""

    expected: SnapshotLine | None
    found: SnapshotLine | None

    @property
    def name(self) -> str:
        """Return the name that the line has, or had."""
        line = self.found or self.expected
        assert line is not None
        return line.name

    @property
    def is_renamed(self) -> bool:
        """Return whether the same call has another name."""
        both = self.expected and self.found
        return bool(both and self.expected.name != self.found.name)  # type: ignore[union-attr]

    @property
    def is_different(self) -> bool:
        """Return whether the numbers, dtype or shape of a call are others."""
        return bool(self.expected and self.found and differs(self.expected, self.found))


@dataclass(frozen=True, slots=True)
class Mismatch:
    """What differs from a snapshot: all pairs of lines, in the order of the run."""

    changes: tuple[Change, ...]

    @property
    def first(self) -> Change | None:
        """Return the first call whose numbers, dtype or shape differ; None if only names do."""
        return next((one for one in self.changes if one.is_different), None)

    def text(self, more: Sequence[str] = ()) -> list[str]:
        """Write what differs; `more` are lines about the first call."""
        first = self.first
        lines = _structure(self.changes)
        if first is None or first.expected is None or first.found is None:
            return [*lines, "the numbers of all calls that remain agree"]
        at = self.changes.index(first)
        before = [one for one in self.changes[:at] if one.expected and one.found]
        later = [one.name for one in self.changes[at + 1 :] if one.is_different]
        lines += [_headline(first), *more, *_figures(first.expected, first.found)]
        lines += _why(first, before)
        lines += [f"after it differ: {_listed(later)}"] if later else ["nothing after it differs"]
        return lines


def compare(expected: Sequence[SnapshotLine], found: Sequence[SnapshotLine]) -> Mismatch | None:
    """Return what differs, None if nothing does."""
    changes = tuple(_paired(expected, found))
    if all(
        one.expected and one.found and not one.is_renamed and not one.is_different
        for one in changes
    ):
        return None
    return Mismatch(changes)


def differs(expected: SnapshotLine, found: SnapshotLine) -> bool:
    """Return whether a call has another class, dtype or shape, or other numbers beyond noise."""
    if (expected.cls, expected.look) != (found.cls, found.look):
        return True
    return _weights_differ(expected, found) or error_between(expected, found) > expected.tolerance


def error_between(expected: SnapshotLine, found: SnapshotLine) -> float:
    """Return the largest relative error of a number; infinite if they cannot be compared."""
    numbers = [key for key in expected.numbers if key != "weights"]
    if set(numbers) != found.numbers.keys() - {"weights"}:
        return inf
    return max((_error(key, expected, found) for key in numbers), default=0.0)


def with_noise(
    lines: Iterable[SnapshotLine], repeats: Sequence[Sequence[SnapshotLine]]
) -> tuple[SnapshotLine, ...]:
    """Return the lines with a larger tolerance where repeats show that there is more noise."""
    others = [{line.name: line for line in repeat} for repeat in repeats]
    return tuple(
        replace(line, tolerance=max([line.tolerance, *(
            _MARGIN * error
            for other in others
            if line.name in other and (error := error_between(line, other[line.name])) < inf
        )]))
        for line in lines
    )  # fmt: skip


def _error(key: str, expected: SnapshotLine, found: SnapshotLine) -> float:
    pairs = list(zip(expected.numbers[key], found.numbers[key], strict=False))
    if len(expected.numbers[key]) != len(found.numbers[key]):
        return inf
    apart = max(abs(a - b) for a, b in pairs)
    if key in COUNTS:
        return inf if apart else 0.0
    unit = max(unit_of(key, expected), unit_of(key, found))
    return apart / unit if apart else 0.0


def _weights_differ(expected: SnapshotLine, found: SnapshotLine) -> bool:
    mine, theirs = (line.numbers.get("weights") for line in (expected, found))
    if mine is None or theirs is None:
        return mine is not theirs
    return abs(mine[0] - theirs[0]) > 2 * WEIGHTS_TOLERANCE * max(abs(mine[0]), abs(theirs[0]))


def _paired(expected: Sequence[SnapshotLine], found: Sequence[SnapshotLine]) -> Iterable[Change]:
    """Give the lines of both side by side: by name, and in between by class and shape."""
    names, other_names = ([line.name for line in lines] for lines in (expected, found))
    matcher = SequenceMatcher(None, names, other_names, autojunk=False)
    for kind, a, a_end, b, b_end in matcher.get_opcodes():
        if kind == "equal":
            yield from map(Change, expected[a:a_end], found[b:b_end])
        else:
            yield from _renamed(list(expected[a:a_end]), list(found[b:b_end]))


def _renamed(expected: list[SnapshotLine], found: list[SnapshotLine]) -> Iterable[Change]:
    """Give the lines of a stretch where names differ; alike calls in the same order are pairs."""
    kinds, other_kinds = ([(one.cls, one.look) for one in lines] for lines in (expected, found))
    matcher = SequenceMatcher(None, kinds, other_kinds, autojunk=False)
    for kind, a, a_end, b, b_end in matcher.get_opcodes():
        if kind == "equal":
            yield from map(Change, expected[a:a_end], found[b:b_end])
        else:
            yield from (Change(line, None) for line in expected[a:a_end])
            yield from (Change(None, line) for line in found[b:b_end])


def _structure(changes: Sequence[Change]) -> list[str]:
    """Write which calls were added, are gone, or have another name."""
    added = [f"{one.name} ({one.found.cls})" for one in changes if one.found and not one.expected]
    gone = [f"{one.name} ({one.expected.cls})" for one in changes if one.expected and not one.found]
    renamed = [
        f"{one.expected.name} is {one.found.name}"
        for one in changes
        if one.is_renamed and one.expected and one.found
    ]
    said = (("calls added", added), ("calls gone", gone), ("calls renamed", renamed))
    return [f"{what}: {_listed(names)}" for what, names in said if names]


def _headline(first: Change) -> str:
    name, line = first.name, first.found
    assert line is not None
    if name.startswith("input:"):
        return f"the inputs differ already: {name.removeprefix('input:')}"
    if name.endswith(":grad"):
        return f"the first gradient that differs is that of {name.removesuffix(':grad')}"
    return f"the first call that differs is {name} ({line.cls})"


def _figures(expected: SnapshotLine, found: SnapshotLine) -> list[str]:
    """Write the numbers that differ, expected and found, and how far apart they are."""
    lines = []
    for what, a, b in (("class", expected.cls, found.cls), ("value", expected.look, found.look)):
        if a != b:
            lines.append(f"{what} {a} expected, {b} found")
    if lines:
        return lines
    for key in dict.fromkeys([*expected.numbers, *found.numbers]):
        a, b = (_texts(key, line) for line in (expected, found))
        if key == "weights":
            if _weights_differ(expected, found):
                lines.append(f"weights: norm {a} expected, {b} found")
        elif a == "none" or b == "none" or _error(key, expected, found) > expected.tolerance:
            lines.append(f"{key}: {a} expected, {b} found")
    return [*lines, f"the noise allowed is {expected.tolerance:.0e} (relative)"]


def _texts(key: str, line: SnapshotLine) -> str:
    numbers = line.numbers.get(key)
    return "none" if numbers is None else ", ".join(written(x, key, line) for x in numbers)


def _why(first: Change, before: Sequence[Change]) -> list[str]:
    """Write what is known of the cause: other inputs, other weights, or neither."""
    expected, found = first.expected, first.found
    assert expected is not None
    assert found is not None
    if first.name.startswith("input:"):
        return ["were they made with the same seed, torch.manual_seed() before them?"]
    if _weights_differ(expected, found):
        return [
            "its weights differ: was the model made with the same seed, or other weights loaded?"
        ]
    agree = sum(one.name.startswith("input:") for one in before)
    calls = len(before) - agree
    said = f"{calls} calls before it agree" if calls != 1 else "1 call before it agrees"
    return [said + (", and so do the inputs" if agree else "")]


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")

"""What the tree tells apart from the forward pass: backward by module, optimizer by line, names.

In come a `Reader`'s ops of those phases and its named values, out come `Section`s of cells for the
tree. The time of a group is the time until the next op began, so the groups of a section add up to
the whole of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from clew.analysis.fold import name_range
from clew.analysis.structure import Structure
from clew.events.records import BACKWARD, OP, OPTIMIZER, RECOMPUTE
from clew.store.reader import Reader
from clew.views.text.cells import Cells
from clew.views.text.named import NAMED, label_text, looks_text
from clew.views.text.places import short_place_of
from clew.views.text.style import counted, time_text

_MOST_GROUPS = 8
_DIGITS = re.compile(r"\d+")

# Names of some ops, from all of them to the most telling one.
OpNames = Callable[[list[int]], list[str]]


@dataclass(slots=True)
class Section:
    """One phase of the run, or all named values: a heading and the groups below it."""

    head: Cells
    groups: list[Cells]


@dataclass(slots=True)
class _Group:
    name: str
    recompute: bool = False
    rows: list[int] = field(default_factory=list)
    seconds: float = 0.0
    # Names of the groups that are the same as this one, in order.
    alike: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return 1 + len(self.alike)


def sections(structure: Structure, op_names: OpNames) -> list[Section]:
    """Sections for the backward pass and the optimizer, those that happened."""
    reader = structure.reader
    spent = _shares(reader)
    backward = _backward(structure, spent, op_names)
    optimizer = _optimizer(structure, spent, op_names)
    return [section for section in (backward, optimizer) if section is not None]


def _rows(reader: Reader, *phases: int) -> list[int]:
    kind, phase = reader.columns.kind.tolist(), reader.phase.tolist()
    return [row for row in range(len(reader)) if kind[row] == OP and phase[row] in phases]


def _shares(reader: Reader) -> dict[int, float]:
    """For each op outside the forward pass the seconds until the next, or until it ended."""
    c = reader.columns
    rows = _rows(reader, BACKWARD, RECOMPUTE, OPTIMIZER)
    shares = {}
    for row, after in zip(rows, [*rows[1:], -1], strict=False):
        start, end = int(c.start[row]), int(c.end[row])
        together = (
            after == row + 1
            and reader.thread[row] == reader.thread[after]
            and (reader.phase[row] == OPTIMIZER) == (reader.phase[after] == OPTIMIZER)
        )
        shares[row] = (max(end, int(c.start[after])) if together else end) - start
    return {row: share / 1e9 for row, share in shares.items()}


def _passes(rows: list[int], kind: list[int]) -> tuple[int, int]:
    """How many stretches some ops form, and how many of them can be told as one.

    Only calls lie between the ops of a stretch. Stretches that are alike are told as one, with
    the time of one.
    """
    sizes = [1]
    for row, after in pairwise(rows):
        if any(kind[between] == OP for between in range(row + 1, after)):
            sizes.append(0)
        sizes[-1] += 1
    return len(sizes), len(sizes) if len(set(sizes)) == 1 else 1


def _backward(structure: Structure, spent: dict[int, float], op_names: OpNames) -> Section | None:
    reader = structure.reader
    rows = _rows(reader, BACKWARD, RECOMPUTE)
    if not rows:
        return None
    passes, alike = _passes(rows, structure.kind)
    groups: dict[tuple[str, bool], _Group] = {}
    for position, row in enumerate(rows):
        path = reader.module_path(row)
        recompute = bool(reader.phase[row] == RECOMPUTE)
        name = "(outside any module)" if path is None else _part(path) or "(root)"
        group = groups.setdefault((name, recompute), _Group(name, recompute))
        group.seconds += spent[row] / alike
        if position < len(rows) // alike:
            group.rows.append(row)
    folded = _folded([group for group in groups.values() if group.rows], structure)
    head = _head("backward", rows, passes, alike, spent)
    head.cls, head.source = _line(reader, rows[0]), _place(reader, rows[0])
    return Section(head, _cells(folded, op_names))


def _optimizer(structure: Structure, spent: dict[int, float], op_names: OpNames) -> Section | None:
    reader = structure.reader
    rows = _rows(reader, OPTIMIZER)
    if not rows:
        return None
    passes, alike = _passes(rows, structure.kind)
    groups: dict[tuple[str, str], _Group] = {}
    for position, row in enumerate(rows):
        place = _place(reader, row)
        group = groups.setdefault((place, _line(reader, row)), _Group(place))
        group.seconds += spent[row] / alike
        if position < len(rows) // alike:
            group.rows.append(row)
    head = _head("optimizer", rows, passes, alike, spent)
    cells = [
        Cells(
            name="",
            bullet="· ",
            elastic=True,
            cls=text,
            flow=op_names(group.rows),
            ops=str(len(group.rows)),
            time=time_text(group.seconds),
            source=place,
        )
        for (place, text), group in groups.items()
        if group.rows
    ]
    if len(cells) == 1:
        head.cls, head.flow, head.source = cells[0].cls, cells[0].flow, cells[0].source
        cells = []
    return Section(head, cells)


def _head(name: str, rows: list[int], passes: int, alike: int, spent: dict[int, float]) -> Cells:
    times = f"{alike}×" if alike > 1 else ""
    return Cells(
        name=name,
        elastic=True,
        mark=f"×{passes}" if passes > 1 else "",
        ops=f"{times}{len(rows) // alike}",
        time=times + time_text(sum(spent[row] for row in rows) / alike),
    )


def _part(path: str) -> str:
    """The part of the model a module is in: up to the first index, else two names deep."""
    names = path.split(".")
    for position, name in enumerate(names):
        if name.isdigit():
            return ".".join(names[: position + 1])
    return ".".join(names[:2])


def _folded(groups: list[_Group], structure: Structure) -> list[_Group]:
    """Groups that ran the same ops, their names differing in an index, as one."""
    first: dict[object, _Group] = {}
    for group in groups:
        look = (
            _DIGITS.sub("#", group.name),
            group.recompute,
            tuple(structure.signature[row] for row in group.rows),
        )
        found = first.setdefault(look, group)
        if found is not group:
            found.alike.append(group.name)
            found.seconds += group.seconds
    return list(first.values())


def _cells(groups: list[_Group], op_names: OpNames) -> list[Cells]:
    cells = []
    for group in groups[:_MOST_GROUPS]:
        names = listed([group.name, *group.alike])
        times = f"{group.count}×" if group.count > 1 else ""
        cells.append(
            Cells(
                name=names,
                mark=" ".join(
                    [f"×{group.count}"] * (group.count > 1) + ["(recompute)"] * group.recompute
                ),
                flow=op_names(group.rows),
                ops=times + str(len(group.rows)),
                time=times + time_text(group.seconds / group.count),
            )
        )
    rest = groups[_MOST_GROUPS:]
    if rest:
        modules = sum(group.count for group in rest)
        ops = sum(group.count * len(group.rows) for group in rest)
        seconds = sum(group.seconds for group in rest)
        name = f"… {counted(modules, 'more module')}"
        cells.append(Cells(name="", cls=name, ops=str(ops), time=time_text(seconds)))
    return cells


def named_section(reader: Reader) -> Section | None:
    """Variables, taps and gradients by name, those that differ in an index as one."""
    found: dict[int, list[int]] = {}
    for row in sorted(row for kind in NAMED for row in reader.rows(kind).tolist()):
        found.setdefault(int(reader.columns.subject[row]), []).append(row)
    if not found:
        return None
    groups: dict[object, list[int]] = {}
    for subject, rows in found.items():
        name, looks = label_text(reader.columns.labels[subject]), looks_text(reader, rows)
        groups.setdefault((_DIGITS.sub("#", name), looks, len(rows)), []).append(subject)
    cells = []
    for alike in list(groups.values())[:_MOST_GROUPS]:
        rows = found[alike[0]]
        count = len(alike) * len(rows)
        cells.append(
            Cells(
                name=listed([label_text(reader.columns.labels[subject]) for subject in alike]),
                mark=f"×{count}" if count > 1 else "",
                flow=[looks_text(reader, rows)],
                source=_lines_text(reader, rows),
            )
        )
    rest = len(found) - sum(map(len, list(groups.values())[:_MOST_GROUPS]))
    if rest:
        cells.append(Cells(name="", cls=f"… {counted(rest, 'more name')}"))
    total = sum(map(len, found.values()))
    return Section(Cells(name="named values", mark=f"×{total}" if total > 1 else ""), cells)


def _lines_text(reader: Reader, rows: list[int]) -> str:
    """The lines of some events, if they are in one file."""
    first = {int(reader.columns.place[row]): row for row in reversed(rows)}
    sources = [source for row in first.values() if (source := reader.source(row)) is not None]
    if len({source.file for source in sources}) != 1:
        return ""
    lines = sorted(source.line for source in sources)
    text = short_place_of(sources[0].file, lines[0])
    return text if lines[0] == lines[-1] else f"{text}–{lines[-1]}"


def listed(names: list[str]) -> str:
    """Names that differ in an index: a range where it counts by ones."""
    numbers = [[int(digits) for digits in _DIGITS.findall(name)] for name in names]
    steps = {sum(b) - sum(a) for a, b in pairwise(numbers)}
    if len(names) > 3 and not steps <= {-1} and not steps <= {1}:
        return f"{names[0]}, {names[1]} … {names[-1]}"
    if len(names) > 1 and not steps <= {-1} and not steps <= {1}:
        return ", ".join(names)
    return name_range(names[0], names[-1], above=1)


def _own_place(reader: Reader, row: int) -> tuple[str, int] | None:
    """The user's line that a phase was started from, not that of a forward op."""
    places = reader.columns.places
    place = int(reader.columns.place[row])
    while place >= 0:
        found = places[place]
        if found.line > 0 and not found.library:
            return found.file, found.line
        place = found.parent
    return None


def _place(reader: Reader, row: int) -> str:
    place = _own_place(reader, row)
    return "" if place is None else short_place_of(*place)


def _line(reader: Reader, row: int) -> str:
    place = _own_place(reader, row)
    return "" if place is None else reader.line_text(*place)

"""A printed tree read back, and whether the numbers of a tree sum to its header."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import clew

_LEAD = re.compile(r"(?:│  |   |├─ |└─ )*")
_OPS = re.compile(r"(?:([\d,]+)×)?([\d,]+)$")
_TIME = re.compile(r"(?:([\d,]+)×)?([\d.]+) (ns|µs|ms|s|min)$")
_UNITS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}


@dataclass
class PrintedLine:
    """One line: how often it ran, and the ops and seconds of one run; None where it says none."""

    label: str
    count: int = 1
    ops: int | None = None
    seconds: float | None = None
    children: list[PrintedLine] = field(default_factory=list)


@dataclass
class PrintedTree:
    """The numbers of the header, and the lines at the top."""

    steps: int
    ranks: int
    calls: int
    ops: int
    seconds: float
    lines: list[PrintedLine]

    def walk(self) -> list[PrintedLine]:
        found, pending = [], list(self.lines)
        while pending:
            line = pending.pop()
            found.append(line)
            pending += line.children
        return found


def read_tree(text: str) -> PrintedTree:
    """Read what `TreeView.text(Style())` gives."""
    header, *rest = text.splitlines()
    titles = rest[0] if rest else ""
    roots: list[PrintedLine] = []
    levels = [roots]
    for line in rest[1:]:
        # What was left out, named values, findings.
        if re.match(r"…|named values|! |(✗ )?(NaN|Inf) |✗ (rank \d+ )?ended ", line):
            break
        lead = _LEAD.match(line)
        assert lead is not None
        # What an op that failed said, in lines of their own below it.
        if re.match(r"✗ \w+: |  in ", line[lead.end() :]):
            continue
        depth = len(lead.group()) // 3
        read = _read_line(line, titles, len(lead.group()))
        del levels[depth + 1 :]
        levels[depth].append(read)
        levels.append(read.children)
    time = re.search(r"([\d.]+ \S+?)(?: \([\d.]+ \S+ wall\))?$", header)
    assert time is not None, header
    return PrintedTree(
        steps=_counted(header, "step", 1),
        ranks=_counted(header, "rank", 1),
        calls=_counted(header, "module call", 0),
        ops=_counted(header, "op", 0),
        seconds=_seconds(time.group(1))[1],
        lines=roots,
    )


def _read_line(line: str, titles: str, lead: int) -> PrintedLine:
    ops, time = _cell(line, titles, "ops"), _cell(line, titles, "time")
    read = PrintedLine(re.split(r"  ", line[lead:])[0])
    found = _OPS.search(ops)
    if found is not None:
        read.count = _number(found.group(1) or "1")
        read.ops = _number(found.group(2))
    if _TIME.search(time):
        read.count, read.seconds = _seconds(time)
    return read


def _cell(line: str, titles: str, title: str) -> str:
    """What stands in a right-aligned column."""
    place = re.search(rf"\b{title}\b", titles)
    if place is None or len(line) < place.end() or line[place.end() - 1] == " ":
        return ""
    return re.split(r" {2,}", line[: place.end()])[-1]


def _seconds(text: str) -> tuple[int, float]:
    found = _TIME.search(text)
    assert found is not None, text
    return _number(found.group(1) or "1"), float(found.group(2)) * _UNITS[found.group(3)]


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def _counted(header: str, noun: str, none: int) -> int:
    found = re.search(rf"([\d,]+) {noun}s?\b", header)
    return _number(found.group(1)) if found else none


HEADINGS = ("rank", "step", "thread", "repeat", "backward")


def check_data(t: clew.Trace, data: dict[str, Any]) -> None:
    assert (data["ops"], data["calls"]) == (len(t.ops), len(t.modules))
    assert sum(node["ops"] for node in data["children"]) == data["ops"]
    assert sum(node["calls"] for node in data["children"]) == data["calls"]
    seconds = sum(node["seconds"] for node in data["children"])
    assert abs(seconds - data["seconds"]) < 1e-9
    pending = [(node, 1) for node in data["children"]]
    while pending:
        node, times = pending.pop()
        times *= node["count"]
        assert node["ops"] % times == 0
        inside = node["children"]
        if inside:
            assert sum(child["ops"] for child in inside) == node["ops"], node
            own = times if node["kind"] == "call" else 0
            assert sum(child["calls"] for child in inside) + own == node["calls"], node
            if node["kind"] in HEADINGS:
                spent = sum(child["seconds"] or 0.0 for child in inside)
                assert abs(spent - node["seconds"]) < 1e-9
        if node["op_counts"]:
            assert sum(node["op_counts"].values()) == node["ops"]
        pending += [(child, times) for child in inside]


def check_text(t: clew.Trace, text: str) -> None:
    printed = read_tree(text)
    assert (printed.ops, printed.calls) == (len(t.ops), len(t.modules)), text
    assert printed.steps == len(t.steps)
    assert sum(line.count * (line.ops or 0) for line in printed.lines) == printed.ops, text
    assert _is_near(printed.lines, printed.seconds), text
    for line in printed.walk():
        # A call that ran none has none to say, and neither has anything in it.
        if line.children:
            assert sum(c.count * (c.ops or 0) for c in line.children) == (line.ops or 0), text
        if line.children and line.label.startswith(("step", "repeated", "backward")):
            assert line.seconds is not None
            assert _is_near(line.children, line.seconds), text


def _is_near(lines: list[PrintedLine], seconds: float) -> bool:
    """Whether times add up, each being rounded to three digits, or to a nanosecond."""
    total = sum(line.count * (line.seconds or 0.0) for line in lines)
    return abs(total - seconds) <= 0.011 * total + 1e-9 * sum(line.count for line in lines)

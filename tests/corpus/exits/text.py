"""Exits for people: the time line, the tree, the code, and what addresses find."""

from __future__ import annotations

import json
import re
from typing import Any

from clew.address import with_rank
from clew.views.text.style import short_op
from tests.corpus.exits.case import Case, Seen, call_number, counts, reads


@reads("chrome")
def time_line(case: Case) -> Seen:
    data = json.loads(case.exported("chrome").read_text(encoding="utf-8"))
    calls = [e for e in data["traceEvents"] if e["ph"] == "X" and e["cat"] != "step"]
    kinds = {row: event.kind for row, event in enumerate(case.trace.events)}
    # They come rank by rank, in order.
    rows = [row for row, kind in kinds.items() if kind in ("module", "composite", "op")]
    events = {}
    for row, call in zip(rows, calls, strict=True):
        args = call["args"]
        file, line, _ = args["source"].split(":", 2) if "source" in args else ("", "", "")
        events[row] = {
            **{name: args[name] for name in ("module", "address", "step", "phase", "rank")},
            "call": call_number(args["call"]),
            "line": (case.full_path(file), int(line)) if file else None,
        }
    return Seen(events, {"counts": counts(call["cat"].partition(",")[0] for call in calls)})


@reads("tree")
def tree(case: Case) -> Seen:
    view = case.trace.tree()
    data = view.to_dict()
    header = str(view).splitlines()[0]
    printed = {
        kind: int(found[1].replace(",", "")) if found else 0
        for kind, noun in (("module", "module call"), ("op", "op"))
        for found in [re.search(rf"([\d,]+) {noun}s?\b", header)]
    }
    assert data["ops"] == printed["op"], header
    return Seen({}, {"counts": printed, "coverage": data["coverage"]})


@reads("code")
def code(case: Case) -> Seen:
    """Read the text: an op stands below the line it came from, further in."""
    waiting: dict[tuple[Any, str], list[int]] = {}
    for op in case.trace.ops:
        line = case.objects.events[op.row]["line"]
        waiting.setdefault((line, short_op(op.name)), []).append(op.row)
    events: dict[int, dict[str, Any]] = {}
    lines: list[tuple[int, Any]] = []
    for text in str(case.trace.code(succinct=False)).splitlines():
        bare = text.lstrip("│ ")
        depth = len(text) - len(bare)
        if deep := re.match(r"\(depth (\d+)\) ", bare):
            bare, depth = bare[deep.end() :], 2 * int(deep[1])
        while lines and lines[-1][0] >= depth:
            lines.pop()
        place = re.search(r"  # (\S+):(\d+) in ", bare)
        op = re.match(r"# (?:[✗↩] )*([\w.]+)\(", bare)
        if place is not None and not bare.startswith("#"):
            lines.append((depth, (case.full_path(place[1]), int(place[2]))))
        elif op is not None:
            line = lines[-1][1] if lines else None
            rows = waiting.get((line, op[1]), [])
            events[rows.pop(0) if rows else -1 - len(events)] = {"line": line}
    missing = [row for rows in waiting.values() for row in rows]
    return Seen(events | {row: {"line": "not shown"} for row in missing})


@reads("selection")
def selection(case: Case) -> Seen:
    events = {}
    for row in case.addressed:
        (found,) = case.found_by(case.trace.events[row])
        event = case.trace.events[found]
        events[row] = {"address": event.address, "rank": event.rank}
    return Seen(events)


@reads("series")
def series(case: Case) -> Seen:
    events = {}
    for row in case.addressed:
        event = case.trace.events[row]
        if not event.outputs:
            continue
        found = case.trace.series(with_rank(event.address, event.rank))
        if [v.number for v in found.values] != [v.number for v in event.outputs.values()]:
            if not case.is_gathered:
                events[row] = {"address": f"{len(found)} other values"}
            continue
        (step,), (rank,), (source,) = set(found.steps), set(found.ranks), set(found.sources)
        line = source and (source.file, source.line)
        events[row] = {"address": event.address, "step": step, "rank": rank, "line": line}
    return Seen(events)

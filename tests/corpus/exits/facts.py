"""Exits that carry every fact: objects, dictionaries, JSON, and the page by its own viewer."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import clew
from clew.events.model import Gap
from tests.corpus.exits.case import (
    Case,
    Numbers,
    Seen,
    call_number,
    counts,
    look,
    of_values,
    plain,
    reads,
)
from tests.processes import HANG_GUARD

PAGE = Path(__file__).parents[1] / "page.mjs"
HAS_FINDINGS = hasattr(clew.Trace, "findings")


@reads("objects")
def objects(case: Case) -> Seen:
    return _from_objects(case, lambda value: _stats(value.stats))


def objects_with_numbers(case: Case) -> Seen:
    """Give what objects say, with what the page makes of a Python number whose value was kept."""

    def stats(value: Any) -> Numbers:
        is_number = value.cls in ("int", "float") and value.stats is None
        return (float(value.item()),) * 2 + (0, 0) if is_number else _stats(value.stats)

    return _from_objects(case, stats)


def _from_objects(case: Case, stats: Callable[[Any], Numbers]) -> Seen:
    t = case.trace
    events = {}
    for event in t.events:
        inputs, outputs = (
            [(look(v.dtype, v.shape), stats(v)) for v in side.values()]
            for side in (event.inputs, event.outputs)
        )
        events[event.row] = {
            "module": event.module,
            "line": event.source and (event.source.file, event.source.line),
            "address": event.address,
            "step": event.step,
            "call": call_number(event.call),
            "phase": event.phase,
            "rank": event.rank,
            **of_values(inputs, outputs, event.address),
        }
    whole = {
        "counts": {"module": len(t.modules), "op": len(t.ops)},
        "coverage": [str(gap) for gap in t.coverage],
    }
    if HAS_FINDINGS:
        whole["findings"] = [(one.severity, one.kind, one.text) for one in t.findings]
    return Seen(events, whole)


def _stats(stats: Any) -> Numbers:
    return stats and (plain(stats.min), plain(stats.max), stats.nan, stats.inf)


@reads("to_dict")
def to_dict(case: Case) -> Seen:
    return _from_dict(case.trace.to_dict())


@reads("json")
def json_file(case: Case) -> Seen:
    return _from_dict(json.loads(case.exported("json").read_text(encoding="utf-8")))


def _from_dict(data: dict[str, Any]) -> Seen:
    events = {}
    for event in data["events"]:
        inputs, outputs = (
            [(look(v["dtype"], v["shape"]), _stats_of(v["stats"])) for v in event[side].values()]
            for side in ("inputs", "outputs")
        )
        source = event["source"]
        events[event["row"]] = {
            "line": source and (source["file"], source["line"]),
            **{name: event[name] for name in ("module", "address", "step", "phase", "rank")},
            "call": call_number(event["call"]),
            **of_values(inputs, outputs, event["address"]),
        }
    whole = {
        "counts": counts(event["kind"] for event in data["events"]),
        "coverage": data["coverage"],
    }
    return Seen(events, whole | _findings(data))


def _findings(data: dict[str, Any]) -> dict[str, Any]:
    if not HAS_FINDINGS:
        return {}
    return {"findings": [(one["severity"], one["kind"], one["text"]) for one in data["findings"]]}


def _stats_of(stats: dict[str, Any] | None) -> Numbers:
    return stats and (plain(stats["min"]), plain(stats["max"]), stats["nan"], stats["inf"])


@reads("page")
def page(case: Case) -> Seen:
    return pages([case])[0]


def pages(cases: list[Case]) -> list[Seen]:
    """Read pages with the viewer's own code, all at once: Node takes longer to start than that."""
    node = shutil.which("node")
    if node is None:
        pytest.fail("the tests of the viewer need Node: run `make browser`")
    texts = []
    for case in cases:
        html = case.trace.html(case.folder / f"{case.name}.html").path.read_text(encoding="utf-8")
        found = re.search('id="clew-data">([^<]*)<', html)
        assert found is not None
        texts.append(found[1])
    done = subprocess.run(
        [node, str(PAGE)], input=json.dumps(texts), capture_output=True, text=True,
        encoding="utf-8", timeout=HANG_GUARD,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [
        _from_page(case, data) for case, data in zip(cases, json.loads(done.stdout), strict=True)
    ]


def _from_page(case: Case, data: dict[str, Any]) -> Seen:
    events = {}
    # The page has the ops of a composite in its place.
    rows = [row for row, event in enumerate(case.trace.events) if event.kind != "composite"]
    for row, event in zip(rows, data["events"], strict=True):
        inputs, outputs = (
            [_page_value(value) for value in event["values"] if value["role"] == role]
            for role in ("in", "out")
        )
        events[row] = {
            **{name: event[name] for name in ("module", "address", "step", "phase", "rank")},
            "line": event["line"] and tuple(event["line"]),
            "call": call_number(event["call"]),
            **of_values(inputs, outputs, event["address"]),
        }
    whole = {
        "counts": counts(event["kind"] for event in data["events"]),
        "coverage": [str(Gap(*gap)) for gap in data["gaps"]],
    }
    return Seen(events, whole | _findings(data), single=True)


def _page_value(value: dict[str, Any]) -> tuple[str, Numbers]:
    shape = value["shape"]
    text = look(value["dtype"], None if shape is None else [n for n in shape.split(",") if n])
    stats = value["stats"]
    return text, stats and (plain(stats[0]), plain(stats[1]), stats[2], stats[3])

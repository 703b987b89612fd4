"""The Chrome trace keeps the rules of its format that Perfetto and chrome://tracing rely on."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import clew

RANKS = 3


def crash(model: nn.Module, out: Path) -> None:
    with clew.trace(model, out=out) as t:
        model(torch.ones(1, 4)).sum().backward()
        worker = threading.Thread(target=lambda: model(torch.ones(1, 4)))
        worker.start()
        worker.join()
        t.step()
        model(torch.ones(1, 3))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[clew.Trace, list[dict[str, Any]]]:
    """A run of several ranks, threads and steps that ends in a crash, and its time line."""
    folder = tmp_path_factory.mktemp("chrome")
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORLD_SIZE", str(RANKS))
        for rank in range(RANKS):
            patch.setenv("RANK", str(rank))
            with pytest.raises(RuntimeError, match="mat1"):
                crash(model, folder / "run.clew")
    trace = clew.load(folder / "run.clew")
    trace.export("chrome", folder / "run.json")
    data = json.loads((folder / "run.json").read_text())
    assert set(data) == {"displayTimeUnit", "otherData", "traceEvents"}
    assert data["displayTimeUnit"] in ("ms", "ns")
    return trace, data["traceEvents"]


def test_every_event_has_the_fields_of_its_phase(exported: Any) -> None:
    needed = {
        "X": {"name", "cat", "pid", "tid", "ts", "dur"},
        "i": {"name", "cat", "pid", "tid", "ts", "s"},
        "M": {"name", "pid", "tid", "args"},
    }
    for event in exported[1]:
        assert needed[event["ph"]] <= set(event)
        assert all(type(event[name]) is int for name in ("pid", "tid"))
        for name in {"ts", "dur"} & set(event):
            assert event[name] >= 0


def test_tracks_have_names_and_numbers_of_their_own(exported: Any) -> None:
    events = exported[1]
    used = {(e["pid"], e["tid"]) for e in events if e["ph"] != "M"}
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert used == set(named)
    assert set(named.values()) >= {"steps", "MainThread"}
    # Perfetto takes equal numbers for one thread, and a thread with its process's for the main one.
    assert len({tid for _, tid in named}) == len(named)
    assert all(pid != tid for pid, tid in named)
    sorted_tracks = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_sort_index"}
    assert sorted_tracks == set(named)
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert processes == {rank: f"rank {rank}" for rank in range(RANKS)}


def test_times_are_microseconds(exported: Any) -> None:
    trace, events = exported
    calls = [e for e in events if e["ph"] == "X" and e["cat"] != "step" and e["pid"] == 0]
    ran = [e for e in trace.events if e.kind in ("module", "op", "composite") and e.rank == 0]
    for shown, event in zip(calls, ran, strict=True):
        assert shown["ts"] == pytest.approx(event.start * 1e6, abs=0.01)
        if event.duration is not None:
            assert shown["dur"] == pytest.approx(event.duration * 1e6, abs=0.01)


def calls_of(trace: clew.Trace, rank: int) -> list[Any]:
    return [e for e in trace.events if e.kind in ("module", "op", "composite") and e.rank == rank]


def test_the_crash_is_marked_where_it_happened_and_nowhere_else(exported: Any) -> None:
    trace, events = exported
    for rank in range(RANKS):
        shown = [e for e in events if e["ph"] == "X" and e["cat"] != "step" and e["pid"] == rank]
        errors = [e["args"].get("error") for e in shown]
        assert errors == [event.error for event in calls_of(trace, rank)]
        failed = [e["name"] for e in shown if "error" in e["args"] and "composite" not in e["cat"]]
        assert len(failed) == 3  # the model, its first layer, the op
        assert all("mat1 and mat2" in error for error in errors if error is not None)


def test_each_call_says_what_it_is(exported: Any) -> None:
    trace, events = exported
    for rank in range(RANKS):
        shown = [e for e in events if e["ph"] == "X" and e["cat"] != "step" and e["pid"] == rank]
        for args, event in zip((e["args"] for e in shown), calls_of(trace, rank), strict=True):
            facts = ("module", "call", "phase", "step", "rank")
            assert [args[name] for name in facts] == [getattr(event, name) for name in facts]
            for value in event.outputs.values():
                assert value.look in args["out"]
            for value in event.inputs.values():
                assert value.look in args["in"]


def test_files_go_by_their_short_names(exported: Any) -> None:
    sources = {e["args"]["source"] for e in exported[1] if "source" in e.get("args", {})}
    assert sources
    assert all(source.startswith(f"{Path(__file__).name}:") for source in sources)

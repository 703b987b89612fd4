"""How people reach into a trace: addresses, selections, parts of a run, tables, pictures."""

from __future__ import annotations

import csv
import json
import pydoc
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import clew
from clew.analysis.graph import read_calls
from clew.errors import ClewError, NoMatch
from clew.views.graph.view import graph_view

TRACES = Path(__file__).parent / "traces"
NAMES = sorted(path.stem for path in TRACES.iterdir())
NUMBERS = ("min", "max", "nan", "inf")


def load(name: str) -> clew.Trace:
    return clew.load(TRACES / f"{name}.clew")


@pytest.fixture(scope="module")
def unequal() -> clew.Trace:
    return load("unequal_ranks")


# Addresses


def test_equal_addresses_of_several_ranks_are_told_apart() -> None:
    t = load("equal_ranks")
    with pytest.raises(ClewError, match=r"^'#0' stands for 2 calls; pick one of: #0@0, #0@1$"):
        _ = t["#0"].one
    assert [t[f"#0@{rank}"].one.rank for rank in t.ranks] == [0, 1]
    assert t.only(rank=1)["#0"].one == t["#0@1"].one


@pytest.mark.parametrize(
    "ask",
    [
        lambda t: t["0@7"],
        lambda t: t.code("0@7"),
        lambda t: t.graph("0@7"),
        lambda t: t.series("0@7"),
    ],
    ids=["select", "code", "graph", "series"],
)
def test_an_unknown_rank_is_answered_with_those_there_are(
    unequal: clew.Trace, ask: Callable[[clew.Trace], object]
) -> None:
    with pytest.raises(ClewError, match="'0@7' asks for rank 7; the trace has 0, 1, 2"):
        ask(unequal)


def test_the_call_of_one_rank_is_not_found_on_another(unequal: clew.Trace) -> None:
    assert unequal["#2"].one.rank == 2
    with pytest.raises(NoMatch, match="#0@1, #1@1|#1@1"):
        _ = unequal["#2@1"]


def test_gradients_are_found_by_their_role() -> None:
    t = load("gradients")
    found = t.find("grad")
    assert {event.kind for event in found} == {"grad"}
    assert {event.address.partition("#")[0] for event in found} == {"0", "3", "0.weight"}
    gradient = t["0.weight:grad"][0]
    assert repr(gradient) == f"<Event {gradient.id} grad weight:grad in 0>"
    assert repr(t["3.weight:update"][0]).endswith("weight:update in 3>")


def test_keys_are_completed() -> None:
    keys = load("gradients")._ipython_key_completions_()
    assert {"", "0", "3", "0.weight:grad", "3.weight:update", "1.running_mean:buffer"} <= set(keys)
    for name in NAMES:
        t = load(name)
        for key in t._ipython_key_completions_():
            assert len(t[key]), (name, key)


def test_the_address_language_is_in_the_help() -> None:
    text = pydoc.render_doc(clew.Trace.__getitem__, renderer=pydoc.plaintext)
    for part in ("layers.*", "fc.weight:grad", "op:aten.mm*", "line:model.py:57", "@1"):
        assert part in text


# Selections


def test_print_lists_the_events_of_a_selection(unequal: clew.Trace) -> None:
    selection = unequal["0"]
    assert repr(selection) == "<Selection '0': 7 calls>"
    head, *lines = str(selection).splitlines()
    assert head == repr(selection)
    assert len(lines) == 7
    assert re.fullmatch(
        r"  0#2@2  f32\[2,8\]  \[-2\.46, 2\.15\] μ -0\.288 σ 1\.26 +step 2  programs\.py:\d+",
        lines[-1],
    )
    one_rank = str(unequal.only(rank=0)["0"]).splitlines()
    assert one_rank[1].startswith("  0#0  f32[3,8]  ")


def test_a_long_selection_says_how_many_more_there_are() -> None:
    t = load("steps")
    found = t.find("aten")
    lines = str(found).splitlines()
    assert len(lines) == 32
    assert lines[-1] == f"  ... {len(found) - 30:,} more; take a part with [30:]"
    assert str(found[30:35]).splitlines()[1].startswith(f"  {found[30].address}")


# Ranks that are half written, or not there


def test_what_a_killed_rank_wrote_is_all_there() -> None:
    t = load("killed")
    (gap,) = (gap for gap in t.coverage if gap.what == "the end of the run")
    assert gap.where == "rank 0"
    assert len(t.events) == len(t.table().columns()["id"]) == t.events[-1].id + 1
    assert t["#2"].one.duration is None
    assert str(t.tree())
    assert str(t.graph())


def test_a_rank_without_a_folder_is_said_and_the_others_are_there() -> None:
    t = load("missing_rank")
    assert t.ranks == [0, 2]
    assert any("rank 1" in str(gap) for gap in t.coverage)
    assert set(t.table().columns()["rank"]) == {0, 2}
    with pytest.raises(ClewError, match="asks for rank 1; the trace has 0, 2"):
        _ = t["#0@1"]
    with pytest.raises(ClewError, match="the trace has no rank 1; it has 0, 2"):
        t.only(rank=1)


# Parts of a run

PARTS: dict[str, Callable[[clew.Trace], clew.Trace]] = {
    "one rank": lambda t: t.only(rank=1),
    "NumPy's number": lambda t: t.only(rank=np.int64(1)),  # type: ignore[arg-type]
    "ranks": lambda t: t.only(rank=[2, 0]),
    "one step": lambda t: t.only(step=1),
    "steps": lambda t: t.only(step=range(1, 3)),
    "phase": lambda t: t.only(phase="backward"),
    "phases": lambda t: t.only(phase={"forward", "optimizer"}),
    "all three": lambda t: t.only(rank=2, step=[0, 2], phase="forward"),
    "chained": lambda t: t.only(rank=[1, 2]).only(step=1).only(phase="forward"),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_a_run_is_a_trace(name: str, unequal: clew.Trace, tmp_path: Path) -> None:
    part = PARTS[name](unequal)
    kept = set(part.events)
    expected = {
        "one rank": lambda e: e.rank == 1,
        "NumPy's number": lambda e: e.rank == 1,
        "ranks": lambda e: e.rank in (0, 2),
        "one step": lambda e: e.step == 1,
        "steps": lambda e: e.step in (1, 2),
        "phase": lambda e: e.phase == "backward",
        "phases": lambda e: e.phase in ("forward", "optimizer"),
        "all three": lambda e: e.rank == 2 and e.step in (0, 2) and e.phase == "forward",
        "chained": lambda e: e.rank in (1, 2) and e.step == 1 and e.phase == "forward",
    }[name]
    assert kept == {event for event in unequal.events if expected(event)}
    facts = {(e.rank, e.id): (e.address, e.module, str(e.source), e.step) for e in unequal.events}
    assert all((e.address, e.module, str(e.source), e.step) == facts[e.rank, e.id] for e in kept)
    for view in (part.tree(), part.code(), part.table(), part.graph()):
        assert str(view)
        assert json.dumps(view.to_dict())
    assert part.html(tmp_path / "part.html").path.exists()
    saved = clew.load(part.save(tmp_path / "part.clew"))
    assert saved.table().columns() == part.table().columns()
    assert (saved.ranks, saved.steps) == (part.ranks, part.steps)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"rank": 9}, "the trace has no rank 9; it has 0, 1, 2"),
        ({"rank": [0, 9]}, "the trace has no rank 9; it has 0, 1, 2"),
        ({"rank": "0"}, "the trace has no rank '0'; it has 0, 1, 2"),
        ({"step": range(2, 5)}, "the trace has no step 3; it has 0, 1, 2"),
        ({"step": 1.5}, r"the trace has no step 1\.5; it has 0, 1, 2"),
        ({"phase": "sleep"}, "no phase 'sleep'; it has forward, backward, optimizer"),
        ({"rank": 0, "step": 2}, "the trace has no step 2; it has 0, 1"),
        ({"rank": []}, r"rank=\[\] asks for nothing; the trace has 0, 1, 2"),
    ],
)
def test_a_part_that_is_not_there_is_refused(
    unequal: clew.Trace, asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(ClewError, match=message):
        unequal.only(**asked)


# Tables


@pytest.mark.parametrize("name", NAMES)
def test_table_pandas_and_csv_say_what_the_event_table_says(name: str, tmp_path: Path) -> None:
    t = load(name)
    folder = t.save(tmp_path / "run.clew")
    stored: list[dict[str, Any]] = []
    for rank in sorted(Path(folder).glob("rank=*")):
        rows = [
            r for f in rank.glob("events-*.parquet") for r in pq.ParquetFile(f).read().to_pylist()
        ]
        stored += sorted(rows, key=lambda row: row["id"])
    frame = t.to_pandas()
    assert len(frame) == len(t.events) == len(stored)
    columns = t.table().columns()
    t.export("csv", tmp_path / "x.csv")
    with open(tmp_path / "x.csv", newline="") as file:
        written = list(csv.DictReader(file))
    facts = ("id", "address", "step", "rank", "phase", "call", "module", "line", *NUMBERS)
    for fact in facts:
        listed = [row[fact] for row in stored]
        assert columns[fact] == listed, fact
        assert [None if value != value else value for value in frame[fact]] == listed
        texts = ["" if value is None else str(value) for value in listed]
        assert [row[fact] for row in written] == texts


def test_the_text_of_a_table_shows_the_rank_where_there_are_several(unequal: clew.Trace) -> None:
    lines = str(unequal.table().head(1000)).splitlines()
    assert lines[0].split()[:3] == ["rank", "id", "step"]
    assert [int(line.split()[0]) for line in lines[1:]] == [e.rank for e in unequal.events]
    assert str(unequal.only(rank=1).table()).split()[0] == "id"


def test_the_data_of_a_table_has_numbers_and_units(unequal: clew.Trace) -> None:
    data = unequal.table().to_dict()
    assert {"start_seconds", "duration_seconds", "address", *NUMBERS} <= set(data)
    event = unequal.events[5]
    assert data["start_seconds"][5] == event.start
    assert data["duration_seconds"][5] == event.duration
    assert {"start", "duration"} <= set(unequal.to_pandas())


# Pictures


def test_calls_nested_320_deep_are_drawn() -> None:
    t = load("deep")
    for depth in (None, 2, 250, 1000):
        view = t.graph(depth=depth)
        nested = max(node.level for node in view.model.nodes)
        assert nested == min(depth or nested, 319)
        for text in (view.svg(), view.dot(), view.mermaid(), view.json(), str(view)):
            assert text


def test_calls_nested_deeper_than_can_be_drawn_are_said() -> None:
    run = read_calls(".".join("m" * (n + 1)) for n in range(450))
    with pytest.raises(ClewError, match="nested more than 400 deep.*give depth=400 or less"):
        graph_view(run, depth=1000)
    assert graph_view(run).svg()
    assert graph_view(run, depth=400).svg()

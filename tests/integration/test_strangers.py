"""Traces that no program wrote: what reading them takes is bounded by the bytes of their files."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import clew
from clew.events.columns import EVENT_COLUMNS, Columns
from clew.events.vocabulary import MODULE
from clew.run.run import Run
from tests.attacks import ATTACKS, HONEST, make
from tests.processes import HANG_GUARD

ROOT = Path(__file__).parents[2]


def test_every_attack_is_bounded(tmp_path: Path) -> None:
    """Each in a process of its own, above one that read a small trace in the same way."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bounded", tmp_path],
        capture_output=True,
        text=True,
        timeout=HANG_GUARD,
        cwd=ROOT,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {each["attack"] for each in found} == {*ATTACKS}, done.stderr
    # Data, or a ClewError that says what is wrong.
    raw = [each for each in found if not each["out"].startswith(("data", "refused"))]
    assert not raw
    huge = [each for each in found if each["peak"] > each["limit"]]
    assert not huge


@pytest.mark.parametrize("name", ["events_run_length", "dense_events", "long_names"])
def test_what_is_refused_says_so(name: str, tmp_path: Path) -> None:
    """As a gap where a part is left out, as an error where nothing is left."""
    trace = clew.load(make(name, tmp_path))
    try:
        said = " ".join(map(str, trace.coverage))
    except clew.ClewError as refused:
        said = str(refused)
    assert "bytes of memory, more than 256 times the" in said


def test_ids_stay_what_they_were(tmp_path: Path) -> None:
    path = make("event_id_huge", tmp_path)
    ids = [event.id for event in clew.load(path).events]
    assert ids[-1] == 2**62
    assert ids[:-1] == [event.id for event in clew.load(HONEST).events][:-1]
    again = clew.load(clew.load(path).save(tmp_path / "again.clew"))
    assert [event.id for event in again.events] == ids


def nested(count: int) -> Run:
    """Give calls of one module, each in the one before, as they are in memory."""
    columns, derived = clew.load(HONEST)._current_run().parts[0]
    row = int(np.flatnonzero(columns.kind == MODULE)[0])
    rows = np.full(count, row)
    arrays = {name: getattr(columns, name)[rows] for name in EVENT_COLUMNS}
    ids = np.arange(count)
    arrays |= {"id": ids, "parent": ids - 1, "number": ids, "start": ids, "end": 10**9 - ids}
    facts = replace(derived.take(rows), call=ids, owner=ids)
    whole: Columns = replace(columns, **arrays, gaps=[], derived=facts)
    return Run({0: whole})


@pytest.mark.parametrize("count", [301, 5_000, 16_000])
def test_calls_stay_nested(count: int, tmp_path: Path) -> None:
    t = clew.Trace(nested(count))
    loaded = clew.load(t.save(tmp_path / "deep.clew"))
    assert loaded.coverage == t.coverage
    assert [e.parent_id for e in loaded.events] == [e.parent_id for e in t.events]
    assert sum(e.parent is None for e in loaded.events) == 1
    if count == 301:
        assert str(loaded) == str(t)


def test_calls_nested_without_end_are_cut(tmp_path: Path) -> None:
    loaded = clew.load(clew.Trace(nested(20_000)).save(tmp_path / "deep.clew"))
    [gap] = loaded.coverage
    assert gap.what == "3616 parents of events"
    assert len(loaded.events) == 20_000


def test_rows_that_are_lost_leave_the_others_in_place(tmp_path: Path) -> None:
    """Numbers of rows and values may have gaps, as where a part of a table is gone."""
    import pyarrow.parquet as pq

    from tests.attacks import part, read, write

    honest = clew.load(HONEST)
    path = clew.load(HONEST).save(tmp_path / "run.clew")
    rows = read(Path(path), "values")
    lost = {row["value"] for row in rows if row["value"] % 7 == 3}
    write(Path(path), "values", [row for row in rows if row["value"] not in lost])
    loaded = clew.load(path)
    assert pq.ParquetFile(part(Path(path), "values")).metadata.num_rows == len(rows) - len(lost)
    assert f"{len(lost)} values" in {gap.what for gap in loaded.coverage}
    for event, same in zip(loaded.events, honest.events, strict=True):
        for value, known in zip(event.outputs.values(), same.outputs.values(), strict=True):
            if known.number not in lost:
                assert repr(value) == repr(known)
                assert value.stats == known.stats
            else:
                assert value.shape is None

"""What happens in the workers of real DataLoaders reaches the trace of the process that reads."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Subset

import clew

# Else forked workers would load it through pytest, which parses it anew: in Python 3.11 that fails
# at times with "AST constructor recursion depth mismatch".
import clew.session.workers
from clew.events.tensor_text import tensor_text
from clew.run.event import Event
from tests.datasets import (
    Fetched,
    Opened,
    Stream,
    Videos,
    WatchedVideos,
    plain,
    seeded,
    stacked,
)
from tests.processes import HANG_GUARD

METHODS = ["fork", pytest.param("spawn", marks=pytest.mark.slow)]
CAPTURED = "datasets.py:decode.video"


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The place for temporary files of this process and of those it starts."""
    place = tmp_path_factory.mktemp("workers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(place))
        patch.setattr(tempfile, "tempdir", None)
        yield place
    tempfile.tempdir = None


@pytest.fixture(autouse=True)
def _no_folder_stays(temporary: Path) -> Iterator[None]:
    yield
    assert list(temporary.glob("clew-workers-*")) == []


def loader(dataset: Any, method: str, **options: Any) -> DataLoader[Any]:
    options = {"batch_size": 2, "num_workers": 2, "collate_fn": plain, **options}
    return DataLoader(dataset, multiprocessing_context=method, timeout=HANG_GUARD, **options)


def samples(events: list[Event]) -> set[str]:
    return {event.prefix for event in events}


EACH = {
    "worker0.sample0", "worker0.sample1", "worker1.sample2", "worker1.sample3",
    "worker0.sample4", "worker0.sample5", "worker1.sample6", "worker1.sample7",
}  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_captured_variables_and_taps_come_with_worker_and_sample(method: str) -> None:
    with clew.trace(capture=[CAPTURED]) as t:
        batches = list(loader(Videos(), method))
    assert len(batches) == 4
    videos = list(t[CAPTURED])
    assert samples(videos) == EACH
    assert {event.thread for event in videos} == {"worker 0", "worker 1"}
    five = [event for event in videos if event.prefix == "worker0.sample5"]
    assert [tensor_text(event.outputs[""]) for event in five] == ["np.u8[4,3]", "np.f32[4,3]"]
    assert float(five[0].outputs[""].array()[0, 0]) == 5
    assert five[0].source is not None
    assert five[0].source.text.strip() == "video = np.full((4, 3), index, np.uint8)"
    taps = [event for event in t.events if event.kind == "tap"]
    assert len(taps) == 8
    assert samples(taps) == EACH


@pytest.mark.parametrize("method", METHODS)
def test_watched_variables_come_with_worker_and_sample(method: str) -> None:
    with clew.watch("video", out=False) as w:
        list(loader(Videos(), method))
    videos = [e for e in w.trace.variables if e.address.startswith("datasets.py:decode.video")]
    assert len(videos) == 16
    assert samples(videos) == EACH
    assert videos[0].outputs[""].stats is not None


def test_a_trace_that_watches_watches_in_workers_too() -> None:
    with clew.trace(watch=["video"]) as t:
        list(loader(Videos(), "fork"))
    assert samples(list(t[CAPTURED])) == EACH


def test_a_watch_inside_a_trace_adds_to_what_is_captured() -> None:
    with clew.trace(capture=["datasets.py:decode.index"]) as t:
        with clew.watch("video", out=False):
            list(loader(Videos(), "fork"))
    assert len(t[CAPTURED]) == 16
    assert len(t["datasets.py:decode.index"]) == 8


@pytest.mark.parametrize("method", METHODS)
def test_a_watched_method_of_a_dataset_tells_the_parent(method: str) -> None:
    watch = WatchedVideos.__getitem__.watch  # type: ignore[attr-defined]
    before = len(watch.trace.variables)
    list(loader(WatchedVideos(), method))
    videos = [e for e in list(watch.trace.variables)[before:] if e.name == "video"]
    mine = [event for event in videos if "__getitem__" in event.address]
    assert samples(mine) == EACH
    third = next(event for event in mine if event.prefix.endswith("sample3"))
    assert third.outputs[""].array().shape == (4, 3)


@pytest.mark.parametrize("method", METHODS)
def test_an_exception_in_a_worker_carries_the_history_of_its_sample(method: str) -> None:
    with clew.trace(capture=[CAPTURED]) as t:
        with pytest.raises(ValueError, match="no frames in 3") as caught:
            list(loader(Videos(bad=(3,)), method))
    text = str(caught.value)
    assert "clew: worker 1, sample 3 of Videos:" in text
    assert "datasets.py:decode.video  uint8[4,3]  datasets.py:" in text
    assert "datasets.py:decode.video  float32[4,3]  datasets.py:" in text
    failed = [event for event in t[CAPTURED] if event.prefix == "worker1.sample3"]
    assert len(failed) == 2


@pytest.mark.parametrize("method", METHODS)
def test_what_a_killed_worker_had_done_is_there(method: str) -> None:
    with clew.trace(capture=[CAPTURED]) as t:
        with pytest.raises(RuntimeError, match="exited unexpectedly|killed by signal"):
            list(loader(Videos(deadly=(3,)), method))
    seen = samples(list(t[CAPTURED]))
    # The same worker's own; how far the other one came by then is chance.
    assert "worker1.sample2" in seen


def test_workers_that_persist_record_over_several_passes_and_stop_with_the_trace() -> None:
    batches = loader(Videos(), "fork", persistent_workers=True)
    with clew.trace(capture=[CAPTURED]) as t:
        list(batches)
        list(batches)
        assert len(t[CAPTURED]) == 32
    assert len(list(batches)) == 4
    assert len(t[CAPTURED]) == 32
    with clew.trace(capture=[CAPTURED]) as late:
        list(batches)
    assert any("started before the recording" in gap.why for gap in late.coverage)


def test_the_loader_and_its_own_start_function_are_as_they_were() -> None:
    original = DataLoader.__iter__
    batches = loader(Videos(), "fork", worker_init_fn=seeded)
    with clew.trace(capture=[CAPTURED]) as t:
        list(batches)
        assert batches.worker_init_fn is seeded
        assert batches.collate_fn is plain
    assert DataLoader.__iter__ is original
    assert len(t[CAPTURED]) == 16


def test_results_are_the_same_with_and_without() -> None:
    plainly = list(loader(Videos(), "fork"))
    with clew.trace(capture=[CAPTURED]):
        traced = list(loader(Videos(), "fork"))
    for one, other in zip(plainly, traced, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_samples_of_a_subset_have_the_numbers_of_the_whole() -> None:
    with clew.trace(capture=[CAPTURED]) as t:
        list(loader(Subset(Videos(), [7, 5]), "fork"))
    assert samples(list(t[CAPTURED])) == {"worker0.sample7", "worker0.sample5"}


def test_samples_of_a_stream_are_counted() -> None:
    with clew.trace(capture=[CAPTURED]) as t:
        list(loader(Stream(), "fork"))
    assert samples(list(t[CAPTURED])) == {
        f"worker{w}.sample{n}" for w in range(2) for n in range(3)
    }


BATCHES = ["worker0.sample0,1", "worker0.sample4,5", "worker1.sample2,3", "worker1.sample6,7"]


@pytest.mark.parametrize("method", METHODS)
def test_variables_of_a_collate_function_come_with_the_samples_of_the_batch(method: str) -> None:
    with clew.trace(capture=["datasets.py:stacked.both"]) as t:
        list(loader(Videos(), method, collate_fn=stacked))
    found = list(t["datasets.py:stacked.both"])
    assert sorted(event.prefix for event in found) == BATCHES
    assert "never called" not in str(t.coverage)


def test_a_collate_function_after_a_failed_batch_has_its_own_samples() -> None:
    batches = loader(Videos(bad=(1,)), "fork", num_workers=1, collate_fn=stacked)
    with clew.trace(capture=["datasets.py:stacked.both"]) as t:
        items = iter(batches)
        with pytest.raises(ValueError, match="no frames in 1"):
            next(items)
        next(items)
        del items
    assert t["datasets.py:stacked.both"][0].prefix == "worker0.sample2,3"


def test_variables_of_a_dataset_that_makes_whole_batches_all_come() -> None:
    address = "datasets.py:Fetched.__getitems__.video"
    with clew.trace(capture=[address, "datasets.py:stacked.both"]) as t:
        list(loader(Fetched(), "fork", collate_fn=stacked))
    found = sorted((event.prefix, event.outputs[""].array()[0, 0]) for event in t[address])
    assert found == [(batch, n) for batch in BATCHES for n in map(int, batch[14:].split(","))]
    assert sorted(event.prefix for event in t["datasets.py:stacked.both"]) == BATCHES
    assert "never called" not in str(t.coverage)


def test_work_before_and_after_a_stream_is_of_no_sample() -> None:
    stem = "datasets.py:Opened"
    asked = [f"{stem}.__iter__.head", f"{stem}.items.tail", "datasets.py:stacked.both"]
    with clew.trace(capture=asked) as t:
        list(loader(Opened(), "fork", num_workers=1, collate_fn=stacked))
    assert [event.prefix for event in t[asked[0]]] == ["worker0"]
    assert [event.prefix for event in t[asked[1]]] == ["worker0"]
    assert [event.prefix for event in t[asked[2]]] == ["worker0.sample0,1", "worker0.sample2"]


def test_variables_of_the_start_function_come_though_no_sample_is_made() -> None:
    with clew.trace(capture=["datasets.py:seeded.seed"]) as t:
        items = iter(loader(Subset(Videos(), []), "fork", worker_init_fn=seeded))
        assert list(items) == []
    assert samples(list(t["datasets.py:seeded.seed"])) == {"worker0", "worker1"}


def test_a_watched_variable_that_only_workers_have_is_not_said_to_be_missing() -> None:
    with clew.watch("both", out=False) as w:
        list(loader(Videos(), "fork", collate_fn=stacked))
    assert [gap.where for gap in w.trace.coverage if gap.what == "a variable to watch"] == []
    with clew.trace(watch=["both"]) as t:
        list(loader(Videos(), "fork", collate_fn=stacked))
    assert [gap.where for gap in t.coverage if gap.what == "a variable to watch"] == []


def test_what_no_worker_has_met_is_said_to_be_missing() -> None:
    with clew.trace(capture=["datasets.py:stacked.both"]) as t:
        list(loader(Videos(), "fork"))
    assert [gap.where for gap in t.coverage if "never called" in gap.why] == [
        "datasets.py:stacked.both"
    ]


def test_events_of_workers_go_to_disk_and_come_back(tmp_path: Path) -> None:
    with clew.trace(capture=[CAPTURED], out=tmp_path / "run.clew") as t:
        list(loader(Videos(), "fork"))
    assert samples(list(t[CAPTURED])) == EACH
    loaded = clew.load(tmp_path / "run.clew")
    assert samples(list(loaded[CAPTURED])) == EACH
    assert loaded[CAPTURED][0].outputs[""].array().shape == (4, 3)


def test_what_workers_do_not_record_is_in_the_coverage() -> None:
    with clew.trace(capture=[CAPTURED]) as t:
        list(loader(Videos(), "fork"))
    assert any(gap.what == "ops in DataLoader workers" for gap in t.coverage)
    assert not any(gap.what == "a forked process" for gap in t.coverage)


def test_what_clew_failed_at_in_a_worker_is_in_the_coverage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*given: object) -> None:
        raise RuntimeError("no room")

    for place, where in (
        ((clew.session.workers, "begin"), "the start"),
        ((clew.session.workers.Named, "record"), "decode.video"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(*place, broken)
            with clew.trace(capture=[CAPTURED]) as t:
                list(loader(Videos(), "fork"))
        gaps = [gap for gap in t.coverage if gap.what == "what a DataLoader worker ran"]
        assert [gap.where for gap in gaps] == ["worker 0", "worker 1"]
        for gap in gaps:
            assert f"at {where}" in gap.why
            assert "(RuntimeError: no room)" in gap.why
        assert not [gap for gap in t.coverage if "never called" in gap.why]


def test_without_workers_nothing_is_exchanged(temporary: Path) -> None:
    with clew.trace(capture=[CAPTURED]) as t:
        list(loader_without_workers())
    assert {event.thread for event in t[CAPTURED]} == {"MainThread"}
    assert [name for name in os.listdir(temporary) if name.startswith("clew-workers")] == []


def loader_without_workers() -> DataLoader[Any]:
    return DataLoader(Videos(), batch_size=2, collate_fn=plain)


MAIN = """\
import sys
import numpy as np
import clew
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        row = np.full(3, index)
        return row

def joined(rows):
    batch = np.stack(rows)
    return batch

def load():
    return list(DataLoader(
        Rows(), batch_size=2, num_workers=2, collate_fn=joined, multiprocessing_context=sys.argv[1],
    ))

if __name__ == "__main__":
    wanted = ["rows.py:Rows.__getitem__.row", "__main__:joined.batch"]
    with clew.trace(capture=wanted) as t:
        load()
    print([len(t[address]) for address in wanted])
    with clew.trace(watch=wanted) as t:
        load()
    print([len(t[address]) for address in wanted])
"""


@pytest.mark.parametrize("method", METHODS)
def test_functions_of_the_main_script_are_found(method: str, tmp_path: Path) -> None:
    script = tmp_path / "rows.py"
    script.write_text(MAIN)
    done = subprocess.run(
        [sys.executable, script, method], capture_output=True, text=True, timeout=HANG_GUARD
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["[4, 2]", "[4, 2]"]

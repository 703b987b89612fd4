"""A trace in a folder that fsspec reaches is the trace: streamed, saved, loaded, read in part."""

from __future__ import annotations

import gc
import json
import re
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from torch import nn

import clew
from clew.cli.main import main
from clew.errors import BadTrace, ClewError, MissingDependency
from clew.store import remote_storage
from clew.store.format import shards
from clew.store.write import trace_writer
from tests.same_trace import facts_of, facts_of_any_run

LARGE = 9000


class Watched(MemoryFileSystem):  # type: ignore[misc]
    """A file system in memory that counts what is asked of it, and is down when told to be."""

    protocol = ("watched",)
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    calls: ClassVar[Counter[str]] = Counter()
    names: ClassVar[list[str]] = []
    failures = 0
    read_bytes = 0

    def put_file(self, lpath: str, rpath: str, **options: Any) -> Any:
        if Watched.failures > 0:
            Watched.failures -= 1
            raise ConnectionError("the network is down")
        Watched.names.append(rpath)
        return super().put_file(lpath, rpath, **options)

    def cat_file(self, path: str, start: Any = None, end: Any = None, **options: Any) -> bytes:
        data: bytes = super().cat_file(path, start=start, end=end, **options)
        Watched.calls[path.rpartition("/")[2].partition("-")[0]] += 1
        Watched.read_bytes += len(data)
        return data

    def get_file(self, rpath: str, lpath: str, **options: Any) -> Any:
        Watched.calls[rpath.rpartition("/")[2].partition("-")[0]] += 1
        return super().get_file(rpath, lpath, **options)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> type[Watched]:
    fsspec.register_implementation("watched", Watched, clobber=True)
    monkeypatch.setattr(
        remote_storage, "_OBJECT_STORES", {*remote_storage._OBJECT_STORES, "watched"}
    )
    monkeypatch.setattr(remote_storage, "_WAITS", (0.0, 0.0, 0.0))
    Watched.store.clear()
    Watched.calls.clear()
    Watched.names.clear()
    Watched.failures = Watched.read_bytes = 0
    return Watched


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder that is free, in each file system."""
    if request.param == "memory":
        return f"memory://{uuid.uuid4().hex}/run.clew"
    return f"file://{tmp_path}/far/run.clew"


def program(out: Any, steps: int = 3, seed: int = 0, **options: Any) -> Any:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, LARGE))
    with clew.trace(net, values="full", out=out, **options) as t:
        for _ in range(steps):
            net(torch.randn(2, 8)).sum().backward()
            t.step()
    return t


def test_a_streamed_trace_is_the_trace(url: str) -> None:
    t = program(url)
    assert t.path == url
    loaded = clew.load(url)
    assert not loaded.coverage
    assert facts_of(loaded) == facts_of(t)
    assert facts_of_any_run(loaded) == facts_of_any_run(program(None))
    assert torch.equal(loaded["2"].values[1].tensor(), t["2"].values[1].tensor())


def test_a_saved_trace_is_the_trace(url: str, tmp_path: Path) -> None:
    t = program(None)
    assert t.save(url) == url
    loaded = clew.load(url)
    assert facts_of(loaded) == facts_of(t)
    assert facts_of(clew.load(loaded.save(tmp_path / "back.clew"))) == facts_of(t)


def test_small_parts_change_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_writer, "_ROLL_ROWS", 10)
    monkeypatch.setattr(shards, "_LARGEST_SHARD", 100_000)
    t = program(url, steps=6)
    assert facts_of_any_run(clew.load(url)) == facts_of_any_run(program(None, steps=6))
    assert facts_of(clew.load(url)) == facts_of(t)


def test_flush_returns_when_everything_is_there(url: str) -> None:
    layer = nn.Linear(8, LARGE)
    with clew.trace(layer, values="full", out=url) as t:
        for step in range(3):
            layer(torch.ones(1, 8))
            t.flush()
            growing = clew.load(url)
            assert len(growing.modules) == step + 1
            assert growing.modules[step].outputs[""].array().shape == (1, LARGE)
            assert "the trace was not closed" in str(growing.coverage[0])
            assert len(t.modules) == step + 1
    assert not clew.load(url).coverage


def test_nothing_is_left_here(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "staging"))
    (tmp_path / "staging").mkdir()
    t = program(url)
    assert len(t.events)
    del t
    gc.collect()
    assert list((tmp_path / "staging").iterdir()) == []


def test_a_trace_that_goes_on_is_one_trace(url: str) -> None:
    layer = nn.Linear(2, 2)
    tracer = clew.trace(layer, values="full", out=url)
    traced = tracer(lambda x: layer(x))
    for count in range(1, 4):
        traced(torch.ones(1, 2))
        assert len(clew.load(url).modules) == len(tracer.modules) == count


def test_ranks_share_a_folder(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        assert program(url).path == url
    assert clew.load(url).ranks == [0, 1]


def test_a_taken_place_is_left_alone(url: str) -> None:
    program(url, steps=1)
    before = facts_of(clew.load(url))
    with pytest.warns(clew.ClewWarning, match="is taken; this run goes to .*run.1.clew"):
        second = program(url, steps=2)
    assert second.path == url.replace("run.clew", "run.1.clew")
    with pytest.warns(clew.ClewWarning, match="is taken, and nothing is moved there.*run.2.clew"):
        assert second.save(url, exist="keep") == url.replace("run.clew", "run.2.clew")
    assert facts_of(clew.load(url)) == before
    for write in (lambda: program(url, exist="error"), lambda: second.save(url, exist="error")):
        with pytest.raises(ClewError, match="exists; choose another place"):
            write()
    assert program(url, steps=2, exist="replace").path == url
    assert clew.load(url).steps == [0, 1]
    assert second.save(url) == url
    assert facts_of(clew.load(url)) == facts_of(second)


def test_a_loaded_trace_says_when_another_run_has_its_place(url: str) -> None:
    program(url, steps=1)
    unread, read = clew.load(url), clew.load(url)
    value = read["2"].values[0]
    program(url, steps=2, seed=1, exist="replace")
    for ask in (lambda: len(unread.events), value.array):
        with pytest.raises(BadTrace, match="holds another run than the one that was opened"):
            ask()


def test_pages_pictures_and_exports_go_to_urls(url: str) -> None:
    t = program(None, steps=1)
    above = url.rpartition("/")[0]
    fs, root = fsspec.core.url_to_fs(above)
    assert t.html(f"{above}/run.html").path == f"{above}/run.html"
    assert fs.cat_file(f"{root}/run.html").startswith(b"<!DOCTYPE html>")
    assert t.graph().save(f"{above}/g.svg") == f"{above}/g.svg"
    assert fs.cat_file(f"{root}/g.svg").startswith(b"<svg")
    for fmt in ("json", "zarr"):
        place = f"{above}/run.{fmt}"
        assert t.export(fmt, place).path == place
        assert t.export(fmt, place).path == place
        with pytest.raises(ClewError, match="exists"):
            t.export(fmt, place, exist="error")
        with pytest.warns(clew.ClewWarning, match="nothing is moved there"):
            assert t.export(fmt, place, exist="keep").path == f"{above}/run.1.{fmt}"
    fs.pipe_file(f"{root}/mine.json", b"mine")
    with pytest.raises(ClewError, match="is there and is not JSON"):
        t.export("json", f"{above}/mine.json")
    assert fs.cat_file(f"{root}/mine.json") == b"mine"


def test_what_is_not_a_trace_is_not_replaced(url: str) -> None:
    fs, path = fsspec.core.url_to_fs(url)
    fs.makedirs(path, exist_ok=True)
    fs.pipe_file(f"{path}/thesis.txt", b"mine")
    for replace in (lambda: program(url, exist="replace"),
                    lambda: program(None).save(url, exist="replace")):  # fmt: skip
        with pytest.raises(ClewError, match="is there and is not a trace, so it is not replaced"):
            replace()
    assert fs.cat_file(f"{path}/thesis.txt") == b"mine"


def test_files_go_up_in_the_order_in_which_they_may_be_read(watched: type[Watched]) -> None:
    program("watched://bucket/run.clew", steps=1)
    kinds = [re.split(r"[-.]", name.rpartition("/")[2])[0] for name in watched.names]
    assert kinds == ["manifest", "shard", "values", "tables", "events"]
    watched.names.clear()
    program(None, steps=1).save("watched://bucket/saved.clew")
    assert watched.names[-1].endswith("manifest.json")


def test_one_value_is_read_by_its_own_bytes(watched: type[Watched]) -> None:
    program("watched://bucket/run.clew", steps=10)
    watched.calls.clear()
    t = clew.load("watched://bucket/run.clew")
    assert watched.calls == {"manifest.json": 1}
    value = t["2"].values[4]
    assert watched.calls["shard"] == 0
    watched.read_bytes = 0
    assert value.array().shape == (2, LARGE)
    assert (watched.calls["shard"], watched.read_bytes) == (1, 2 * LARGE * 4)


def test_a_network_that_fails_now_and_then_loses_nothing(watched: type[Watched]) -> None:
    layer = nn.Linear(2, 2)
    with clew.trace(layer, values="full", out="watched://bucket/run.clew") as t:
        for _ in range(3):
            watched.failures = 2
            layer(torch.ones(1, 2))
            t.flush()
    assert not t.coverage
    assert facts_of(clew.load("watched://bucket/run.clew")) == facts_of(t)


def test_a_network_that_stays_down_leaves_the_rest_here(watched: type[Watched]) -> None:
    layer = nn.Linear(8, LARGE)
    with clew.trace(layer, values="full", out="watched://bucket/run.clew") as t:
        layer(torch.ones(1, 8))
        t.flush()
        watched.failures = 1_000_000
        with pytest.warns(clew.ClewWarning, match="the upload from here on.*the network is down"):
            for _ in range(3):
                layer(torch.ones(1, 8))
                t.flush()
    (gap,) = t.coverage
    local = Path(str(t.path))
    assert f"the rest stays in {local}" in gap.remedy
    assert len(t.modules) == 4
    assert [v.array().shape for v in t[""].values] == [(1, LARGE)] * 4
    assert len(clew.load("watched://bucket/run.clew").modules) == 1
    # As the remedy says: the rest, copied there, completes the trace.
    watched.failures = 0
    fs, there = fsspec.core.url_to_fs("watched://bucket/run.clew")
    for path in local.rglob("*"):
        if path.is_file():
            fs.put_file(str(path), f"{there}/{path.relative_to(local)}")
    whole = clew.load("watched://bucket/run.clew")
    assert [len(event.outputs) for event in whole.modules] == [1] * 4
    assert whole[""].values[3].array().shape == (1, LARGE)


def test_a_place_out_of_reach_is_said_and_the_program_goes_on(watched: type[Watched]) -> None:
    watched.failures = 1_000_000
    said = "cannot write a trace to watched://.*network is down.*is kept in memory"
    with pytest.warns(clew.ClewWarning, match=said):
        t = program("watched://bucket/run.clew")
    assert (t.path, len(t[""])) == (None, 3)
    with pytest.raises(ClewError, match="cannot reach nowhere://x/run.clew: .*nowhere"):
        program("nowhere://x/run.clew")


def test_what_is_no_trace_is_said(url: str) -> None:
    with pytest.raises(BadTrace, match=f"{url} is not a trace: it has no manifest.json"):
        clew.load(url)


def test_without_fsspec_the_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingDependency, match=r'needs fsspec.*pip install "clew\[remote\]"'):
        clew.load("memory://bucket/run.clew")


def test_commands_take_urls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{tmp_path}/run.clew"
    t = program(url)
    assert main(["info", url, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["events"], facts["unsealed"]) == (len(t), [])
    assert facts["bytes"] > 3 * 2 * LARGE * 4
    for command in (["show", url], ["code", url], ["value", url, "0"],
                    ["export", url, "chrome", str(tmp_path / "t.json")]):  # fmt: skip
        assert main(command) == 0
    monkeypatch.chdir(tmp_path / "run.clew")
    assert main(["html", url]) == 0
    assert (tmp_path / "run.clew" / "run.html").exists()
    assert main(["recover", url]) == 2
    assert "is not recovered in place" in capsys.readouterr().err


def test_reading_a_url_needs_no_torch(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/run.clew"
    program(url)
    code = (
        f"import sys, clew; sys.modules['torch'] = None; t = clew.load({url!r}); "
        "print(t['2'].values[0].array().shape)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"(2, {LARGE})\n", "")

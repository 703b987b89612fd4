"""Writing twice: the name holds the newest, and nothing else is touched, whatever is written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import clew
from clew.cli.main import main
from clew.errors import BadTrace, ClewError
from clew.store.write.claim import Claim, claim
from clew.store.write.trace_writer import TraceFiles
from clew.views.export.formats import FORMATS

FILES = [fmt for fmt in FORMATS if fmt != "zarr"]
PICTURES = ("svg", "png", "dot", "mermaid", "json")


@pytest.fixture(scope="module")
def t() -> clew.Trace:
    model = nn.Linear(2, 2)
    with clew.trace(model, values="full") as trace:
        model(torch.ones(1, 2))
    return trace


@pytest.fixture(scope="module")
def saved(t: clew.Trace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(t.save(tmp_path_factory.mktemp("saved") / "run.clew"))


Writer = Callable[..., Any]


def writers(t: clew.Trace, saved: Path) -> dict[str, tuple[str, Writer]]:
    """Every way to write: the name of the result, and a function of a path and options."""

    def command(*words: str) -> Writer:
        def run(path: Path, exist: str = "replace") -> None:
            said = ["clew", *(word.replace("OUT", str(path)) for word in words)]
            done = subprocess_free_main([*said[1:], "--exist", exist])
            if done:
                raise ClewError(f"exit code {done}")

        return run

    graph = t.graph()
    found: dict[str, tuple[str, Writer]] = {
        "save": ("run.clew", t.save),
        "html": ("run.html", t.html),
        "zarr": ("run.zarr", lambda path, **o: t.export("zarr", path, **o)),
        "clew html": ("run.html", command("html", str(saved), "-o", "OUT")),
        "clew export": ("run.json", command("export", str(saved), "json", "OUT")),
        "clew graph": ("run.svg", command("graph", str(saved), "-o", "OUT")),
    }
    for fmt in FILES:
        found[fmt] = (f"run.{fmt}", lambda path, fmt=fmt, **o: t.export(fmt, path, **o))
    for kind in PICTURES:
        found[f"picture {kind}"] = (f"g.{kind}", getattr(graph, kind))
    return found


def subprocess_free_main(words: list[str]) -> int:
    return main(words)


WAYS = [
    "save", "html", "zarr", "clew html", "clew export", "clew graph", *FILES,
    *(f"picture {kind}" for kind in PICTURES),
]  # fmt: skip
every_way = pytest.mark.parametrize("way", WAYS)


def content(path: Path) -> dict[str, bytes]:
    """What is at a path, byte for byte."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


@every_way
def test_replace_is_the_default_and_keep_moves(
    way: str, t: clew.Trace, saved: Path, tmp_path: Path
) -> None:
    name, write = writers(t, saved)[way]
    path = tmp_path / "deep" / name
    first = path.with_name(f"{path.stem}.1{path.suffix}")
    write(path)
    write(path)
    assert [p.name for p in path.parent.iterdir()] == [name]
    before = content(path)
    write(path, exist="keep")
    assert content(first) == before
    assert sorted(p.name for p in path.parent.iterdir()) == sorted([first.name, name])
    write(path, exist="keep")
    assert content(first) == before
    assert len(list(path.parent.iterdir())) == 3
    with pytest.raises(ClewError):
        write(path, exist="error")
    assert len(list(path.parent.iterdir())) == 3


@every_way
@pytest.mark.parametrize("exist", ["replace", "keep"])
def test_something_else_is_not_touched(
    way: str, exist: str, t: clew.Trace, saved: Path, tmp_path: Path
) -> None:
    name, write = writers(t, saved)[way]
    path = tmp_path / name
    path.write_bytes(b"my thesis")
    with pytest.raises(ClewError):
        write(path, exist=exist)
    assert content(tmp_path) == {name: b"my thesis"}
    path.unlink()
    path.mkdir()
    (path / "thesis.txt").write_bytes(b"my thesis")
    with pytest.raises(ClewError):
        write(path, exist=exist)
    assert content(tmp_path) == {f"{name}/thesis.txt": b"my thesis"}


def test_errors_say_what_is_there_and_what_to_do(t: clew.Trace, tmp_path: Path) -> None:
    path = tmp_path / "run.html"
    path.write_text("mine")
    with pytest.raises(ClewError, match="run.html is there and is not an HTML page, so it is not"):
        t.html(path)
    with pytest.raises(ClewError, match="run.html exists; .* say exist='replace' or 'keep'"):
        t.html(path, exist="error")
    for write in (t.save, t.html, lambda p, exist: clew.trace(out=p, exist=exist)):
        with pytest.raises(
            ClewError, match="exist='over' is not one of 'replace', 'keep', 'error'"
        ):
            write(tmp_path / "x", exist="over")
    assert os.listdir(tmp_path) == ["run.html"]


def test_an_empty_file_or_folder_is_free(t: clew.Trace, tmp_path: Path) -> None:
    (tmp_path / "run.html").touch()
    (tmp_path / "run.clew").mkdir()
    t.html(tmp_path / "run.html")
    t.save(tmp_path / "run.clew")
    assert len(list(tmp_path.iterdir())) == 2


@every_way
def test_new_is_understood_as_keep_with_a_warning(
    way: str, t: clew.Trace, saved: Path, tmp_path: Path
) -> None:
    if way.startswith("clew "):
        return
    name, write = writers(t, saved)[way]
    write(tmp_path / name)
    with pytest.warns(clew.ClewWarning, match="exist='new' is called exist='keep' now"):
        write(tmp_path / name, exist="new")
    assert len(list(tmp_path.iterdir())) == 2


def test_export_understands_its_earlier_option(saved: Path, tmp_path: Path) -> None:
    for _ in range(2):
        assert main(["export", str(saved), "csv", str(tmp_path / "x.csv"), "--replace"]) == 0
    assert os.listdir(tmp_path) == ["x.csv"]


def test_files_of_others_in_a_trace_outlive_it(t: clew.Trace, tmp_path: Path) -> None:
    for write in (t.save, lambda path: record(path, "second", exist="replace")):
        t.save(tmp_path / "run.clew")
        (tmp_path / "run.clew" / "notes.txt").write_text("mine")
        write(tmp_path / "run.clew")
        assert (tmp_path / "run.clew" / "notes.txt").read_text() == "mine"
        assert os.listdir(tmp_path) == ["run.clew"]


def record(path: Path, name: str, **options: Any) -> clew.Trace:
    layer = nn.Linear(2, len(name))
    with clew.trace(layer, values="full", out=path, name=name, **options) as trace:
        layer(torch.ones(1, 2))
    return trace


def names_in(folder: Path) -> dict[str, Any]:
    """What each trace of a folder is called, by the name of its folder."""
    return {path.name: clew.load(path).env["name"] for path in sorted(folder.iterdir())}


SCRIPT = """
import sys, torch, clew
with clew.trace(out="run.clew", name=sys.argv[1]):
    torch.ones(int(sys.argv[1]))
(op,) = clew.load("run.clew").ops
assert op.outputs[""].shape == (int(sys.argv[1]),), op
"""


def test_a_script_that_runs_twice_reads_what_it_just_wrote(tmp_path: Path) -> None:
    for number in ("1", "2", "3"):
        done = subprocess.run([sys.executable, "-c", SCRIPT, number], cwd=tmp_path)
        assert done.returncode == 0
    assert names_in(tmp_path) == {"run.clew": "3", "run.1.clew": "1", "run.2.clew": "2"}


def test_out_in_each_way(tmp_path: Path) -> None:
    path = tmp_path / "run.clew"
    record(path, "a")
    assert record(path, "b").path == path
    assert names_in(tmp_path) == {"run.clew": "b", "run.1.clew": "a"}
    record(path, "c", exist="replace")
    assert names_in(tmp_path) == {"run.clew": "c", "run.1.clew": "a"}
    with pytest.raises(ClewError, match="run.clew exists"):
        record(path, "d", exist="error")
    with pytest.warns(clew.ClewWarning, match="exist='new' is called"):
        record(path, "e", exist="new")
    assert names_in(tmp_path) == {"run.clew": "e", "run.1.clew": "a", "run.2.clew": "c"}


@pytest.mark.parametrize("exist", ["replace", "keep"])
def test_out_touches_no_folder_of_others(exist: str, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "manifest.json").write_text(json.dumps({"name": "not a trace"}))
    with pytest.raises(ClewError, match="is there and is not a trace, so it is not replaced"):
        record(tmp_path / "mine", "a", exist=exist)
    assert os.listdir(tmp_path / "mine") == ["manifest.json"]


def test_a_trace_that_lost_its_manifest_is_moved_too(tmp_path: Path) -> None:
    record(tmp_path / "run.clew", "a")
    (tmp_path / "run.clew" / "manifest.json").unlink()
    record(tmp_path / "run.clew", "b")
    assert clew.load(tmp_path / "run.clew").env["name"] == "b"
    assert os.listdir(tmp_path / "run.1.clew") == ["rank=00000"]


@pytest.mark.parametrize("exist", ["replace", "keep"])
def test_a_trace_whose_folder_was_replaced_says_so(exist: str, tmp_path: Path) -> None:
    tracer = record(tmp_path / "run.clew", "first")
    unread, read = (clew.load(tmp_path / "run.clew") for _ in range(2))
    value = read[""].values[0]
    record(tmp_path / "run.clew", "second", exist=exist)
    for ask in (
        lambda: len(unread.events), value.array, lambda: len(tracer.only(step=0).events)
    ):  # fmt: skip
        with pytest.raises(BadTrace, match="holds another run than the one that was opened there"):
            ask()


def test_a_trace_goes_on_into_no_other_run(tmp_path: Path) -> None:
    layer = nn.Linear(2, 2)
    first = clew.trace(layer, out=tmp_path / "run.clew", name="first")
    with first:
        layer(torch.ones(1, 2))
    record(tmp_path / "run.clew", "second")
    before = content(tmp_path / "run.clew")
    with pytest.warns(clew.ClewWarning, match="writing failed.*holds another run"):
        with first:
            layer(torch.ones(1, 2))
    assert content(tmp_path / "run.clew") == before


def test_saving_onto_the_place_it_was_loaded_from(tmp_path: Path) -> None:
    tracer = record(tmp_path / "run.clew", "a")
    data = tracer[""].values[0].array().tolist()
    assert tracer.save(tmp_path / "run.clew") == tmp_path / "run.clew"
    loaded = clew.load(tmp_path / "run.clew")
    assert loaded.save(tmp_path / "run.clew") == tmp_path / "run.clew"
    assert loaded[""].values[0].array().tolist() == data
    assert os.listdir(tmp_path) == ["run.clew"]


def test_a_tracer_reads_on_after_it_was_saved_onto_its_own_place(tmp_path: Path) -> None:
    tracer = record(tmp_path / "run.clew", "a")
    tracer.save(tmp_path / "run.clew")
    assert tracer[""].values[0].array().shape == (1, 1)


def test_what_is_being_written_is_neither_moved_nor_replaced(tmp_path: Path) -> None:
    path = tmp_path / "run.clew"
    with clew.trace(out=path, name="first") as first:
        torch.ones(1)
        said = f"is being written by process {os.getpid()}, which still runs"
        with pytest.raises(ClewError, match=f"{said}, so it is not replaced"):
            first.save(path)
        with pytest.raises(ClewError, match=f"{said}, so it is not replaced"):
            record(path, "second", exist="replace")
        with pytest.warns(clew.ClewWarning, match=f"{said}; this one is in .*run.1.clew"):
            first.save(path, exist="keep")
        with pytest.warns(clew.ClewWarning, match=f"{said}; this run goes to .*run.2.clew"):
            record(path, "third")
    assert names_in(tmp_path) == {"run.clew": "first", "run.1.clew": "first", "run.2.clew": "third"}


# Ranks are processes that claim a folder, without torch: a fork takes a millisecond.


def in_child(work: Callable[[], Any]) -> Callable[[], Any]:
    """Do something in a forked process; give a function that waits for what it returns."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writable, json.dumps(work()).encode())
        except BaseException as error:
            os.write(writable, json.dumps(repr(error)).encode())
        finally:
            os._exit(0)
    os.close(writable)

    def result() -> Any:
        with os.fdopen(readable) as pipe:
            found = json.loads(pipe.read())
        os.waitpid(child, 0)
        return found

    return result


def signed(found: Claim, say: str) -> str:
    """Write what a rank leaves behind, closed or not; the name of its folder."""
    (found.folder / "events-00000.parquet").write_text(say)
    if not say.endswith("closed"):
        TraceFiles(found.folder).sign()
    return found.folder.parent.name


def launch(
    path: Path, world: int, say: str, turns: int = 1, end: str = "", **options: Any
) -> list[list[str]]:
    """Run a job: a launcher that starts ranks, each of which claims a folder so many times."""

    def rank(number: int) -> list[str]:
        return [
            signed(
                claim(path, number, options.get("exist", "keep"), {}, world), f"{say} {turn}{end}"
            )
            for turn in range(turns)
        ]

    def launcher() -> list[list[str]]:
        os.environ.update(options.get("said", {}))
        waits = [in_child(lambda number=number: rank(number)) for number in range(world)]
        return [wait() for wait in waits]

    found: list[list[str]] = in_child(launcher)()
    return found


def contents(folder: Path) -> dict[str, set[str]]:
    """What ranks wrote into each folder, by its name."""
    return {
        path.name: {file.read_text() for file in path.glob("rank=*/*.parquet")}
        for path in sorted(folder.iterdir())
    }


STATIC = {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize("said", [{}, STATIC], ids=["spawned", "torchrun"])
def test_ranks_of_one_job_meet_in_the_newest_folder(said: dict[str, str], tmp_path: Path) -> None:
    """Also where the launcher gives jobs that follow each other the same names."""
    for number in range(6):
        found = launch(tmp_path / "run.clew", 4, f"job {number}", said=said)
        assert found == [["run.clew"]] * 4
    assert contents(tmp_path) == {
        "run.clew": {"job 5 0"}, **{f"run.{n + 1}.clew": {f"job {n} 0"} for n in range(5)}
    }  # fmt: skip
    assert all(len(list(path.glob("rank=*"))) == 4 for path in tmp_path.iterdir())


def test_ranks_that_trace_twice_meet_in_two_folders(tmp_path: Path) -> None:
    launch(tmp_path / "run.clew", 3, "job", turns=3, end=" closed")
    found = contents(tmp_path)
    assert sorted(map(sorted, found.values())) == [[f"job {turn} closed"] for turn in range(3)]
    assert all(len(list(path.glob("rank=*"))) == 3 for path in tmp_path.iterdir())


def test_a_job_replaces_the_one_before_it(tmp_path: Path) -> None:
    launch(tmp_path / "run.clew", 4, "first")
    launch(tmp_path / "run.clew", 2, "second", exist="replace")
    assert contents(tmp_path) == {"run.clew": {"second 0"}}
    assert len(list((tmp_path / "run.clew").glob("rank=*"))) == 2


def test_a_rank_does_not_join_a_run_that_another_job_left_unfinished(tmp_path: Path) -> None:
    launch(tmp_path / "run.clew", 2, "first", said=STATIC)
    shutil.rmtree(tmp_path / "run.clew" / "rank=00001")
    launch(tmp_path / "run.clew", 2, "second", said=STATIC)
    assert contents(tmp_path) == {"run.clew": {"second 0"}, "run.1.clew": {"first 0"}}


def test_jobs_that_begin_at_once_never_share_a_folder(tmp_path: Path) -> None:
    def job(number: int) -> list[list[str]]:
        return launch(tmp_path / "run.clew", 1, f"job {number}")

    waits = [in_child(lambda number=number: job(number)) for number in range(12)]
    assert all(len(wait()) == 1 for wait in waits)
    found = contents(tmp_path)
    assert sorted(map(sorted, found.values())) == sorted([f"job {n} 0"] for n in range(12))

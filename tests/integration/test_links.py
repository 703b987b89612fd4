"""No link leads out of a trace: no command reads, writes or removes anything through one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

import clew
from clew.cli.main import main
from clew.errors import BadTrace, ClewError
from clew.store.write.recovery import recover

COMMANDS = (["info"], ["show"], ["code"], ["value", ""], ["recover"])


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace that was closed; beside it `killed.clew`, which was not, and has open files."""
    model = nn.Linear(2, 3000)

    def record(folder: Path, cut_off: bool) -> None:
        with clew.trace(model, values="full", out=folder) as t:
            model(torch.ones(1, 2))
            t.flush()
            if cut_off:
                os._exit(0)

    record(tmp_path / "run.clew", cut_off=False)
    child = os.fork()
    if child == 0:
        record(tmp_path / "killed.clew", cut_off=True)
    os.waitpid(child, 0)
    return tmp_path / "run.clew"


def listing(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("name", ["run.clew", "killed.clew"])
def test_a_linked_rank_folder_is_left_alone(trace: Path, name: str) -> None:
    outside = trace.parent / "outside"
    shutil.copytree(trace.parent / name / "rank=00000", outside)
    (outside / "events-00007.tmp").write_text("mine")
    (outside / ".x.tmp").write_text("mine")
    os.symlink(outside, trace / "rank=00001")
    before = listing(outside)
    t = clew.load(trace)
    assert t.ranks == [0]
    (gap,) = [g for g in t.coverage if g.what == "rank=00001"]
    assert "it is a link" in gap.why
    for command, *rest in COMMANDS:
        assert main([command, str(trace), *rest]) in (0, 1)
    assert "rank=00001: left alone, it is a link" in recover(trace)
    t.save(trace, exist="replace")
    assert listing(outside) == before


def test_a_trace_of_links_alone_says_why_it_is_empty(trace: Path) -> None:
    os.rename(trace / "rank=00000", trace.parent / "outside")
    os.symlink(trace.parent / "outside", trace / "rank=00000")
    with pytest.raises(BadTrace, match="holds no rank=. folder: .*rank=00000.*it is a link"):
        clew.load(trace)
    for command, *rest in COMMANDS[:-1]:
        assert main([command, str(trace), *rest]) == 2


@pytest.mark.parametrize("folder", ["run.clew", "killed.clew"])
def test_a_linked_file_is_neither_read_nor_written(trace: Path, folder: str) -> None:
    """Every file of a trace in turn is a link to a copy of it outside."""
    original = trace.parent / folder
    names = [str(path.relative_to(original)) for path in original.rglob("*") if path.is_file()]
    whole = len(clew.load(original).events)
    assert len(names) >= 5
    for number, name in enumerate(names):
        copy, outside = trace.parent / f"{number}.clew", trace.parent / f"outside-{number}"
        shutil.copytree(original, copy)
        outside.mkdir()
        os.rename(copy / name, outside / "file")
        os.symlink(outside / "file", copy / name)
        before = listing(outside)
        for command, *rest in COMMANDS:
            assert main([command, str(copy), *rest]) in (0, 1, 2)
        assert listing(outside) == before, name
        try:
            t = clew.load(copy)
            events = len(t.events)
            arrays = [value.array() for value in t[""].values if "shard" in name]
        except ClewError:
            continue
        assert not arrays, name
        assert ".footer" in name or "shard" in name or events < whole or t.coverage, name


def test_half_written_files_of_clew_alone_are_removed(trace: Path) -> None:
    killed = trace.parent / "killed.clew" / "rank=00000"
    for name in ("events-00000.tmp", "events-00000.footer.tmp", ".x.tmp", "notes.tmp"):
        (killed / name).write_text("half")
    done = recover(killed.parent)
    assert [line for line in done if "half-written" in line] == [
        "rank=00000/events-00000.footer.tmp: half-written copy removed",
        "rank=00000/events-00000.tmp: half-written copy removed",
    ]
    assert {".x.tmp", "notes.tmp"} <= set(os.listdir(killed))
    assert recover(killed.parent) == []

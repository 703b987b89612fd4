"""Places that refuse: full, read-only, removed, taken; and runs of several ranks that share one.

The program runs on whatever happens to its trace; what was written is readable; it is said once.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import clew
from clew.store.write import trace_writer
from tests.processes import HANG_GUARD

ROOT = Path(__file__).parents[2]

MOUNTED = """
import json, sys, warnings
from pathlib import Path
import torch
import clew

folder = Path(sys.argv[1])

def program(t):
    for step in range(40):
        torch.full((20_000,), float(step)) * 2
        t.step()
    return step
"""


def in_mount(options: str, folder: Path, program: str) -> dict[str, Any]:
    """Run a program with a small file system of its own at a folder; the JSON it prints."""
    folder.mkdir()
    mount = f'mount -t tmpfs -o {options} tmpfs {folder} && exec {sys.executable} -c "$1" {folder}'
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh", MOUNTED + program],
        capture_output=True,
        text=True,
        timeout=HANG_GUARD,
        cwd=ROOT,
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


needs_mounts = pytest.mark.skipif(not shutil.which("unshare"), reason="needs Linux and unshare")


@needs_mounts
@pytest.mark.parametrize("size", ["300k", "1m", "3m"])
def test_a_full_disk_is_said_once_and_the_program_runs_on(size: str, tmp_path: Path) -> None:
    found = in_mount(
        f"size={size}",
        tmp_path / "small",
        """
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    with clew.trace(values="full", out=folder / "run.clew") as t:
        last = program(t)
loaded = clew.load(folder / "run.clew")
right = wrong = lost = 0
for event in loaded.ops:
    try:
        array = event.outputs[""].array()
        factor = 2 if "mul" in event.name else 1
        right += bool((array == event.step * factor).all())
        wrong += not (array == event.step * factor).all()
    except clew.ClewError:
        lost += 1
steps = loaded.steps
print(json.dumps({
    "last": last, "warned": [str(w.message) for w in warned], "right": right, "wrong": wrong,
    "lost": lost, "steps": steps, "gaps": [g.why for g in t.coverage],
    "loaded": [g.why for g in loaded.coverage],
}))
""",
    )
    assert found["last"] == 39
    (message,) = found["warned"]
    assert "No space left on device" in message
    assert "what was written is readable" in message
    assert sum("No space left" in why for why in found["gaps"]) == 1
    # A beginning of the run is there, every value of it right, and its end is said to be missing.
    assert found["wrong"] == found["lost"] == 0
    assert found["steps"] == list(range(len(found["steps"])))
    assert found["right"] >= 2 * (len(found["steps"]) - 1)
    assert any("was not closed" in why for why in found["loaded"])
    if size == "3m":
        assert len(found["steps"]) > 10


@needs_mounts
def test_a_full_disk_refuses_a_save_and_leaves_nothing_behind(tmp_path: Path) -> None:
    found = in_mount(
        "size=1m",
        tmp_path / "small",
        """
with clew.trace(values="full") as t:
    program(t)
try:
    t.save(folder / "run.clew")
    message = "saved"
except clew.ClewError as error:
    message = str(error)
print(json.dumps({"message": message, "left": [p.name for p in folder.iterdir()]}))
""",
    )
    assert "cannot write a trace to" in found["message"]
    assert "No space left on device" in found["message"]
    assert found["left"] == []


@needs_mounts
def test_the_program_goes_on_where_a_trace_cannot_be_written(tmp_path: Path) -> None:
    found = in_mount(
        "ro",
        tmp_path / "fixed",
        """
said = []
for name, exist in (("run.clew", "keep"), ("run.clew", "replace")):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with clew.trace(values="full", out=folder / name, exist=exist) as t:
            total = torch.ones(3).sum().item()
    kept = t["op:aten.ones.default"].value.tolist()
    gaps = [str(gap) for gap in t.coverage]
    said.append([total, kept, str(t.path), gaps, [str(w.message) for w in caught]])
try:
    t.save(folder / "run.clew")
except clew.ClewError as error:
    message = str(error)
print(json.dumps({"said": said, "message": message}))
""",
    )
    for total, kept, path, gaps, warned in found["said"]:
        assert (total, kept, path) == (3.0, [1.0, 1.0, 1.0], "None")
        assert gaps == warned
        (gap,) = gaps
        assert gap.startswith("the trace on disk: cannot write")
        assert "Read-only file system" in gap
        assert gap.endswith("the trace is kept in memory; save it, or choose another out=")
    assert found["message"].startswith("cannot write a trace to")


@pytest.mark.parametrize("when", ["before anything was written", "later"])
def test_a_folder_that_is_removed_while_it_is_written(when: str, tmp_path: Path) -> None:
    done = []
    with pytest.warns(clew.ClewWarning, match="writing failed") as warned:
        with clew.trace(values="full", out=tmp_path / "run.clew") as t:
            if when == "later":
                torch.ones(20_000)
                t.flush()
            shutil.rmtree(tmp_path / "run.clew")
            for _ in range(5):
                done.append(torch.ones(20_000).sum().item())
                t.step()
            t.flush()
    assert done == 5 * [20_000.0]
    assert len([w for w in warned if "writing failed" in str(w.message)]) == 1
    (gap,) = [g for g in t._session.gaps if "writing failed" in g.why]
    assert gap.what == "events from here on"
    assert len(set(t.coverage)) == len(t.coverage)
    assert not (tmp_path / "run.clew").exists()


def test_two_writers_on_one_path_each_get_their_own(tmp_path: Path) -> None:
    traces = [clew.trace(out=tmp_path / "run.clew", name=str(n)) for n in range(2)]
    traces[0].start()
    torch.ones(1)
    said = f"run.clew is being written by process {os.getpid()}.*goes to .*run.1.clew"
    with pytest.warns(clew.ClewWarning, match=said):
        traces[1].start()
    torch.ones(2)
    for t in reversed(traces):
        t.stop()
    assert [t.path.name for t in traces] == ["run.clew", "run.1.clew"]
    for number, t in enumerate(traces):
        loaded = clew.load(t.path)
        assert loaded.env["name"] == str(number)
        assert loaded.ops[-1].outputs[""].shape == (2,)


RACER = """
import sys, time
import torch, clew
print("ready", flush=True)
sys.stdin.readline()
with clew.trace(out=sys.argv[1], name=sys.argv[2]) as t:
    torch.full((3,), float(sys.argv[2]))
print(t.path.name)
"""


def test_processes_that_race_for_one_path_never_share_it(tmp_path: Path) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(tmp_path / "run.clew"), str(number)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for number in range(3)
    ]  # fmt: skip
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    names = [racer.communicate("go\n", timeout=HANG_GUARD)[0].strip() for racer in racers]
    # One that has ended may be moved by the next, one that runs is not.
    assert len(names) == 3
    found = [clew.load(path) for path in tmp_path.iterdir()]
    assert sorted(t.env["name"] for t in found) == ["0", "1", "2"]
    for t in found:
        (event,) = t.events
        assert event.outputs[""].shape == (3,)


RANK = """
import os, signal, sys
import torch, clew
rank = int(os.environ["RANK"])
with clew.trace(values="full", out=sys.argv[1]) as t:
    for step in range(5):
        torch.full((3000,), float(10 * rank + step))
        t.flush()
        if rank == 1 and step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        t.step()
"""


def run_ranks(folder: Path, world: int, port: str) -> None:
    shared = {**os.environ, "WORLD_SIZE": str(world), "MASTER_ADDR": "a", "MASTER_PORT": port}
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, str(folder)], env={**shared, "RANK": str(n)})
        for n in range(world)
    ]
    codes = [rank.wait(timeout=HANG_GUARD) for rank in ranks]
    assert codes == [-signal.SIGKILL if n == 1 else 0 for n in range(world)]


@pytest.fixture(scope="module")
def three_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three processes, of which rank 1 was killed in step 2."""
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(folder / "run.clew", 3, "1")
    assert [p.name for p in folder.iterdir()] == ["run.clew"]
    return folder / "run.clew"


def test_a_killed_rank_is_readable_and_says_where_it_stopped(
    three_ranks: Path, tmp_path: Path
) -> None:
    shutil.copytree(three_ranks, tmp_path / "run.clew")
    t = clew.load(tmp_path / "run.clew")
    assert t.ranks == [0, 1, 2]
    series = t.series("op:aten.full.default")
    found = list(zip(series.ranks, [int(v.array()[0]) for v in series.values], strict=True))
    assert found == [(r, 10 * r + n) for r in range(3) for n in range(3 if r == 1 else 5)]
    (gap,) = t.coverage
    assert (gap.what, gap.where) == ("the end of the run", "rank 1")
    last = [e for e in t.events if e.rank == 1][-1]
    assert f"the last that is there is event {last.id} of step 2" in gap.why
    # Another job on the same path does not mix with it, and the name holds the newest.
    run_ranks(tmp_path / "run.clew", 2, "2")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.1.clew", "run.clew"]
    assert clew.load(tmp_path / "run.clew").ranks == [0, 1]
    assert clew.load(tmp_path / "run.1.clew").ranks == [0, 1, 2]


def test_a_rank_that_is_damaged_does_not_hide_the_others(three_ranks: Path, tmp_path: Path) -> None:
    shutil.copytree(three_ranks, tmp_path / "run.clew")
    for path in (tmp_path / "run.clew" / "rank=00002").glob("*.parquet"):
        path.write_bytes(b"nothing")
    t = clew.load(tmp_path / "run.clew")
    assert len([e for e in t.events if e.rank == 0]) == 10
    assert any("rank=00002" in gap.where for gap in t.coverage)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Hold the writer at its first events; an event that lets go, and one that says it is there."""
    go_on, reached = threading.Event(), threading.Event()
    write = trace_writer.TraceFiles.write_events

    def slow(self: Any, *args: Any, **options: Any) -> None:
        reached.set()
        go_on.wait()
        write(self, *args, **options)

    monkeypatch.setattr(trace_writer.TraceFiles, "write_events", slow)
    return go_on, reached


def test_the_program_waits_for_a_writer_too_far_behind(
    tmp_path: Path, held: tuple[threading.Event, threading.Event]
) -> None:
    go_on, reached = held
    done: list[int] = []
    step = 4 * 20_000

    def program() -> None:
        limits = clew.Limits(queue=3 * step)
        with clew.trace(values="full", out=tmp_path / "run.clew", limits=limits) as t:
            for number in range(10):
                torch.full((20_000,), float(number))
                t.step()
                done.append(number)

    thread = threading.Thread(target=program)
    thread.start()
    reached.wait()
    thread.join(0.5)
    assert thread.is_alive()
    # What is being written counts: two steps and the little that is around them.
    assert len(done) <= 2
    go_on.set()
    thread.join()
    assert len(clew.load(tmp_path / "run.clew").ops) == 10


def test_what_is_larger_than_the_queue_is_written_all_the_same(tmp_path: Path) -> None:
    with clew.trace(values="full", out=tmp_path / "run.clew", limits=clew.Limits(queue=1)) as t:
        for number in range(3):
            torch.full((20_000,), float(number))
            t.step()
    values = clew.load(tmp_path / "run.clew")["op:aten.full.default"].values
    assert [value.array()[0] for value in values] == [0, 1, 2]
    for wrong in (0, -1, None, True):
        with pytest.raises(clew.ClewError, match=r"Limits\(queue=.*give a positive number"):
            clew.Limits(queue=wrong)


def test_a_path_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    for attempt in (
        lambda: clew.trace(out=tmp_path / "run").start(),
        lambda: clew.trace(nn.ReLU(), out=tmp_path / "run", exist="replace").start(),
    ):
        with pytest.raises(clew.ClewError, match="is a file; give a folder, such as run.clew"):
            attempt()
    assert (tmp_path / "run").read_text() == "mine"

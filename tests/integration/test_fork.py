"""A forked child leaves the blocks of its parent as if there were none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.data import DataLoader

import clew
import clew.watching

EXIT, RAISED, WRONG = 23, 24, 25


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        return x.relu()


class Own(Exception):
    """What a child raises."""


def exits() -> None:
    sys.exit(EXIT)


def raises() -> None:
    raise Own


def returns() -> None:
    pass


LEAVING = {exits: EXIT, raises: RAISED, returns: 0}
leaving = pytest.mark.parametrize("leave", LEAVING, ids=lambda leave: leave.__name__)


class Forked:
    """Forks where it is called, in each child to leave the blocks around it in some way."""

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave
        self._parent = os.getpid()
        self.codes: list[int] = []

    def __call__(self) -> None:
        child = os.fork()
        if child:
            self.codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        else:
            assert not _get_current_dispatch_mode_stack()
            self._leave()

    def program(self, run: Callable[[], object]) -> None:
        """Run a program that forks; each child ends here, with what came out of it."""
        code = WRONG
        try:
            run()
            code = 0
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else WRONG
        except Own as own:
            code = WRONG if getattr(own, "__notes__", ()) else RAISED
        except BaseException:
            if os.getpid() == self._parent:
                raise
        finally:
            if os.getpid() != self._parent:
                os._exit(code)


@leaving
def test_a_forked_child_leaves_a_block(leave: Callable[[], None], tmp_path: Path) -> None:
    model, fork = Block(), Forked(leave)
    traces: list[clew.Trace] = []

    def run() -> None:
        with clew.trace(model, level="modules") as outer, clew.trace(model) as inner:
            model(torch.ones(1, 2))
            fork()
            assert inner.step() == 1
            model(torch.ones(1, 2))
            inner.flush()
        traces[:] = outer, inner
        assert [len(t[""]) for t in traces] == [1 if os.getpid() != fork._parent else 2] * 2

    fork.program(run)
    assert fork.codes == [LEAVING[leave]]
    inner = traces[1]
    assert inner.steps == [0, 1]
    assert [gap.what for gap in inner.coverage if "fork" in gap.what] == ["a forked process"]


@leaving
def test_a_forked_child_leaves_a_decorated_function(leave: Callable[[], None]) -> None:
    model, fork = Block(), Forked(leave)
    trace = clew.trace(model)

    @trace
    def forward() -> None:
        model(torch.ones(1, 2))
        fork()

    fork.program(forward)
    assert fork.codes == [LEAVING[leave]]
    assert len(trace[""]) == 1


@leaving
def test_a_forked_child_stops_what_was_started(leave: Callable[[], None]) -> None:
    model, fork = Block(), Forked(leave)
    trace = clew.trace(model)

    def run() -> None:
        trace.start()
        try:
            model(torch.ones(1, 2))
            fork()
        finally:
            trace.stop()
        assert not trace.recording

    fork.program(run)
    assert fork.codes == [LEAVING[leave]]
    assert len(trace[""]) == 1


@pytest.mark.parametrize("values", ["full", "meta"])
def test_a_forked_child_writes_nothing_into_the_parents_folder(values: str, tmp_path: Path) -> None:
    model, out = Block(), tmp_path / "run.clew"
    fork = Forked(exits)
    before: dict[str, bytes] = {}

    def run() -> None:
        with clew.trace(model, out=out, values=values, capture=["forward.x"]) as t:
            model(torch.ones(1, 2))
            t.flush()
            before.update(files(tmp_path))
            fork()
            assert files(tmp_path) == before
            model(torch.ones(1, 2))
            t.step()

    fork.program(run)
    assert fork.codes == [EXIT]
    assert len(clew.load(out)[""]) == 2


def files(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("out", [True, False], ids=["folder", "memory"])
def test_a_trace_entered_anew_in_a_fork_says_that_it_records_nothing(
    out: bool, tmp_path: Path
) -> None:
    """With a folder also where it did not record when the process forked."""
    model, folder = Block(), tmp_path / "run.clew"
    trace = clew.trace(model, out=folder if out else None)
    fork = Forked(returns)

    def run() -> None:
        with trace:
            model(torch.ones(1, 2))
            if not out:
                fork()
        if out:
            fork()
        if os.getpid() == fork._parent:
            return
        before = files(tmp_path)
        with pytest.warns(UserWarning, match="open a clew.trace in this process"), trace:
            model(torch.ones(1, 2))
        assert files(tmp_path) == before
        with clew.trace(model) as own:
            model(torch.ones(1, 2))
        assert len(own[""]) == 1

    fork.program(run)
    assert fork.codes == [0]
    assert len(trace[""]) == 1


@leaving
@pytest.mark.parametrize("within", [True, False], ids=["in a trace", "alone"])
def test_a_forked_child_leaves_watches(
    leave: Callable[[], None], within: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fork = Forked(leave)

    @clew.watch("y", out=tmp_path / "deco.log")
    def double(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        fork()
        y = y + 1
        return y

    def run() -> None:
        if within:
            with clew.trace(watch=["y"], live=True):
                inner()
        else:
            inner()

    def inner() -> None:
        with clew.watch("y", out=tmp_path / "block.log"):
            double(torch.ones(2))

    fork.program(run)
    assert fork.codes == [LEAVING[leave]]
    written = sorted(path.name for path in tmp_path.iterdir())
    assert len(written) == 2, "a child wrote a file of its own"
    for name in written:
        assert "Own" not in (tmp_path / name).read_text(), "what a child raised"
    assert "Own" not in capfd.readouterr().out


class Three(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> torch.Tensor:
        item = torch.tensor([float(index)])
        return clew.tap("item", item)


@pytest.mark.parametrize("watched", [True, False], ids=["watch", "trace"])
def test_a_forked_child_leaves_the_folder_of_workers_alone(watched: bool) -> None:
    """Workers go on telling the parent after a child has left the block."""
    fork = Forked(raises)
    # Outlives the child, where torch would end the workers with it.
    loader = DataLoader(Three(), num_workers=1, multiprocessing_context="fork", prefetch_factor=1)
    items: list[Iterator[torch.Tensor]] = []
    block = (
        clew.watch("item", out=False)
        if watched
        else clew.trace(capture=["test_fork.py:Three.__getitem__.item"])
    )

    def run() -> None:
        with block:
            items.append(iter(loader))
            next(items[0])
            fork()
            list(items[0])

    fork.program(run)
    assert fork.codes == [RAISED]
    trace = block.trace if isinstance(block, clew.watching.Watch) else block
    found = [event for event in trace.variables if event.name == "item"]
    assert [event.outputs[""].stats.max for event in found] == [0, 1, 2]


PROGRAM = """
import os, sys, torch, clew
out = sys.argv[1]
model = torch.nn.Linear(2, 2)
with clew.trace(model, out=out, capture=["weight:param"]) as t:
    model(torch.ones(1, 2))
    t.step()
    child = os.fork()
    if child == 0:
        sys.exit(3)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    model(torch.ones(1, 2))
print(len(clew.load(out)[""]), len(clew.load(out).coverage))
"""


def test_a_forked_child_ends_as_processes_do(tmp_path: Path) -> None:
    """With all that runs at the end of an interpreter."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program), str(tmp_path / "run.clew")],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.split() == ["3", "2", "1"]

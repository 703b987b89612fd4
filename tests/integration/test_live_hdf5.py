"""A folder is exported to HDF5 at any time: while it is written, and after a kill."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import h5py
import pytest

SIZE = 3000

# Says the step that was flushed. Waits for a line after the first steps, then goes on for ever.
PROGRAM = f"""
import sys
import torch
import clew

class Net(torch.nn.Module):
    def forward(self, step):
        return torch.full(({SIZE},), step)

net = Net()
with clew.trace(net, values="full", out="run.clew") as t:
    step = 0
    while True:
        net(float(step))
        clew.tap("loss", step / 2)
        t.flush()
        print(step, flush=True)
        if step == 2:
            sys.stdin.readline()
        t.step()
        step += 1
"""


@pytest.fixture
def child(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    yield process
    process.kill()
    process.communicate()


def said(process: subprocess.Popen[str]) -> int:
    stream: IO[str] = process.stdout  # type: ignore[assignment]
    return int(stream.readline())


def exported(folder: Path, name: str) -> dict[str, Any]:
    """The steps and values of each address, by the command that users are told to write."""
    done = subprocess.run(
        [sys.executable, "-m", "clew", "export", "run.clew", "hdf5", name],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    with h5py.File(folder / name) as file:
        return {
            address: (group["steps"][:].tolist(), group["values"][:])
            for address, group in file.items()
        }


def assert_up_to(found: dict[str, Any], step: int) -> None:
    """Every step up to one that was flushed, perhaps more, each with its own values."""
    for address, factor in (("(root)", 1.0), ("loss", 0.5)):
        steps, values = found[address]
        assert steps == list(range(len(steps)))
        assert len(steps) > step
        assert [value.flat[0] for value in values] == [factor * n for n in steps]
    assert found["(root)"][1].shape[1:] == (SIZE,)
    assert (found["(root)"][1] == found["(root)"][1][:, :1]).all()


def test_a_folder_is_exported_while_it_is_written_and_after_a_kill(
    child: subprocess.Popen[str], tmp_path: Path
) -> None:
    while said(child) < 2:
        pass
    found = exported(tmp_path, "waiting.h5")
    assert_up_to(found, 2)
    assert [len(steps) for steps, _ in found.values()] == [3, 3]
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()
    last = said(child)
    assert_up_to(exported(tmp_path, "running.h5"), last)
    assert child.poll() is None
    for _ in range(20):
        last = said(child)
    child.kill()
    child.wait()
    assert_up_to(exported(tmp_path, "killed.h5"), last)

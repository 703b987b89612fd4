"""Files from strangers: damaged or hostile, they give data or a ClewError, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from torch import Tensor, nn

import clew
from clew.store import disk


class Net(nn.Module):
    """A call, a direct call, a constant of each kind, in as few events as it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: Tensor, **options: object) -> Tensor:
        y = self.linear(x) + self.linear.forward(x)
        return y.relu_()


def make_traces(folder: Path) -> None:
    """Small traces of every kind: sealed, live, in many parts, of several ranks, crashed."""
    net, inline = Net(), disk._INLINE

    def program(t: clew.Trace) -> None:
        y = net(torch.ones(1, 2), flag=None, scale=1.5, sizes=[1, 2], mode="x", kind=torch.int8)
        y.sum().backward()
        t.step()
        torch.full((5,), 2)

    with clew.trace(net, values="full") as sealed:
        program(sealed)
    sealed.save(folder / "sealed.clew")
    disk._INLINE = 8
    try:
        with clew.trace(net, values="full", out=folder / "parts.clew") as parts:
            program(parts)
            parts.flush()
            shutil.copytree(folder / "parts.clew", folder / "live.clew")
        with parts:
            torch.ones(3).to_sparse()
    finally:
        disk._INLINE = inline
    crashed = clew.trace(net, values="stats")
    try:
        with crashed:
            net(torch.ones(1, 3))
    except RuntimeError:
        pass
    columns = crashed._current_reader().columns
    columns.rank = 1
    shutil.copytree(sealed.save(folder / "ranks.clew"), folder / "x")
    crashed.save(folder / "crashed.clew")
    shutil.rmtree(folder / "x")
    shutil.copytree(folder / "crashed.clew" / "rank=00001", folder / "ranks.clew" / "rank=00001")

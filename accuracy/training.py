"""Crashes planted in training: the backward pass, memory, DataLoader workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accuracy.planted import Planted


class Policy(nn.Module):
    """A body and a head."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.head = nn.Linear(8, 2)
        self.memory = nn.GRU(4, 4, batch_first=True)
        self.fault = fault

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.body(x))
        if self.fault == "write":
            h[:, 0] = 0  # the write that the note must name
        return self.head(h.detach() if self.fault == "detach" else h)


class Numbers(torch.utils.data.Dataset[Tensor]):
    """A dataset with one bad sample."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Tensor:
        value = torch.ones(4)
        return value.view(5) if index == 3 else value


def _write() -> tuple[nn.Module, Callable[[], Any]]:
    model = Policy("write")

    def run() -> None:
        loss = model(torch.ones(3, 4)).sum()
        loss.backward()  # crash: train-write

    return model, run


def _early_step() -> tuple[nn.Module, Callable[[], Any]]:
    model = Policy()
    optimizer = torch.optim.Adam(model.parameters())

    def run() -> None:
        actor, critic = model(torch.ones(3, 4)).mean(), model(torch.ones(3, 4)).var()
        actor.backward()
        optimizer.step()
        critic.backward()  # crash: train-step

    return model, run


def _no_grad() -> tuple[nn.Module, Callable[[], Any]]:
    model = Policy()

    def run() -> None:
        with torch.no_grad():
            logits = model(torch.ones(3, 4))
        loss = F.mse_loss(logits, torch.zeros(3, 2))
        loss.backward()  # crash: train-no-grad

    return model, run


def _argmax() -> tuple[nn.Module, Callable[[], Any]]:
    model = Policy()

    def run() -> None:
        choice = model(torch.ones(3, 4)).argmax(-1)
        loss = F.mse_loss(choice.float(), torch.zeros(3))
        loss.backward()  # crash: train-argmax

    return model, run


def _twice() -> tuple[nn.Module, Callable[[], Any]]:
    model = Policy()

    def run() -> None:
        shared = model(torch.ones(3, 4))
        shared.sum().backward()
        shared.mean().backward()  # crash: train-twice

    return model, run


def _carried() -> tuple[nn.Module, Callable[[], Any]]:
    model = Policy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run() -> None:
        state = torch.zeros(1, 2, 4)
        for _ in range(3):
            out, state = model.memory(torch.ones(2, 5, 4), state)
            optimizer.zero_grad()
            out.mean().backward()  # crash: train-carried

    return model, run


def _vector() -> tuple[nn.Module, Callable[[], Any]]:
    model = Policy()

    def run() -> None:
        losses = F.cross_entropy(model(torch.ones(3, 4)), torch.zeros(3).long(), reduction="none")
        losses.backward()  # crash: train-vector

    return model, run


def _memory() -> tuple[nn.Module, Callable[[], Any]]:
    model = Policy()

    def run() -> None:
        h = model(torch.ones(3, 4))
        h.repeat(10**7, 10**7)  # crash: train-memory

    return model, run


def _worker() -> tuple[nn.Module | None, Callable[[], Any]]:
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=1)

    def run() -> None:
        for batch in loader:  # crash: train-worker
            batch.sum()

    return None, run


CRASHES = [
    Planted("train-write", "in-place write", _write, None, ("loss",),
            ("written by aten.fill_", "kept by aten.tanh"), "a new tensor"),
    Planted("train-step", "in-place write", _early_step, None, ("critic",),
            ("optimizer.step()",), r"backward\(\) before optimizer.step\(\)"),
    Planted("train-no-grad", "no gradient", _no_grad, None, ("loss",),
            ("gradients were off",), "outside of torch.no_grad"),
    Planted("train-argmax", "no gradient", _argmax, None, ("loss",), ("cut by aten.argmax",), None),
    Planted("train-twice", "second backward", _twice, None, ("shared.mean()",),
            ("shared.sum().backward()",), "retain_graph"),
    Planted("train-carried", "second backward", _carried, None, ("out.mean()",),
            ("out.mean().backward()",), "detach"),
    Planted("train-vector", "no scalar", _vector, None, ("losses",), ("[3]",), "mean|sum"),
    Planted("train-memory", "memory", _memory, None, ("h",), ("TiB", "parameters"), None),
    Planted("train-worker", "worker", _worker, None, ("Numbers",), ("worker 0", "sample 3"), None),
]  # fmt: skip

"""Clean programs: architectures without a fault, trained and evaluated for a few steps.

Whoever looks for faults must find none in these. Each trains on batches of its own, made by a rule
that can be learned, so that its loss goes down. `clean_programs()` yields `(name, program)`:

    for name, program in clean_programs():
        program("train", "float32")           # or "eval", and "bfloat16" for autocast

or, to trace it, `model, step = program.prepare("train", "float32")`, then `step()` several times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

MODES = ("train", "eval")
DTYPES = ("float32", "bfloat16")


class Task(NamedTuple):
    """A model, and its losses with the parameters that each of them trains (None: all)."""

    model: nn.Module
    losses: list[tuple[Callable[[], Tensor], Iterable[nn.Parameter] | None]]
    after_step: Callable[[], None] = lambda: None
    # Some losses differentiate inside (a gradient penalty), in eval too.
    differentiates: bool = False


@dataclass(frozen=True)
class CleanProgram:
    """A program without a fault, by the function that makes its model and losses."""

    name: str
    build: Callable[[], Task]

    def prepare(self, mode: str = "train", dtype: str = "float32") -> tuple[nn.Module, Step]:
        """Return the model and a function that runs one step of training or evaluation."""
        torch.manual_seed(0)
        task = self.build()
        task.model.train(mode == "train")
        if mode == "eval":
            return task.model, _evaluation(task, dtype)
        return task.model, _training(task, dtype)

    def __call__(self, mode: str = "train", dtype: str = "float32", steps: int = 3) -> list[float]:
        """Run a few steps and return the loss of each."""
        _, step = self.prepare(mode, dtype)
        return [step() for _ in range(steps)]


Step = Callable[[], float]


def clean_programs() -> Iterator[tuple[str, CleanProgram]]:
    """Yield the name and the program of each clean architecture."""
    # They need `Task` of this file.
    from accuracy import clean_generative, clean_sequences, clean_structures, clean_vision

    for room in (clean_vision, clean_sequences, clean_structures, clean_generative):
        for build in room.BUILDS:
            name = build.__name__.replace("_", "-")
            yield name, CleanProgram(name, build)


def one_loss(model: nn.Module, loss: Callable[[], Tensor]) -> Task:
    """Return the task of a model with one loss for all of its parameters."""
    return Task(model, [(loss, None)])


def _training(task: Task, dtype: str) -> Step:
    parts = []
    for loss, parameters in task.losses:
        trained = [p for p in parameters or task.model.parameters() if p.requires_grad]
        parts.append((loss, torch.optim.AdamW(trained, lr=1e-3)))

    def step() -> float:
        total = 0.0
        for loss, optimizer in parts:
            optimizer.zero_grad()
            with _autocast(dtype):
                value = loss()
            value.backward()
            optimizer.step()
            total += value.item()
        task.after_step()
        return total

    return step


def _evaluation(task: Task, dtype: str) -> Step:
    def step() -> float:
        with torch.set_grad_enabled(task.differentiates), _autocast(dtype):
            return sum(loss().item() for loss, _ in task.losses)

    return step


def _autocast(dtype: str) -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bfloat16")


class ClassBatches:
    """Batches whose samples are noise around the middle of their class."""

    def __init__(self, *shape: int, classes: int = 4, batch: int = 8) -> None:
        self.middles = torch.randn(classes, *shape)
        self.classes, self.batch = classes, batch

    def __call__(self) -> tuple[Tensor, Tensor]:
        """Return samples and their classes."""
        labels = torch.randint(self.classes, (self.batch,))
        middles = self.middles[labels]
        return middles + 0.3 * torch.randn_like(middles), labels


def token_batch(batch: int = 4, length: int = 10, words: int = 20) -> tuple[Tensor, Tensor]:
    """Return sequences that count upwards from a random word, and what follows each word."""
    start = torch.randint(words, (batch, 1))
    tokens = (start + torch.arange(length + 1)) % words
    return tokens[:, :-1], tokens[:, 1:]

"""What writing and reading traces costs, beside `write()`, `torch.save` and h5py.

Each subject stores the same tensors into a folder of its own, which goes when what the subject
returned goes, after the clock was read. Throughput is wall-clock time, as writing happens beside
the program; what the forward is held up by is the CPU time of its own thread.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

import clew
from bench.timing import Effort, Subject, best_times
from bench.workloads import Workload

Folder = tempfile.TemporaryDirectory[str]


def large_tensors(count: int) -> list[Tensor]:
    """Tensors of 4 MB, no two alike."""
    torch.manual_seed(0)
    return [torch.randn(1 << 20) for _ in range(count)]


def small_tensors(count: int) -> list[Tensor]:
    """Tensors of 1 to 4 KB, no two alike."""
    torch.manual_seed(0)
    sizes = random.Random(0)
    return [torch.randn(sizes.randrange(256, 1025)) for _ in range(count)]


def writers(tensors: list[Tensor]) -> dict[str, Subject]:
    """Ways to store the same tensors, one call for each."""
    return {
        "write()": lambda: _plain_write(tensors),
        "clew": lambda: _streamed(tensors),
        "torch.save": lambda: _torch_save(tensors),
        "h5py": lambda: _h5py(tensors),
    }


def _plain_write(tensors: list[Tensor]) -> Folder:
    folder = Folder()
    file = os.open(Path(folder.name) / "raw", os.O_WRONLY | os.O_CREAT)
    for tensor in tensors:
        os.write(file, memoryview(tensor.numpy()))
    os.close(file)
    return folder


def _streamed(tensors: list[Tensor]) -> Folder:
    folder = Folder()
    layer = nn.Identity()
    with clew.trace(layer, level="modules", values="full", out=Path(folder.name) / "run.clew"):
        for tensor in tensors:
            layer(tensor)
    return folder


def _torch_save(tensors: list[Tensor]) -> Folder:
    folder = Folder()
    for number, tensor in enumerate(tensors):
        torch.save(tensor, Path(folder.name) / f"{number}.pt")
    return folder


def _h5py(tensors: list[Tensor]) -> Folder:
    import h5py

    folder = Folder()
    with h5py.File(Path(folder.name) / "all.h5", "w") as file:
        for number, tensor in enumerate(tensors):
            file.create_dataset(str(number), data=tensor.numpy())
    return folder


def stall(work: Workload, level: str, effort: Effort) -> tuple[float, float]:
    """CPU time of the thread that runs a forward: by itself, and while all of it is streamed.

    Entering and leaving are left out, as is the writer's thread: what counts is what the program
    has to do besides its own work.
    """
    untraced = traced = float("inf")
    began = time.monotonic()
    for turn in range(effort.rounds):
        if turn >= 3 and time.monotonic() - began > effort.seconds * 2:
            break
        untraced = min(untraced, _seconds(work.run))
        with Folder() as folder:
            place = Path(folder) / "run.clew"
            with clew.trace(work.model, level=level, values="full", out=place) as t:
                traced = min(traced, _seconds(work.run))
                t.flush()
    return untraced, traced


def reading(tensors: list[Tensor], effort: Effort) -> Iterator[tuple[str, float]]:
    """Seconds to read one of the tensors stored, in each of the ways."""
    import h5py

    streamed, saved, hdf5 = _streamed(tensors), _torch_save(tensors), _h5py(tensors)
    values = clew.load(Path(streamed.name) / "run.clew")[""].values
    order = random.Random(1).sample(range(len(tensors)), min(50, len(tensors)))
    with h5py.File(Path(hdf5.name) / "all.h5", "r") as file:
        subjects: dict[str, Callable[[int], object]] = {
            "clew": lambda n: values[n].array(),
            "torch.save": lambda n: torch.load(Path(saved.name) / f"{n}.pt"),
            "h5py": lambda n: file[str(n)][...],
        }
        for name, read in subjects.items():
            each = {name: lambda read=read: [read(n) for n in order]}  # type: ignore[misc]
            yield name, best_times(each, effort)[name] / len(order)
    for folder in (streamed, saved, hdf5):
        folder.cleanup()


def _seconds(work: Subject) -> float:
    start = time.thread_time_ns()
    work()
    return (time.thread_time_ns() - start) / 1e9

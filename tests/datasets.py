"""Datasets whose samples are made in workers, for fork and spawn."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import clew


def decode(index: int) -> Any:
    video = np.full((4, 3), index, np.uint8)
    video = video.astype(np.float32) / 255
    return video


class Videos(Dataset[Any]):
    """Eight samples; those in `bad` raise, those in `deadly` kill the worker."""

    def __init__(self, bad: tuple[int, ...] = (), deadly: tuple[int, ...] = ()) -> None:
        self.bad = bad
        self.deadly = deadly

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        video = decode(index)
        clew.tap("mean", float(video.mean()))
        if index in self.bad:
            raise ValueError(f"no frames in {index}")
        if index in self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.from_numpy(video)


class WatchedVideos(Dataset[Any]):
    """As `Videos`, with a watch of its own."""

    def __len__(self) -> int:
        return 8

    @clew.watch("video", out=False, values="full")
    def __getitem__(self, index: int) -> Any:
        video = decode(index)
        if index == 99:
            raise ValueError("no such sample")
        return torch.from_numpy(video)


class Stream(IterableDataset[Any]):
    """Three samples from each worker."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first = 0 if info is None else info.id * 10
        for n in range(first, first + 3):
            video = decode(n)
            yield torch.from_numpy(video)


class Fetched(Videos):
    """As `Videos`, made a batch at a time."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        made = []
        for index in indices:
            video = np.full((4, 3), index, np.float32)
            made.append(torch.from_numpy(video))
        return made


class Opened(IterableDataset[Any]):
    """Three samples; there is work before the first of them and after the last."""

    def __iter__(self) -> Iterator[Any]:
        head = np.zeros(2)
        return self.items(head)

    def items(self, head: Any) -> Iterator[Any]:
        for n in range(3):
            video = np.full((4, 3), n, np.float32)
            yield torch.from_numpy(video)
        tail = head + 1
        del tail


def stacked(items: list[Any]) -> Any:
    """A `collate_fn` with variables of its own."""
    both = torch.stack(items)
    return both


def seeded(worker: int) -> None:
    """The program's own `worker_init_fn`."""
    seed = np.full(3, worker)
    os.environ["SEEN_WORKER"] = str(seed[0])


def plain(items: list[Any]) -> list[Any]:
    return items

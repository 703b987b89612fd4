"""Small programs to watch, with NumPy alone; the golden files show their lines."""

from __future__ import annotations

from typing import Any

import numpy as np


def normalize(frames: Any, scale: float = 255.0) -> Any:
    frames = frames / scale
    frames -= frames.mean()
    return frames


class Clips:
    def __init__(self) -> None:
        self.cache: dict[str, Any] = {}

    def load(self, path: str) -> Any:
        video = np.arange(6 * 8 * 8 * 3, dtype=np.uint8).reshape(6, 8, 8, 3)
        video = video.transpose(0, 3, 1, 2)
        self.cache["last"] = video
        video = normalize(video)
        video[0, 0, 0, 0] = np.nan
        return video


def clips() -> Any:
    source = Clips()
    video = source.load("clip.mp4")
    video = np.nan_to_num(video)
    return {"video": video, "count": len(video)}


def loop() -> Any:
    total = np.zeros(20)
    for step in range(100):
        total = shifted(total, step)
    return total


def shifted(total: Any, step: int) -> Any:
    total = total + step
    return total


def values() -> Any:
    x: Any = 1
    x = 2.5
    x = [np.ones(2), {"k": 3}]
    x.append(None)
    x[0] = np.ones((2, 2))
    x = {"a": np.zeros(3, dtype=complex), "b": "text"}
    x["a"][1] = 2j
    x = {3, 1, 2}
    x = None
    x = np.array([])
    x = np.array([1, None], dtype=object)
    del x


def crash(n: int = 2) -> Any:
    x = np.full(3, n)
    if n == 0:
        raise ValueError("no samples left\nin this shard")
    return crash(n - 1) + x

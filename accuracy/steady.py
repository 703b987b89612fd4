"""Programs that do the same in each run, though they draw, race, list and cache: no alarm."""

from __future__ import annotations

import os
import random
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from accuracy.unsteady import X, layers


def drawn() -> Any:
    """Draw from all generators that are put back."""
    noise = torch.from_numpy(np.random.rand(8, 8).astype("float32"))
    return F.dropout(layers()(X) + noise, 0.5) * random.random()


def sorted_files() -> Any:
    """Load files in the order of their names."""
    with tempfile.TemporaryDirectory() as folder:
        for at in range(8):
            X[at].numpy().tofile(Path(folder, f"{at}.bin"))
        names = sorted(os.listdir(folder))
        rows = [np.fromfile(Path(folder, name), "float32") for name in names]
    return layers()(torch.from_numpy(np.stack(rows)))


def joined_threads() -> Any:
    """Collect results of threads by their numbers, whichever ends first."""
    h, parts = layers()(X), dict[int, Tensor]()

    def work(at: int) -> None:
        time.sleep(0.01 * random.SystemRandom().random())
        parts[at] = h[2 * at : 2 * at + 2] * 2

    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return torch.cat([parts[at] for at in range(4)]).cumsum(0)


def trained() -> Any:
    """Make a model and train it."""
    model = layers()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        F.dropout(model(X), 0.1).square().mean().backward()
        optimizer.step()


def normed() -> Any:
    """Make a batch norm, and use it in both modes."""
    norm = nn.BatchNorm1d(8)
    norm(layers()(X))
    return norm.eval()(X)


def filled() -> Any:
    """Ask for memory and write all of it."""
    table = torch.empty(8, 8).copy_(X)
    weight = torch.empty(8, 8).normal_()
    return torch.empty_like(table).fill_(0.5) + table @ weight


def padded_cache() -> Any:
    """Use the part of a cache that is written, masking the rest."""
    cache = torch.empty(16, 8)
    cache[:8] = layers()(X)
    scores = X @ cache.T
    scores = scores.masked_fill(torch.arange(16) >= 8, float("-inf"))
    return scores.softmax(-1)[:, :8] @ cache[:8]


def half_filled() -> Any:
    """Compute with a buffer of which a part is never written, and use the other."""
    buffer = torch.empty(32, 8)
    buffer[:8] = X
    return torch.relu(buffer)[:8].sum()


def loaded() -> Any:
    """Shuffle and load by workers, with torch's own seeds."""
    model = layers()
    for (batch,) in DataLoader(TensorDataset(X), batch_size=4, shuffle=True, num_workers=1):
        model(batch)


def recomputed() -> Any:
    """Recompute dropout in the backward pass."""
    model = layers()
    x = X.clone().requires_grad_()
    checkpoint(lambda h: F.dropout(model(h), 0.5), x, use_reentrant=False).sum().backward()


def timed() -> Any:
    """Measure the time, and let no number depend on it."""
    start = time.perf_counter()
    h = layers()(X)
    return h, time.perf_counter() - start


def branching() -> Any:
    """Take a way that depends on the data, and write in place."""
    h = layers()(X)
    if h.mean() > 0:
        h[0] = 0
    return h.add_(1).topk(3).values.sort().values


def not_finite() -> Any:
    """Have NaN and Inf in both runs."""
    h = layers()(X).clone()
    h[0, 0], h[1, 1] = float("nan"), float("inf")
    return h.softmax(-1).nan_to_num()


def attention() -> Any:
    """Run a transformer with dropout."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return layer(X[None]).sum().backward()


STEADY: list[Callable[[], Any]] = [
    drawn, sorted_files, joined_threads, trained, normed, filled, padded_cache, half_filled, loaded,
    recomputed, timed, branching, not_finite, attention,
]  # fmt: skip

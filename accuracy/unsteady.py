"""Programs that differ from run to run, each for one reason, and programs that do not.

The line that must be named carries the comment `# differs: NAME`. A program is run by
`clew.determinism`, twice in one process and from the same random state.
"""

from __future__ import annotations

import itertools
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

X = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))


def layers() -> nn.Sequential:
    """Return the same model each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))


def reseeded_dropout() -> Any:
    """Seed from the clock between the layers."""
    h = layers()(X)
    torch.manual_seed(time.time_ns() % 2**31)
    return F.dropout(h, 0.5).sum()  # differs: reseeded-dropout


def own_generator() -> Any:
    """Draw the order of the samples from a generator with a seed of the system's."""
    generator = torch.Generator()
    generator.seed()
    order = torch.randperm(8, generator=generator)  # differs: own-generator
    return layers()(X[order])


def one_draw_more() -> Callable[[], Any]:
    """Draw once more in the second run, as a retry does."""
    runs = itertools.count()

    def run() -> Any:
        model = layers()
        for _ in range(next(runs)):
            torch.rand(3)  # differs: one-draw-more
        return F.dropout(model(X), 0.5)

    return run


def python_random() -> Any:
    """Augment with numbers of the operating system."""
    scale = random.SystemRandom().random()
    h = layers()(X)
    return h * scale  # differs: python-random


def numpy_random() -> Any:
    """Add noise of a NumPy generator without a seed."""
    noise = np.random.default_rng().normal(size=(8, 8)).astype("float32")
    h = layers()(X)
    return h + torch.from_numpy(noise)  # differs: numpy-random


def clock() -> Any:
    """Let a schedule depend on the time."""
    h = layers()(X)
    rate = 1 / (1 + time.time() % 100)
    return h.mul(rate)  # differs: clock


def global_counter() -> Callable[[], Any]:
    """Count calls in a global, and scale by the count."""
    calls = itertools.count(1)

    def run() -> Any:
        h = layers()(X)
        return h / next(calls)  # differs: global-counter

    return run


class Cached(nn.Module):
    """Keeps the scale of the first batch it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.scale: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.scale is None:
            self.scale = x.abs().max()  # differs: warm-up-cache
            return x
        return x / self.scale  # differs: warm-up-cache


def warm_up_cache() -> Callable[[], Any]:
    """Run a layer that is warm in the second run."""
    cached = Cached()
    return lambda: cached(layers()(X))


def batch_norm() -> Callable[[], Any]:
    """Keep running statistics from run to run."""
    norm = nn.BatchNorm1d(8)

    def run() -> Any:
        norm.train()
        norm(layers()(X))  # differs: batch-norm
        return norm.eval()(X)

    return run


def trained_before() -> Callable[[], Any]:
    """Train a model that the first run has trained already."""
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run() -> Any:
        h = layers()(X)
        optimizer.zero_grad()
        model(h).square().mean().backward()  # differs: trained-before
        optimizer.step()

    return run


def momentum() -> Callable[[], Any]:
    """Load the weights anew, and keep the optimizer's momentum."""
    model = layers()
    start = {name: one.clone() for name, one in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def run() -> Any:
        model.load_state_dict(start)
        optimizer.zero_grad()
        model(X).square().mean().backward()
        optimizer.step()  # differs: momentum
        return model(X)

    return run


def unwritten_memory() -> Any:
    """Add to memory that nothing has written."""
    kept = _leave_numbers(96 * 96)
    total = torch.empty(96, 96)  # differs: unwritten-memory
    del kept
    total[:8, :8] += layers()(X)
    return total.sum()


def unwritten_rows() -> Any:
    """Fill all rows of a table but the last, and use the whole."""
    kept = _leave_numbers(999 * 8)
    table = torch.empty(999, 8)  # differs: unwritten-rows
    del kept
    table[:8] = X
    return layers()(table).mean()


def _leave_numbers(count: int) -> list[Any]:
    """Leave other numbers in the memory that so many floats get next, while the result is kept.

    Free memory of about that size is taken, filled, and every other piece given back: pieces that
    lie side by side would become one, or go back to the system.
    """
    scale = random.SystemRandom().random()
    sizes = [size for size in range(count + 16, count + 272, 4) for _ in range(8)]
    junk = [np.full(size, scale, "float32") for size in sizes]
    return junk[::2]


def thread_order() -> Callable[[], Any]:
    """Collect results of threads in the order in which they end."""
    runs = itertools.count()

    def run() -> Any:
        h, parts, turn = layers()(X), [], next(runs) % 2

        def work(at: int) -> None:
            time.sleep(0.02 * (at if turn else 3 - at))
            parts.append(h[2 * at : 2 * at + 2])

        threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        joined = torch.cat(parts)  # differs: thread-order
        return joined.cumsum(0)

    return run


def as_they_complete() -> Callable[[], Any]:
    """Average gradients of workers in the order in which they complete."""
    runs = itertools.count()

    def run() -> Any:
        model, turn = layers(), next(runs) % 2
        h = model(X)

        def work(at: int) -> Tensor:
            time.sleep(0.02 * (at if turn else 3 - at))
            return h[2 * at : 2 * at + 2] * 0.1

        total = torch.zeros(2, 8)
        with ThreadPoolExecutor(4) as pool:
            for done in as_completed([pool.submit(work, at) for at in range(4)]):
                total = total + done.result()  # differs: as-they-complete
        return total

    return run


def shared_sum() -> Callable[[], Any]:
    """Add into one tensor from threads, as atomics do, in whichever order."""
    runs = itertools.count()

    def run() -> Any:
        h, total, turn = layers()(X), torch.zeros(8), next(runs) % 2
        lock = threading.Lock()

        def work(at: int) -> None:
            time.sleep(0.02 * (at if turn else 3 - at))
            with lock:
                total.add_(h[at] * 10.0 ** (3 * at - 5))  # differs: shared-sum

        threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        return total * 2  # differs: shared-sum (where ops of threads are not recorded)

    return run


def listed_files() -> Any:
    """Load files with names of the system's, in the order in which a folder lists them."""
    with tempfile.TemporaryDirectory() as folder:
        for at in range(8):
            handle, _ = tempfile.mkstemp(dir=folder)
            os.write(handle, X[at].numpy().tobytes())
            os.close(handle)
        rows = [np.fromfile(Path(folder, name), "float32") for name in os.listdir(folder)]
    batch = torch.from_numpy(np.stack(rows))  # differs: listed-files
    return layers()(batch)


def order_of_ids() -> Any:
    """Sum parts in the order of their addresses in memory."""
    junk, parts = [], []
    for at in range(8):
        junk.append([bytearray(random.SystemRandom().randrange(1, 4000)) for _ in range(9)])
        parts.append({"at": at, **dict.fromkeys(range(at * 7))})
        del junk[random.SystemRandom().randrange(len(junk))]
    h, total = layers()(X), torch.zeros(8)
    for weight, part in enumerate(sorted(parts, key=id)):
        total += weight * h[part["at"]]  # differs: order-of-ids
    return total


class Noisy(Dataset[Tensor]):
    """Draws in each worker from a generator that nobody seeds."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, at: int) -> Tensor:
        return X[at] + torch.from_numpy(np.random.default_rng().normal(size=8).astype("float32"))


def worker_seeds() -> Any:
    """Load a batch by workers that draw for themselves."""
    model = layers()
    for batch in DataLoader(Noisy(), batch_size=8, num_workers=1):  # differs: worker-seeds
        model(batch)


@torch.library.custom_op("clew_accuracy::unsteady", mutates_args=())
def unsteady(x: Tensor) -> Tensor:
    """Stand for a kernel whose threads add in another order each time."""
    return x * (1 + 1e-6 * next(_calls))


_calls = itertools.count()


def unsteady_kernel() -> Any:
    """Call a kernel that returns other bits for the same."""
    h = layers()(X)
    return unsteady(h).sum()  # differs: unsteady-kernel


def unsteady_backward() -> Any:
    """Call a function whose backward returns other bits for the same."""

    class Racing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
            return unsteady(grad)  # differs: unsteady-backward

    model = layers()
    Racing.apply(model(X)).square().mean().backward()


# Name, program (or what makes it), what kinds of answers are right, a word of the evidence.
Source = tuple[str, Callable[[], Any], tuple[str, ...], str]
SOURCES: list[Source] = [
    ("reseeded-dropout", reseeded_dropout, ("wrong",), "random"),
    ("own-generator", own_generator, ("wrong",), "random"),
    ("one-draw-more", one_draw_more, ("extra",), "random"),
    ("python-random", python_random, ("wrong",), "argument"),
    ("numpy-random", numpy_random, ("inputs",), "inputs differ"),
    ("clock", clock, ("wrong",), "argument"),
    ("global-counter", global_counter, ("wrong",), "argument"),
    ("warm-up-cache", warm_up_cache, ("missing", "extra"), ""),
    ("batch-norm", batch_norm, ("inputs",), "num_batches_tracked"),
    ("trained-before", trained_before, ("inputs",), "weight"),
    ("momentum", momentum, ("inputs", "extra", "missing", "wrong"), ""),
    ("unwritten-memory", unwritten_memory, ("wrong", "inputs"), "written"),
    ("unwritten-rows", unwritten_rows, ("wrong", "inputs"), "written"),
    ("thread-order", thread_order, ("wrong", "inputs"), "order"),
    ("as-they-complete", as_they_complete, ("wrong", "inputs"), "order"),
    ("shared-sum", shared_sum, ("wrong", "inputs"), ""),
    ("listed-files", listed_files, ("inputs",), "order"),
    ("order-of-ids", order_of_ids, ("wrong", "inputs"), ""),
    ("worker-seeds", worker_seeds, ("inputs",), "inputs differ"),
    ("unsteady-kernel", unsteady_kernel, ("wrong",), "agree bit for bit"),
    ("unsteady-backward", unsteady_backward, ("wrong",), "agree bit for bit"),
]
# Those that are made for each comparison: they keep something from run to run.
MADE = {
    one_draw_more, global_counter, warm_up_cache, batch_norm, trained_before, momentum,
    thread_order, as_they_complete, shared_sum,
}  # fmt: skip

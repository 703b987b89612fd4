"""The program whose traces are committed here, one for each version of the format.

It is recorded once with the Clew of each version, and never again: a trace of an earlier version
cannot be made by a later Clew. To add one when `SCHEMA_VERSION` goes up, run this with the Clew
that is about to become an earlier one, in a copy of the project that names no machine:

    cp -r tests /tmp/example/ && cd /tmp/example && python -m tests.formats.program tests/formats/v7
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path


def main() -> None:
    """Record a run that ends, and one that is cut off after its second step."""
    # A trace says which machine wrote it; whoever makes this one need not tell theirs.
    platform.node = lambda: "example"
    platform.platform = lambda *args, **kwargs: "Linux"
    import torch

    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    train(folder / "run.clew", steps=3)
    if os.fork() == 0:
        train(folder / "killed.clew", steps=2, cut_off=True)
    os.wait()


def train(folder: Path, steps: int, cut_off: bool = False) -> None:
    """Train two layers, with a tap, a captured local, a gradient and a prefix."""
    import torch
    from torch import nn

    import clew

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(2, 3)
            self.down = nn.Linear(3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.up(x).relu()
            if not cut_off:
                # More than an event's row holds: it goes to a shard.
                wide = torch.arange(3000.0) / 7
                hidden = hidden + wide[0]
            return self.down(clew.tap("hidden", hidden))

    torch.manual_seed(0)
    model = Block()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with clew.trace(
        model,
        values="fingerprint",
        capture=[
            "forward.hidden",
            "down",
            "up.weight:grad",
            *([] if cut_off else ["forward.wide"]),
        ],
        out=folder,
        name="format",
    ) as t:
        for step in range(steps):
            with clew.prefix("train"):
                loss = model(torch.arange(4.0).reshape(2, 2) + step).sum()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            t.step()
        if cut_off:
            t.flush()
            os._exit(0)


if __name__ == "__main__":
    main()

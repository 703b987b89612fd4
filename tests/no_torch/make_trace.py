"""Makes the trace that is read without torch: `python -m tests.no_torch.make_trace` (needs torch).

It is committed, so that a machine without torch can be tested. Run it in a copy of the project,
such as /tmp/example: the trace names the file it was made by.
"""

from __future__ import annotations

import shutil
from pathlib import Path

FOLDER = Path(__file__).parent / "run.clew"


def main() -> None:
    """Record two steps of training, one of evaluation, two ranks, values of several kinds."""
    import os
    import platform

    # A trace says which machine wrote it; whoever makes this one need not tell theirs.
    platform.node = lambda: "example"
    platform.platform = lambda *args, **kwargs: "Linux"

    import torch
    from torch import nn

    import clew

    shutil.rmtree(FOLDER, ignore_errors=True)
    os.environ["WORLD_SIZE"] = "2"
    for rank in range(2):
        os.environ["RANK"] = str(rank)
        torch.manual_seed(rank)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        with clew.trace(model, values="full", out=FOLDER, name="made for reading") as t:
            for step in range(3):
                model.train(step < 2)
                loss = model(torch.full((3, 4), float(step))).sum()
                if step < 2:
                    loss.backward()
                t.step()
            torch.arange(6).to(torch.bfloat16)
            torch.tensor([1.5, -0.0, float("nan")]).to(torch.float8_e5m2)
            torch.ones(2, 2).to_sparse()
            if rank == 0:
                torch.ones(3000).view(2, 1500) + 1j


if __name__ == "__main__":
    main()

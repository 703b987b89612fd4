"""`python -m tests.native.many_ops PLACE VALUES OPS FOLDER`: run many ops while they are recorded.

PLACE is `streamed` or `ring`. Prints as JSON how much memory the process had every now and then,
how many ops ran, how many events and ops the trace has, and what failed in Clew. In a process of
its own, as one that has run other tests has a large heap, slow to collect, which grows by chance.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

import clew
from tests.native.engine import faults, native_trace, resident_bytes

# What one round runs.
ROUND = 20_000
# So many times memory is looked at; a collection of garbage takes as long as thousands of ops.
LOOKS = 15


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, scale: float) -> torch.Tensor:
        for _ in range(17):
            x = x + scale
        out: torch.Tensor = self.first(x)
        return out


def main(place: str, values: str, wanted: int, folder: Path) -> dict[str, Any]:
    """Record and return what is to be printed."""
    settings: dict[str, Any] = (
        {"out": folder} if place == "streamed" else {"limits": clew.Limits(last=ROUND)}
    )
    model, count, used = Net(), 0, []
    # Views of torch's own, dead tensors, and constants that differ in every call.
    with torch.no_grad(), native_trace(model, values=values, **settings) as t:
        while count < wanted:
            for _ in range(max(ROUND, wanted // LOOKS) // 20):
                count += 20
                model(torch.ones(2, 4), count * 1e-3).t_().zero_()
                if count % 2000 == 0:
                    t.step()
            t.flush()
            gc.collect()
            used.append(resident_bytes())
    trace = clew.load(folder) if place == "streamed" else t
    events, ops = len(trace.events), len(trace.ops)
    return {"used": used, "ran": count, "events": events, "ops": ops, "faults": faults(t)}


if __name__ == "__main__":
    place, values, wanted, folder = sys.argv[1:]
    print(json.dumps(main(place, values, int(wanted), Path(folder))))

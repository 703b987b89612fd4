"""One long recording: how memory and time grow with the number of events.

Run as `python -m bench.million <events>`; prints one JSON object. A process of its own, so that
the memory it is charged with is the recording's.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

import clew

# The run is timed in parts, each long enough to hand its events over to the store at least once.
# Of those at the beginning and at the end the fastest counts, as in the other measurements; not
# the very first, which finds nothing handed over before it that the store would have to sort in.
PARTS = 60
EDGE = 6


def main(wanted: int) -> None:
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    x = torch.randn(1, 8)
    with torch.no_grad():
        per_call = _warm_up(model, x)
        calls = max(1, wanted // PARTS // per_call)
        gc.collect()
        before = _resident()
        parts = []
        with clew.trace(model) as trace:
            for part in range(PARTS):
                if part == PARTS // 2:
                    halfway = _resident()
                start = time.process_time_ns()
                for _ in range(calls):
                    model(x)
                parts.append((time.process_time_ns() - start) / (calls * per_call) / 1e3)
        gc.collect()
        recorded = _resident()
    start = time.process_time_ns()
    events = len(trace.events)
    reading = time.process_time_ns() - start
    gc.collect()
    found = {
        "events": events,
        "recorded": (recorded - before) / events,
        "first_half": 2 * max(halfway - before, 1) / events,
        # A short run may fit into memory that the first half had already taken.
        "second_half": 2 * max(recorded - halfway, 1) / events,
        "read": (_resident() - before) / events,
        "columns": _column_bytes(trace) / events,
        "first": min(parts[1 : 1 + EDGE]),
        "last": min(parts[-EDGE:]),
        "reading": reading / events / 1e3,
    }
    print(json.dumps(found))


def _warm_up(model: nn.Module, x: torch.Tensor) -> int:
    """Load everything that recording and reading load; the number of events of one call."""
    with clew.trace(model) as trace:
        for _ in range(100):
            model(x)
    return len(trace.events) // 100


def _column_bytes(trace: clew.Trace) -> int:
    columns = trace._current_run().columns
    arrays = (getattr(columns, field.name) for field in dataclasses.fields(columns))
    return sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))


def _resident() -> int:
    """Bytes of memory held; where the system does not tell, the most ever held."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    import os

    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main(int(sys.argv[1]))

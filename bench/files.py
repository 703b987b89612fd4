"""What it costs to save, open and show a trace, beside pyarrow on the very same tables.

Run as `python -m bench.files <events> <times> <rounds>`; prints one JSON object. A trace of
training steps with statistics is saved, opened with its tree, and written as a report; the floors
are pyarrow's write and read of the parts that the folder holds, with the options they were written
with. Then all of it again with so many times the events.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import clew
from bench.timing import Effort, best_times
from bench.workloads import training_trace
from clew.events.columns import Columns
from clew.events.vocabulary import MODULE, OP, STEP
from clew.run.run import run_of
from clew.store.write.seal_part import parquet_options

# Large enough for all events of the report.
_ALL = 1 << 40


def main(wanted: int, times: int, rounds: int) -> None:
    torch.set_num_threads(1)
    trace = training_trace(wanted)
    (columns,) = trace._current_run().recorded()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        once = _measured(trace, folder / "once", rounds)
        long = clew.Trace(run_of(repeated(columns, times)))
        many = _measured(long, folder / "many", min(rounds, 3))
    per_event = {name: many[name] / once[name] / len(long) * len(trace) for name in once}
    print(json.dumps({"events": len(trace), "many": len(long), **once, "growth": per_event}))


def _measured(trace: clew.Trace, folder: Path, rounds: int) -> dict[str, float]:
    """The CPU time of everything, in seconds."""
    folder.mkdir()
    saved = trace.save(folder / "run.clew")
    parts = {path: pq.read_table(path) for path in Path(saved).glob("*/*.parquet")}
    effort = Effort(rounds, 10.0)
    subjects = {
        "write": lambda: [_write(path, rows, folder) for path, rows in parts.items()],
        "save": lambda: trace.save(folder / "again.clew", exist="replace"),
        "read": lambda: [pq.read_table(path) for path in parts],
        "tree": lambda: str(clew.load(saved).tree()),
        "html": lambda: clew.load(saved).html(folder / "report.html", events=_ALL),
    }
    return best_times(subjects, effort)


def _write(path: Path, rows: pa.Table, folder: Path) -> None:
    table = path.name.partition("-")[0]
    groups = pq.read_metadata(path)
    most = max((groups.row_group(n).num_rows for n in range(groups.num_row_groups)), default=1)
    pq.write_table(rows, folder / path.name, row_group_size=most, **parquet_options(table))


def repeated(columns: Columns, times: int) -> Columns:
    """The columns of a run that did so many times what another did."""
    c, derived = columns, columns.derived
    assert derived is not None
    ids, values, refs = int(c.id.max()) + 1, len(c.meta), len(c.refs)
    took = int(c.start.max() - c.start.min()) + 1
    steps, calls = int(derived.step.max()) + 1, int(derived.call.max()) + 1
    is_module, is_step = c.kind == MODULE, c.kind == STEP
    owned = (c.kind == OP) & (c.number <= -2)
    arrays: dict[str, list[Any]] = {name: [] for name in _arrays(c)}
    facts: dict[str, list[Any]] = {name: [] for name in _arrays(derived)}
    for n in range(times):
        moved = {
            "id": c.id + n * ids,
            "parent": _moved(c.parent, n * ids),
            "subject": c.subject + np.where(is_step, n * steps, 0),
            "start": c.start + n * took,
            "end": _moved(c.end, n * took),
            "number": c.number + np.where(is_module, n * calls, 0) - np.where(owned, n * values, 0),
            "first_ref": c.first_ref + n * refs,
            "refs": c.refs + n * values,
            "storage": c.storage + n * (int(c.storage.max()) + 1),
            "producer": _moved(c.producer, n * ids),
        }
        later = {
            "step": _moved(derived.step, n * steps),
            "call": _moved(derived.call, n * calls),
            "owner": _moved(derived.owner, n * ids),
            "forward": _moved(derived.forward, n * ids),
        }
        for name, pieces in arrays.items():
            pieces.append(moved.get(name, getattr(c, name)))
        for name, pieces in facts.items():
            pieces.append(later.get(name, getattr(derived, name)))
    return replace(
        c,
        **{name: np.concatenate(pieces) for name, pieces in arrays.items()},
        kept={number + n * values: k for n in range(times) for number, k in c.kept.items()},
        derived=replace(derived, **{name: np.concatenate(p) for name, p in facts.items()}),
    )


def _moved(numbers: Any, by: int) -> Any:
    return np.where(numbers >= 0, numbers + by, numbers)


def _arrays(one: Any) -> list[str]:
    return [f.name for f in fields(one) if isinstance(getattr(one, f.name), np.ndarray)]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""The way into the recording of a DataLoader's worker; parents load no more than this."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from clew.stream.worker_faults import write_fault

if TYPE_CHECKING:
    from clew.observe.dataloader import WorkerPlan
    from clew.record.recorder import Recorder
    from clew.store.write.worker_file import WorkerFile


def begin_worker(plan: WorkerPlan, folder: Path, worker: str) -> tuple[WorkerFile, Recorder]:
    """Record in a worker of a DataLoader what its parent asks for."""
    try:
        from clew.session import workers  # which needs torch, and is of use in a worker alone

        return workers.begin(plan, folder, worker)
    except Exception as fault:
        write_fault(folder, worker, "the start", f"{type(fault).__name__}: {fault}")
        raise

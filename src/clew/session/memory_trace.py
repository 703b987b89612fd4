"""Store the records of one recording in memory and read them.

Input: records, and columns that were read. Output: a `Run`. Loaded with the first batch that is
made: many traces are never read, and entering one should load nothing of this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from clew.events.columns import Columns, Derived, ModuleRow
from clew.events.model import Gap
from clew.record.encoder import Encoder, Surroundings
from clew.record.recorder import Recorder
from clew.record.steps import Steps
from clew.request.request import Request
from clew.run.live_derived import LiveDerived
from clew.run.run import Run, run_of
from clew.session.batching import Direct
from clew.session.environment import source_text
from clew.store.write.memory_ring import MemoryRing
from clew.store.write.memory_sink import MemoryStore
from clew.stream.batch import Batch
from clew.stream.redact import redacted_gap

# Templates at hand to be used again while a trace is written: those with a number that changes at
# each step never are.
_TEMPLATES = 1024

_NOTHING_KEPT = Gap(
    "events",
    "",
    "out=False keeps none of them",
    "leave out= away to keep them in memory, or name a folder",
)


class MemoryTrace:
    """The records of one recording in memory.

    `give_back` gets the bytes that a ring drops, `on_batch` each batch before it is kept.
    """

    def __init__(
        self,
        request: Request,
        context: Callable[[], Surroundings],
        give_back: Callable[[int], None],
        on_batch: Callable[[Batch], None] | None = None,
    ) -> None:
        last, steps = request.limits.last, request.last_steps
        self._derived = LiveDerived(forgets=last is not None)
        self._store: MemoryStore | MemoryRing = (
            MemoryStore() if last is None else MemoryRing(last, self._derive, give_back, steps)
        )
        self.direct = Direct(encoder_of(request, context), self._store, on_batch)

    def read(self, rank: int) -> Columns:
        """Return everything so far as the columns of a rank."""
        columns = self._store.read(rank)
        columns.derived = self._derive(columns)
        return columns

    def _derive(self, columns: Columns) -> Derived:
        return self._derived.of(columns)


def encoder_of(request: Request, context: Callable[[], Surroundings]) -> Encoder:
    """Return the encoder of a recording."""
    grows = request.out is None and request.limits.last is None
    return Encoder(context, request.redact, math.inf if grows else _TEMPLATES)


def run_with_gaps(columns: Columns, gaps: Iterable[Gap], request: Request, identity: object) -> Run:
    """Return the run of some columns; add the gaps that are not in them."""
    if request.redact:
        gaps = map(redacted_gap, gaps)
    columns.gaps += [gap for gap in gaps if gap not in columns.gaps]
    if request.out is False:
        columns.gaps.append(_NOTHING_KEPT)
    return run_of(columns, identity)


def empty_run(gap: Gap) -> Run:
    """Return a run without events, and why there are none."""
    columns = MemoryStore().read(0)
    columns.derived = LiveDerived(forgets=False).of(columns)
    columns.gaps.append(gap)
    return run_of(columns, gap)


def surroundings_of(
    recorder: Recorder, steps: Steps, gaps: Iterable[Gap], facts: dict[str, Any]
) -> Surroundings:
    """Return what a recording knows besides its records, at this moment."""
    return Surroundings(
        module_rows(recorder),
        list(recorder.modules.parameters),
        list(recorder.threads.names),
        list(recorder.values.tensors.generator_names),
        steps.modes.after,
        list(gaps),
        source_text,
        facts,
    )


def module_rows(recorder: Recorder) -> list[ModuleRow]:
    """Return the modules a recording has met, by name."""
    return [
        ModuleRow(n.path, n.cls, n.entry.number, n.entry.wrapper)
        for n in list(recorder.modules.names)
    ]

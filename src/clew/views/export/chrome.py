"""Chrome trace events: the run on a time axis, for Perfetto and chrome://tracing.

There is a process per rank, a thread per thread, and one complete event per module call and op,
nested as they ran, with shapes and source in `args`; steps have a separate track. Ranks are aligned
by the time of day at which each began. `.gz` at the end of the name compresses the file, which
Perfetto reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from clew.analysis.file_names import file_names
from clew.events.columns import Ints
from clew.events.vocabulary import MODULE, NOTE, OF_OPS, STEP
from clew.run.run import Run
from clew.views.export.formats import Contents
from clew.views.export.text import text_file
from clew.views.strict_json import as_json
from clew.views.text.call_texts import CallTexts

# Perfetto takes the thread with the number of its process for the main thread, and threads of one
# number in two processes for one thread. So each rank has this many numbers to itself; the first is
# for the steps.
_TRACKS = 10_000


def write(run: Run, target: Path) -> Contents:
    """Write the time line of all ranks."""
    count = 0
    with text_file(target) as file:
        environment = as_json(dict(run.environment))
        file.write(f'{{"displayTimeUnit": "ns", "otherData": {environment},\n"traceEvents": [')
        for rank in run.ranks:
            for event in _Timeline(run, rank).events():
                file.write(",\n" if count else "\n")
                file.write(as_json(event))
                count += 1
        file.write("\n]}\n")
    return Contents(len(run), "event")


class _Timeline:
    """One rank's events as dicts of Chrome's format."""

    def __init__(self, run: Run, rank: int) -> None:
        self._run = run
        self._rank = rank
        self._rows: Ints = np.flatnonzero(run.process == rank)
        self._texts = CallTexts(run)
        self._files = file_names(run)
        ends = np.maximum(run.start[self._rows], run.end[self._rows])
        self._last = int(ends.max()) if len(ends) else 0
        threads = run.thread[self._rows]
        self._first_thread = int(threads.min()) if len(threads) else 0

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the names of the tracks, then the events in order."""
        run, kind, rows = self._run, self._run.columns.kind, self._rows
        yield self._named("process_name", f"rank {self._rank}")
        yield {"ph": "M", "name": "process_sort_index", "pid": self._rank, "tid": 0,
               "args": {"sort_index": self._rank}}  # fmt: skip
        steps = rows[kind[rows] == STEP]
        if len(steps):
            yield from self._track("steps", self._steps_track)
        threads, first = np.unique(run.thread[rows], return_index=True)
        for thread, at in zip(threads.tolist(), first.tolist(), strict=True):
            yield from self._track(run.thread_name(int(rows[at])), self._thread_track(thread))
        yield from self._steps(steps)
        ends: dict[int, int] = {}
        for row in rows.tolist():
            ends[row] = self._end(row, ends)
            if kind[row] in (MODULE, *OF_OPS):
                yield self._call(row, ends[row])
            elif kind[row] == NOTE:
                yield self._note(row)

    @property
    def _steps_track(self) -> int:
        return (1 + self._rank) * _TRACKS

    def _thread_track(self, thread: int) -> int:
        return self._steps_track + 1 + thread - self._first_thread

    def _track(self, name: str, track: int) -> Iterator[dict[str, object]]:
        yield self._named("thread_name", name, track)
        yield {"ph": "M", "name": "thread_sort_index", "pid": self._rank,
               "tid": track, "args": {"sort_index": track}}  # fmt: skip

    def _named(self, what: str, name: str, thread: int = 0) -> dict[str, object]:
        return {"ph": "M", "name": what, "pid": self._rank, "tid": thread, "args": {"name": name}}

    def _end(self, row: int, ends: dict[int, int]) -> int:
        """Return when an event ended; an event without an end lasts until the end of its caller."""
        end = int(self._run.end[row])
        return end if end >= 0 else ends.get(int(self._run.parent_row[row]), self._last)

    def _steps(self, rows: Iterable[int]) -> Iterator[dict[str, Any]]:
        run = self._run
        starts = [int(run.start[row]) for row in rows]
        numbers = [int(run.step[row]) for row in rows]
        if starts and int(run.start[self._rows[0]]) < starts[0]:
            starts.insert(0, int(run.start[self._rows[0]]))
            numbers.insert(0, int(run.step[self._rows[0]]))
        ends = [*starts[1:], self._last]
        for number, start, end in zip(numbers, starts, ends, strict=False):
            if end == start:
                continue  # the last call of step() began this step, and nothing ran in it
            yield {
                "ph": "X", "name": f"step {number}", "cat": "step", "pid": self._rank,
                "tid": self._steps_track, "ts": start / 1e3, "dur": (end - start) / 1e3,
            }  # fmt: skip

    def _call(self, row: int, end: int) -> dict[str, object]:
        run = self._run
        start = int(run.start[row])
        event = run.event(row)
        name = event.name
        if event.kind == "module" and event.module:
            name = f"{event.module} ({event.name})"
        args: dict[str, object] = {
            "address": event.address,
            "module": event.module,
            "call": event.call,
            "phase": event.phase,
            "step": event.step,
            "rank": event.rank,
            "in": self._texts.inputs(row),
            "out": self._texts.outputs(row),
        }
        if event.source is not None:
            file = self._files[event.source.file]
            args["source"] = f"{file}:{event.source.line}: {event.source.text}"
        if event.error is not None:
            args["error"] = event.error
        if event.duration is None:
            args["unfinished"] = True
        return {
            "ph": "X", "name": name, "cat": f"{event.kind},{event.phase}",
            "pid": self._rank, "tid": self._thread_track(int(run.thread[row])),
            "ts": start / 1e3,
            "dur": max(end - start, 0) / 1e3, "args": args,
        }  # fmt: skip

    def _note(self, row: int) -> dict[str, object]:
        event = self._run.event(row)
        return {
            "ph": "i", "s": "t", "name": event.name, "cat": "note", "pid": self._rank,
            "tid": self._thread_track(int(self._run.thread[row])),
            "ts": int(self._run.start[row]) / 1e3,
            "args": {"error": event.error, "phase": event.phase},
        }  # fmt: skip

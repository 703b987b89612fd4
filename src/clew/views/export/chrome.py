"""Chrome trace events: the run on a time axis, for Perfetto and chrome://tracing.

A process per rank, a thread per thread, one complete event per module call and op, nested as
they ran, with shapes and source in `args`; steps have a track of their own. Ranks are lined up by
the time of day at which each began. `.gz` at the end of the name compresses, which Perfetto reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from clew.analysis.files import file_names
from clew.events.records import KINDS, MODULE, NOTE, OP, PHASES, STEP
from clew.store.reader import Reader
from clew.views.export.formats import Contents
from clew.views.export.text import as_json, text_file
from clew.views.text.calls import CallTexts

# Perfetto takes a thread whose number is its process's for the main one, and threads of one number
# in two processes for one: so many numbers are each rank's own, the first of them for the steps.
_TRACKS = 10_000


def write(readers: list[Reader], target: Path) -> Contents:
    """Write the time line of all ranks."""
    first = min(_wall_start(reader) for reader in readers)
    count = 0
    with text_file(target) as file:
        environment = as_json(dict(readers[0].columns.environment))
        file.write(f'{{"displayTimeUnit": "ns", "otherData": {environment},\n"traceEvents": [')
        for reader in readers:
            for event in _Timeline(reader, _wall_start(reader) - first).events():
                file.write(",\n" if count else "\n")
                file.write(as_json(event))
                count += 1
        file.write("\n]}\n")
    return Contents(sum(map(len, readers)), "event")


def _wall_start(reader: Reader) -> float:
    """The time of day, in seconds, at which a rank's clock began."""
    return float(reader.columns.environment.get("time", 0.0))


class _Timeline:
    """One rank's events as dicts of Chrome's format."""

    def __init__(self, reader: Reader, offset: float) -> None:
        self._reader = reader
        self._texts = CallTexts(reader)
        self._files = file_names(reader)
        c = reader.columns
        self._zero = int(c.environment["clock"]) - round(offset * 1e9)
        self._last = max(int(c.start.max()), int(c.end.max())) if len(reader) else self._zero

    def events(self) -> Iterator[dict[str, Any]]:
        """Names of tracks first, then what happened, in order."""
        reader, c = self._reader, self._reader.columns
        yield self._named("process_name", f"rank {c.rank}")
        yield {"ph": "M", "name": "process_sort_index", "pid": c.rank, "tid": 0,
               "args": {"sort_index": c.rank}}  # fmt: skip
        steps = reader.rows(STEP)
        if len(steps):
            yield from self._track("steps", self._steps_track)
        for thread in np.unique(reader.thread).tolist():
            known = thread < len(c.threads)
            name = c.threads[thread] if known else f"thread {thread}"
            yield from self._track(name, self._thread_track(thread))
        yield from self._steps(steps)
        ends = self._ends()
        for row in range(len(reader)):
            if c.kind[row] in (MODULE, OP):
                yield self._call(row, ends[row])
            elif c.kind[row] == NOTE:
                yield self._note(row)

    @property
    def _steps_track(self) -> int:
        return (1 + self._reader.columns.rank) * _TRACKS

    def _thread_track(self, thread: int) -> int:
        return self._steps_track + 1 + thread

    def _track(self, name: str, track: int) -> Iterator[dict[str, Any]]:
        yield self._named("thread_name", name, track)
        yield {"ph": "M", "name": "thread_sort_index", "pid": self._reader.columns.rank,
               "tid": track, "args": {"sort_index": track}}  # fmt: skip

    def _named(self, what: str, name: str, thread: int = 0) -> dict[str, Any]:
        rank = self._reader.columns.rank
        return {"ph": "M", "name": what, "pid": rank, "tid": thread, "args": {"name": name}}

    def _ends(self) -> list[int]:
        """When each event ended; what never did lasts until its caller's end."""
        parents = self._reader.parent_row.tolist()
        ends: list[int] = []
        for row in range(len(self._reader)):
            end = self._reader.end(row)
            limit = ends[parents[row]] if 0 <= parents[row] < row else self._last
            # Only calls on the caller's own thread lie inside it.
            ends.append(end if end >= 0 else limit)
        return ends

    def _steps(self, rows: Any) -> Iterator[dict[str, Any]]:
        c = self._reader.columns
        starts = [int(c.start[row]) for row in rows]
        numbers = [int(c.step[row]) for row in rows]
        if starts and int(c.start[0]) < starts[0]:
            starts.insert(0, int(c.start[0]))
            numbers.insert(0, numbers[0] - 1)
        ends = [*starts[1:], self._last]
        for number, start, end in zip(numbers, starts, ends, strict=False):
            if end == start:
                continue  # begun by the last call of step(), and nothing came of it
            yield {
                "ph": "X", "name": f"step {number}", "cat": "step", "pid": c.rank,
                "tid": self._steps_track, "ts": self._micros(start), "dur": (end - start) / 1e3,
            }  # fmt: skip

    def _call(self, row: int, end: int) -> dict[str, Any]:
        reader, c = self._reader, self._reader.columns
        start = int(c.start[row])
        event = reader.event(row)
        name = event.name
        if event.kind == "module" and event.module:
            name = f"{event.module} ({event.name})"
        args: dict[str, Any] = {
            "address": event.address,
            "module": event.module,
            "phase": event.phase,
            "step": event.step,
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
            "ph": "X", "name": name, "cat": f"{KINDS[int(c.kind[row])]},{event.phase}",
            "pid": c.rank, "tid": self._thread_track(int(reader.thread[row])),
            "ts": self._micros(start),
            "dur": max(end - start, 0) / 1e3, "args": args,
        }  # fmt: skip

    def _note(self, row: int) -> dict[str, Any]:
        reader, c = self._reader, self._reader.columns
        event = reader.event(row)
        return {
            "ph": "i", "s": "t", "name": event.name, "cat": "note", "pid": c.rank,
            "tid": self._thread_track(int(reader.thread[row])),
            "ts": self._micros(int(c.start[row])),
            "args": {"error": event.error, "phase": PHASES[int(reader.phase[row])]},
        }  # fmt: skip

    def _micros(self, nanoseconds: int) -> float:
        return (nanoseconds - self._zero) / 1e3

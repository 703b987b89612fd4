"""What it costs to follow variables: one local, a whole watch, and the other ways to do it.

Needs NumPy, not torch, so that every Python can be asked: `python -m bench.variables` prints the
times in seconds as JSON. The program spends its time in two places: `target`, whose variable `y`
is wanted, and small functions that nobody asked about.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import clew
from bench.timing import Effort, Subject, best_times
from clew.address import parse
from clew.keep.budget import Budget
from clew.keep.python_values import NoTensors
from clew.observe.variables.captured import VariableSource
from clew.record.encoder import Encoder, Surroundings
from clew.record.gaps import WorkerGaps
from clew.record.recorder import Recorder
from clew.request.ledger import Ledger
from clew.request.limits import Limits
from clew.session.batching import Deferred, Direct
from clew.store.write.memory_sink import MemoryStore

# Rounds of one run, in each of which the variable is bound and `calls` other calls are made.
ROUNDS, SIZE = 20, 16
NAME = f"{os.path.basename(__file__)}:target.y"


def target(x: Any) -> Any:
    y = x @ x
    y = y / 8
    y = np.tanh(y)
    y = y + x
    return y


def elsewhere(n: int) -> int:
    total = 0
    for i in range(n):
        total += small(i)
    return total


def small(i: int) -> int:
    doubled = i * 2
    return doubled + 1


def program(calls: int, wanted: Callable[[Any], Any] | None = None) -> Any:
    x = np.full((SIZE, SIZE), 0.5)
    for _ in range(ROUNDS):
        x = (wanted or target)(x)
        elsewhere(calls)
    return x


class _Records:
    """What `clew.trace(capture=...)` does with a variable, without torch."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def record(self, label: Any, value: Any, where: Any, now: Any = None) -> None:
        self._recorder.named(label, value, where, now)


def one_local(calls: int) -> Any:
    """`y` of `target` recorded in full at each binding, and nothing else touched."""
    store = MemoryStore()
    around = Surroundings([], [], [], [], lambda step: {}, [], lambda file: None, {})
    taker = Deferred(lambda: Direct(Encoder(lambda: around), store))
    budget = Budget(Limits(), lambda gap: None)
    recorder = Recorder(
        taker, time.perf_counter_ns, NoTensors, budget, WorkerGaps(lambda where, text: None)
    )
    records: Any = _Records(recorder)
    source = VariableSource(recorder, [parse(NAME)], records, Ledger(()), lambda gap: None)
    source.start()
    try:
        program(calls)
    finally:
        source.stop()
    recorder.close()
    return store, taker


def watched(calls: int, **options: Any) -> Subject:
    """`clew.watch("y")` around the program."""

    def run() -> Any:
        with clew.watch("y", **options) as watch:
            program(calls)
        return watch

    return run


def settraced(calls: int) -> Any:
    """A trace function on everything that looks at `y` after each line."""
    seen = []

    def trace(frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code is target.__code__ and "y" in frame.f_locals:
            y = frame.f_locals["y"]
            seen.append((frame.f_lineno, y.shape, y.dtype))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        program(calls)
    finally:
        sys.settrace(before)
    return seen


def snooped(calls: int) -> Subject | None:
    """PySnooper on `target` alone, its text thrown away; None where it is not installed."""
    try:
        import pysnooper
    except ImportError:
        return None
    stream = io.StringIO()
    shown = pysnooper.snoop(stream)(target)

    def run() -> Any:
        x = program(calls, shown)
        stream.seek(0)
        stream.truncate()
        return x

    return run


def measure(effort: Effort, calls: int) -> dict[str, float]:
    """The time of each way, in seconds."""
    ways: dict[str, Callable[[], object] | None] = {
        "untraced": lambda: program(calls),
        "local": lambda: one_local(calls),
        "watch": watched(calls, out=False),
        "watch_meta": watched(calls, out=False, values="meta"),
        "watch_text": watched(calls, out=io.StringIO()),
        "settrace": lambda: settraced(calls),
        "pysnooper": snooped(calls),
    }
    return best_times({name: way for name, way in ways.items() if way is not None}, effort)


def main() -> None:
    rounds, seconds, calls = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    version = ".".join(map(str, sys.version_info[:2]))
    print(json.dumps({"python": version, "times": measure(Effort(rounds, seconds), calls)}))


if __name__ == "__main__":
    main()

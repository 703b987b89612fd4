"""Runs programs of these tests over and over: `python -m tests.native.soak [SECONDS]`.

Made for a library that was built with sanitizers, see scripts/soak.sh. Prints how
often each was run. Ends with 1 if a program differs from what it is without Clew, or if a trace
says that Clew failed.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.native.engine import faults, native_trace, op_names, outcome, read_all
from tests.native.programs import PROGRAMS, small_model, train_until

# These start compilers or workers, which take minutes under a sanitizer.
SLOW = {"exported", "branches_as_data", "jit_scripted", "jit_traced"}


def threads_record(values: str) -> None:
    """Stop while three threads record, in traces inside each other."""
    over = threading.Event()
    with native_trace(values=values) as outer:
        threads = [threading.Thread(target=train_until, args=[over]) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(4):
            with native_trace(small_model(), values=values) as inner:
                for _ in range(50):
                    torch.ones(2).sin()
            assert op_names(inner).count("aten.sin.default") == 50
            outer.flush()
    over.set()
    for thread in threads:
        thread.join()
    for trace in (outer, inner):
        assert not faults(trace), faults(trace)
        read_all(trace)


def forks(values: str) -> None:
    """Fork while a thread records; the child records by itself."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            small_model()(torch.ones(3))

    with native_trace(values=values):
        thread = threading.Thread(target=work)
        thread.start()
        child = os.fork()
        if child == 0:
            with native_trace(values=values) as own:
                nn.Linear(2, 2)(torch.ones(2))
            os._exit(0 if own.ops else 1)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        over.set()
        thread.join()
    assert code == 0, f"the forked process ended with {code}"


def ring(values: str) -> None:
    """Run thousands of ops, of which a few are kept."""
    import clew

    with native_trace(values=values, limits=clew.Limits(last=500)) as t:
        for n in range(3000):
            torch.ones(3).mul_(n * 0.5).add_(1)
            if n % 100 == 0:
                t.step()
    assert not faults(t), faults(t)


def same_as_untraced(name: str) -> Callable[[str], None]:
    def run(values: str) -> None:
        expected = outcome(PROGRAMS[name])
        with native_trace(values=values) as t:
            found = outcome(PROGRAMS[name])
        assert found == expected, (found, expected)
        assert not faults(t), faults(t)
        read_all(t)

    return run


def main(seconds: float) -> int:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    runs: dict[str, Callable[[str], None]] = {"threads": threads_record, "ring": ring}
    if "CLEW_SOAK_NO_FORK" not in os.environ:
        runs["forks"] = forks
    runs |= {name: same_as_untraced(name) for name in PROGRAMS if name not in SLOW}
    counts: Counter[str] = Counter()
    failed: dict[str, Any] = {}
    until = time.monotonic() + seconds
    while True:
        for name, run in runs.items():
            for values in ("meta", "stats", "full"):
                try:
                    run(values)
                except Exception as error:
                    failed[f"{name} {values}"] = error
                counts[name] += 1
        if time.monotonic() > until:
            break
    print("runs:", ", ".join(f"{name} {count}" for name, count in counts.items()))
    for name, error in failed.items():
        print(f"failed: {name}: {error!r}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 60))

"""How times are taken: CPU time, the subjects in turn, the smallest of several runs.

In come functions, out comes one time for each. Knows nothing of what they do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Subject = Callable[[], object]

# Runs that even the slowest subject gets.
FEWEST = 3


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure: runs of each subject at most, and seconds for each."""

    rounds: int
    seconds: float


def best_times(
    subjects: Mapping[str, Subject],
    effort: Effort,
    clock: Callable[[], int] = time.process_time_ns,
) -> dict[str, float]:
    """The shortest time of each subject, in seconds: CPU time unless another clock is given.

    What a subject returns is let go only after the clock is read: freeing a trace, or the log of
    another tool, is not part of recording it.
    """
    for subject in subjects.values():
        subject()  # first runs import, allocate and fill caches
    best = dict.fromkeys(subjects, float("inf"))
    used = dict.fromkeys(subjects, 0.0)
    names = list(subjects)
    for turn in range(effort.rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            if turn >= FEWEST and used[name] > effort.seconds:
                continue
            seconds = seconds_of(subjects[name], clock)
            best[name] = min(best[name], seconds)
            used[name] += seconds
    return best


def seconds_of(subject: Subject, clock: Callable[[], int] = time.process_time_ns) -> float:
    """The time of one run: CPU time of all threads unless another clock is given."""
    start = clock()
    kept = subject()
    end = clock()
    del kept
    return (end - start) / 1e9

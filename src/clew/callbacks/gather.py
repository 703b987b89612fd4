"""Gather the values of a run: every few steps on rank 0, and once more at the end.

Input: values as they are recorded. Every N steps each rank applies `before_gather` and sends the
result to rank 0. There `after_gather` is applied to the values of all ranks, and the result is
recorded. A program without ranks does the same in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from clew.callbacks.isolation import IsolatedCall
from clew.callbacks.rank_mailbox import Mail, Ranks, Round
from clew.callbacks.samples import Restore, Sample, leaves_of
from clew.events.gathered import Gathered
from clew.events.model import Gap
from clew.events.vocabulary import COPIED, ENDED, REDUCED, Label
from clew.record.recorder import Recorder
from clew.record.steps import Steps
from clew.request.callbacks import Callbacks

_FAILED = object()
_OWN_PARTS = "each rank's own part has them: record with out= and load the folder"


class Gather:
    """Collects values and, with `every`, sends them to rank 0 every so many steps."""

    def __init__(
        self,
        recorder: Recorder,
        every: int | None,
        steps: Steps,
        callbacks_of: Callable[[Label], Callbacks | None],
        restore: Restore,
        mail: Mail,
        on_gap: Callable[[Gap], Any],
        on_trouble: Callable[[Gap], Any],
        only: str | None = None,
    ) -> None:
        self._recorder = recorder
        self._every = every
        self._steps = steps
        self._callbacks_of = callbacks_of
        self._restore = restore
        self._on_gap = on_gap
        self._on_trouble = on_trouble
        # Steps of the other mode, in which nothing is collected, do not count.
        self._only = only
        self._isolated = IsolatedCall(recorder, on_gap)
        self._ranks = Ranks(mail, self._trouble)
        # Values since the last gather, and those that the `end` callbacks will get.
        self._window: list[Sample] = []
        self._history: list[Sample] = []

    def collect(self, label: Label, callbacks: Callbacks, value: Any) -> None:
        """Take a copy of a value that was recorded, if it is needed again."""
        if self._every is None and callbacks.end is None:
            return
        if self._ranks.is_apart and self._ranks.rank:
            return
        steps = self._steps
        ordinal = steps.ordinal(callbacks.only)
        sample = Sample(label, steps.number, ordinal, self._ranks.rank, leaves_of(value))
        (self._history if self._every is None else self._window).append(sample)

    def begin(self) -> None:
        """Prepare for gathering, before the recording starts."""
        if self._every is not None:
            self._ranks.begin()

    def stepped(self) -> None:
        """Gather if the step that has just ended is the last of `every`."""
        if self._every is None:
            return
        self._ranks.alive()
        completed = self._steps.completed(self._only)
        if completed is not None and completed % self._every == 0:
            with self._isolated.together():
                self._arrived(self._ranks.give(completed, self._taken()))

    def finish(self, crashed: bool) -> None:
        """Gather the rest and call the `end` callbacks, before the recording stops."""
        if self._every is not None:
            self._arrived(self._ranks.give("the rest", self._taken()))
            # After an exception do not wait for other ranks, which may never come.
            rounds, steps = self._ranks.end(self._steps.number, wait=not crashed)
            self._arrived(rounds)
            if len(set(steps.values())) > 1:
                uneven = ", ".join(f"rank {rank}: {n}" for rank, n in sorted(steps.items()))
                self._on_gap(
                    Gap("steps", "", f"the ranks made uneven numbers of them ({uneven})",
                        "nothing is lost; Series.stack(by=..., pad=True) fills up what is missing")
                )  # fmt: skip
        for label, samples in _by_series(self._history).items():
            callbacks = self._callbacks_of(label)
            if callbacks is not None and callbacks.end is not None:
                for made in self._made(callbacks.end, samples) or ():
                    self._recorder.gathered(made, ENDED)
        self._history.clear()

    def _taken(self) -> list[Sample]:
        """Return what was collected since the last call, after `before_gather`."""
        window, self._window = self._window, []
        return [made for label, samples in _by_series(window).items()
                for made in self._reduced(label, samples, "before_gather")]  # fmt: skip

    def _arrived(self, rounds: list[Round]) -> None:
        """Record the values of all ranks, on rank 0."""
        for found in rounds:
            # Set the rank that sent it: a process may learn its rank after it took a sample.
            samples = [replace(one, rank=rank) for rank, of in found.items() for one in of]
            for label, series in _by_series(samples).items():
                self._arrived_series(label, series)

    def _arrived_series(self, label: Label, samples: list[Sample]) -> None:
        callbacks = self._callbacks_of(label)
        if callbacks is None:
            return
        made = self._reduced(label, samples, "after_gather")
        is_reduced = callbacks.before_gather or callbacks.after_gather
        for sample in made:
            if is_reduced:
                self._recorder.gathered(sample, REDUCED)
            elif sample.rank != self._ranks.rank:  # this rank's values are recorded already
                self._recorder.gathered(sample, COPIED)
        if callbacks.end is not None:
            self._history += made

    def _reduced(self, label: Label, samples: list[Sample], which: str) -> list[Sample]:
        function = getattr(self._callbacks_of(label), which, None)
        if function is None:
            return samples
        made = self._made(function, samples)
        return samples if made is None else made

    def _made(self, function: Callable[[Any], Any], samples: list[Sample]) -> list[Sample] | None:
        """Return what a callback makes of the values of one series, None if it fails."""
        samples = [sample for sample in samples if sample.has_data]
        if not samples:
            return []
        label = samples[0].label
        where = label.stem + (f":{label.role}" if label.role else "")
        values = Gathered(
            [sample.value(self._restore) for sample in samples],
            [sample.ordinal for sample in samples], where,
            [sample.step for sample in samples], [sample.rank for sample in samples],
        )  # fmt: skip
        result = self._isolated.call(function, values, where, _FAILED)
        if result is _FAILED:
            return None
        items = [] if result is None else result if isinstance(result, list) else [result]
        if len(items) == len(samples):
            places = [(sample.step, sample.ordinal, sample.rank) for sample in samples]
        else:
            ranks = {sample.rank for sample in samples}
            rank = ranks.pop() if len(ranks) == 1 else None
            last = max(samples, key=lambda sample: sample.step)
            places = [(last.step, last.ordinal, rank)] * len(items)
        if isinstance(items, Gathered) and len(items.ordinals) == len(items):
            pairs = zip(places, items.ordinals, strict=True)
            places = [(step, ordinal, rank) for (step, _, rank), ordinal in pairs]
        return [
            Sample(label, *place, leaves_of(item))
            for item, place in zip(items, places, strict=True)
        ]

    def _trouble(self, why: str) -> None:
        where = f"step {self._steps.number}"
        self._on_trouble(Gap("values of other ranks", where, why, _OWN_PARTS))


def _by_series(samples: Iterable[Sample]) -> dict[Label, list[Sample]]:
    found: dict[Label, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.key, []).append(sample)
    return found

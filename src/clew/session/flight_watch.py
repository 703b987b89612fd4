"""Watch the steps of a recording for a flight recorder: read each, judge it, tell who fired.

Input: the batches of a recording, and what the program gives to `rec.step`. Output: a call with the
`Firing`s of a step that triggers fired at.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from clew.callbacks.apply import stem_of
from clew.events.model import Gap
from clew.events.vocabulary import TAP, KeepLevel, Label
from clew.keep.nesting import is_tensor
from clew.observe.optimizer_tensors import OptimizerTensors
from clew.session.flight_facts import StepReader
from clew.session.flight_rules import Firing, History, firing_of
from clew.triggers import FileTouched, GradientSpike, LossSpike, StepFacts, Trigger

if TYPE_CHECKING:
    from clew.record.recorder import Recorder
    from clew.session.flight_next_step import NextStep
    from clew.stream.batch import Batch, Observer

# Seconds between two looks at a file: a network file system may take a while for each.
_LOOK_EVERY = 0.25

_NO_LOSS = Gap(
    "the loss", "", "rec.step() was never given one, so no spike of it can be seen",
    "call rec.step(loss=loss) at the end of each step",
)  # fmt: skip
_NO_GRADIENTS = Gap(
    "gradients", "", "no optimizer of torch.optim has made a step outside compiled code",
    "give their norm: rec.step(loss=loss, grad_norm=norm)",
)  # fmt: skip


class FlightWatch:
    """Reads and judges the steps of a recording; a `StepWatch`.

    `touch_file` is the file of a `FileTouched` without a path, None if there can be none.
    `on_fired` gets what fired at the end of a step, and may ask for the next one in `next_step`.
    """

    def __init__(
        self,
        triggers: Iterable[Trigger],
        keep: int,
        touch_file: str | None,
        on_fired: Callable[[tuple[Firing, ...]], None],
        next_step: NextStep | None = None,
    ) -> None:
        self._triggers = tuple(triggers)
        self._keep = keep
        self._on_fired = on_fired
        self._next_step = next_step
        self._reader = StepReader()
        self._history = History(keep)
        # Trigger -> the last step at which it was true, or where its quiet time began.
        self._quiet: dict[int, tuple[int, bool]] = {}
        files = (t.path or touch_file for t in self._triggers if isinstance(t, FileTouched))
        self._files = [TouchedFile(os.fspath(path)) for path in files if path is not None]
        # Whether there ever was a loss, and a gradient that an optimizer used.
        self._has_loss = self._has_gradients = False
        # Why the trace is being written now.
        self.cause: tuple[Firing, ...] = ()

    def observer(self, recorder: Recorder) -> Observer:
        """Return the observer of gradients and parameters."""
        return OptimizerTensors(recorder)

    def batch(self, batch: Batch) -> None:
        """Read a batch."""
        self._reader.batch(batch)

    def facts(self) -> dict[str, Any]:
        """Return how many steps are kept and, while the trace is being written, why."""
        fired = [{**one.to_dict(), "where": list(one.where)} for one in self.cause]
        return {"recorder": {"keep": self._keep, "fired": fired}}

    def given(self, recorder: Recorder, name: str, value: Any, frame: FrameType | None) -> None:
        """Record a number that the program gives at the end of a step; a tensor is only read."""
        label = Label(TAP, stem_of(None, name), name)
        with recorder.naming:
            if is_tensor(value):
                token = recorder.values.tensors.current(value)
                self._reader.tensor(label.stem)
            else:
                number = float(value)
                token, _ = recorder.values.leaf(number, KeepLevel.FULL)
                self._reader.number(label.stem, number)
            recorder.record_described(label, token, frame)

    def step_ends(self, step: int) -> None:
        """Judge a step whose batches have all come."""
        if self._next_step is not None:
            self._next_step.end()
        facts = self._reader.finish(step)
        fired = [*self._judged(facts), *self._touched(step)]
        self._history.add(facts)
        self._has_loss |= facts.loss is not None
        self._has_gradients |= facts.gradient_norm is not None
        if fired:
            self._on_fired(tuple(fired))
        if self._next_step is not None:
            self._next_step.begin()

    def unseen(self) -> Iterator[Gap]:
        """Yield what triggers needed and never got."""
        if not self._has_loss and any(isinstance(t, LossSpike) for t in self._triggers):
            yield _NO_LOSS
        if not self._has_gradients and any(isinstance(t, GradientSpike) for t in self._triggers):
            yield _NO_GRADIENTS

    def _judged(self, facts: StepFacts) -> Iterable[Firing]:
        """Yield what fires: a trigger that stays true does once.

        It fires again once it was not true in between, and no earlier than `keep` steps later, so
        that no two traces hold the same steps because of it.
        """
        for number, trigger in enumerate(self._triggers):
            firing = firing_of(trigger, facts, self._history)
            fired_at, is_true = self._quiet.get(number, (-self._keep, False))
            if firing is not None and not is_true and facts.step - fired_at >= self._keep:
                fired_at = facts.step
                yield firing
            self._quiet[number] = fired_at, firing is not None

    def _touched(self, step: int) -> Iterable[Firing]:
        for file in self._files:
            if file.was_touched():
                yield Firing("file", step, f"{file.path} was touched", where=(file.path,))


class TouchedFile:
    """A file whose time is looked at now and then."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._next_look = 0.0
        self._changed = self._time()

    def was_touched(self) -> bool:
        """Return whether the file has appeared or was touched since the last look."""
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + _LOOK_EVERY
        before, self._changed = self._changed, self._time()
        return self._changed is not None and self._changed != before

    def _time(self) -> int | None:
        try:
            return os.stat(self.path).st_mtime_ns
        except OSError:
            return None

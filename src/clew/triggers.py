"""Triggers of `clew.recorder`: what makes it write the last steps, as data.

A trigger is one of these frozen dataclasses, or its name as a text. Must not import torch.

>>> from clew import triggers
>>> triggers.triggers_of(["nonfinite", triggers.LossSpike(threshold=6)])
(NonFinite(outputs=True), LossSpike(threshold=6, warmup=20))
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from clew.errors import ClewError
from clew.events.model import Data

__all__ = [
    "DEFAULT",
    "FileTouched",
    "GradientSpike",
    "LossSpike",
    "NonFinite",
    "Raised",
    "Signal",
    "StepFacts",
    "Terminated",
    "When",
]


@dataclass(frozen=True, slots=True)
class StepFacts(Data):
    """What a step is judged by.

    `loss` and `scalars` are what `rec.step` was given, None or empty if nothing was.
    `gradients` has the norm of the gradient of each parameter as the optimizer used it, and
    `gradient_norm` the norm of all of them together; it is the scalar `grad_norm` if `rec.step` was
    given one. `nonfinite` lists what held NaN or Inf, the first first: `"loss"`, addresses of
    module outputs, of gradients (`"fc.weight:grad"`).
    """

    step: int
    loss: float | None = None
    gradient_norm: float | None = None
    scalars: Mapping[str, float] = field(default_factory=dict)
    gradients: Mapping[str, float] = field(default_factory=dict)
    nonfinite: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Raised(Data):
    """An exception leaves the `with` block; after `start()`, it ends the program."""


@dataclass(frozen=True, slots=True)
class NonFinite(Data):
    """NaN or Inf in the loss, or in a gradient that an optimizer is about to use.

    With `outputs`, also in the output of a module, where -Inf alone counts as a mask.
    """

    outputs: bool = True


@dataclass(frozen=True, slots=True)
class LossSpike(Data):
    """The loss is far above its median over the steps before.

    Far is `threshold` times the median absolute deviation, scaled to a standard deviation and at
    least 2 %, of the logarithm of the loss, or of the loss itself where it is not always positive.
    The first `warmup` steps are never judged.
    """

    threshold: float = 7.0
    warmup: int = 20


@dataclass(frozen=True, slots=True)
class GradientSpike(Data):
    """The norm of all gradients is far above that of the steps before.

    Far is a z-score of `threshold`, of the logarithm of the norm; its standard deviation counts as
    at least 0.1. The first `warmup` steps are never judged.
    """

    threshold: float = 6.0
    warmup: int = 20


@dataclass(frozen=True, slots=True)
class When(Data):
    """`predicate`, given the `StepFacts` of a step that has ended, returns true."""

    predicate: Callable[[StepFacts], object]
    name: str = "predicate"


@dataclass(frozen=True, slots=True)
class Signal(Data):
    """The process gets a signal; a handler that was there is called afterwards."""

    signal: str = "SIGUSR1"


@dataclass(frozen=True, slots=True)
class Terminated(Data):
    """The process gets SIGTERM, which ends it as ever once the steps are written."""


@dataclass(frozen=True, slots=True)
class FileTouched(Data):
    """A file appears or is touched: `path`, or `dump-now` in the folder of the recorder."""

    path: str | os.PathLike[str] | None = None


Trigger: TypeAlias = (
    Raised | NonFinite | LossSpike | GradientSpike | When | Signal | Terminated | FileTouched
)
_KINDS = (Raised, NonFinite, LossSpike, GradientSpike, When, Signal, Terminated, FileTouched)

# Triggers by name, without settings.
NAMES: dict[str, Trigger] = {
    "exception": Raised(),
    "nonfinite": NonFinite(),
    "loss_spike": LossSpike(),
    "gradient_spike": GradientSpike(),
    "signal": Signal(),
    "sigterm": Terminated(),
    "file": FileTouched(),
}
# SIGUSR1 is not among them: without a handler it ends a program, and some programs rely on that.
DEFAULT: tuple[Trigger, ...] = tuple(t for name, t in NAMES.items() if name != "signal")


def triggers_of(given: Trigger | str | Iterable[Trigger | str]) -> tuple[Trigger, ...]:
    """Return the triggers that were asked for; raise ClewError for what is none."""
    if isinstance(given, (str, *_KINDS)):
        given = (given,)
    if not isinstance(given, Iterable):
        raise ClewError(f"triggers={given!r}: give names or objects of clew.triggers")
    return tuple(_trigger(one) for one in given)


def _trigger(given: Any) -> Trigger:
    found = NAMES.get(given) if isinstance(given, str) else given
    if not isinstance(found, _KINDS):
        named = ", ".join(repr(name) for name in NAMES)
        raise ClewError(
            f"triggers: {given!r} is not one of {named}, nor an object of clew.triggers"
        )
    if isinstance(found, Signal):
        signal_number(found)
    if isinstance(found, When) and not callable(found.predicate):
        raise ClewError(f"When({found.predicate!r}): give a function of a step's StepFacts")
    if isinstance(found, LossSpike | GradientSpike) and not (
        found.threshold > 0 and found.warmup >= 2
    ):
        raise ClewError(f"{found!r}: give a threshold above 0, and a warmup of 2 or more")
    return found


def signal_number(trigger: Signal) -> int:
    """Return the number of a trigger's signal."""
    found = getattr(signal, str(trigger.signal), None)
    if not isinstance(found, signal.Signals):
        raise ClewError(f"Signal({trigger.signal!r}): give a name such as 'SIGUSR1'")
    if found in (signal.SIGTERM, signal.SIGINT):
        instead = "Terminated()" if found is signal.SIGTERM else "Raised()"
        raise ClewError(f"Signal({trigger.signal!r}): give {instead}, which leaves it its effect")
    return int(found)

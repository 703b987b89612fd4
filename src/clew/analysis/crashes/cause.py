"""What one kind of fault says about a crash."""

from __future__ import annotations

from dataclasses import dataclass

from clew.analysis.crashes.scene import GivenTensor


@dataclass(frozen=True, slots=True)
class Cause:
    """What is known of the cause.

    `says` are lines for the note, each a fact. `guess` is the one change that would make it fit,
    None unless there is one. `sides` are the tensors and their dimensions that do not fit.
    """

    says: tuple[str, ...] = ()
    guess: str | None = None
    sides: tuple[tuple[GivenTensor, int], ...] = ()

"""What a comparison of two runs found, as frozen data.

`Diff` is the whole answer, `Divergence` the first place where the runs part, `ModuleError` a row of
the table that shows how an error grows from module to module.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clew.analysis.diff.diff_lines import diff_lines
from clew.events.model import Data
from clew.page_port import PAGE_ROWS, write_page
from clew.plain_text import plain
from clew.run.event import Event

if TYPE_CHECKING:
    from clew.analysis.diff.compared import Compared
    from clew.views.html.report import Report

ROWS = 20


@dataclass(frozen=True, slots=True, repr=False)
class Divergence(Data):
    """The first place where two runs part.

    `kind` is `"wrong"` (the inputs agree, the result does not), `"missing"` (`b` lacks the op `a`),
    `"extra"` (`b` has an op more) or `"inputs"` (data or parameters differ). `a` and `b` are the
    events of both runs, None where there is none. `evidence` says what agrees and what differs,
    `suspects` what else differs that could be the cause. Of training runs, `cause` says what it is:
    `"data"` (the batch), `"random"` (other random numbers), `"parameters"` (as they were given),
    `"forward"`, `"loss"`, `"gradient"`, `"optimizer"`, `"mode"` (train or eval) or `"steps"` (one
    run has more), and `step` in which step; else they are empty and None.
    """

    kind: str
    a: Event | None
    b: Event | None
    evidence: tuple[str, ...]
    suspects: tuple[str, ...]
    cause: str = ""
    step: int | None = None

    def __repr__(self) -> str:
        event = self.b or self.a
        where = "" if event is None else f" at {event.address}"
        return plain(f"<Divergence {self.kind}{where}>")

    def to_dict(self) -> dict[str, Any]:
        """Return the divergence as plain data."""
        return {
            "kind": self.kind,
            "a": None if self.a is None else self.a.to_dict(),
            "b": None if self.b is None else self.b.to_dict(),
            "evidence": list(self.evidence),
            "suspects": list(self.suspects),
            "cause": self.cause,
            "step": self.step,
        }


@dataclass(frozen=True, slots=True)
class ModuleError(Data):
    """How far the output of one module call of `b` is from that of `a`; None if not known."""

    address: str
    error: float | None
    agrees: bool


@dataclass(frozen=True, slots=True)
class StepError(Data):
    """How far `b` is from `a` in one step of training; errors are relative, None if not known.

    `losses` are those of `a` and of `b`; `parameters` is the error of all parameters together after
    the step, `worst` the name of the one that is furthest off, and `worst_error` its error.
    """

    step: int
    losses: tuple[float | None, float | None]
    loss: float | None
    parameters: float | None
    worst: str
    worst_error: float | None
    agrees: bool


@dataclass(frozen=True, slots=True)
class Matched(Data):
    """How much of each run was found in the other: parts of the values, from 0 to 1."""

    a: float
    b: float


@dataclass(frozen=True, slots=True, repr=False)
class Diff(Data):
    """A comparison of two runs; `print` shows where they part.

    `equal` says whether nothing differs beyond noise. `first` is the first place where they part,
    or None. `table` has the module calls of both, in order, with the error of their outputs,
    `steps` the steps of training runs, with the errors of losses and parameters.
    `matched` says how much of each run was found in the other, `noise` the relative error of an
    element that counts as rounding, by dtype. `notes` say what could not be compared. `compared` is
    what the page is made from.
    """

    equal: bool
    first: Divergence | None
    table: tuple[ModuleError, ...]
    matched: Matched
    noise: dict[str, float]
    notes: tuple[str, ...]
    compared: Compared | None = field(default=None, compare=False)
    steps: tuple[StepError, ...] = ()

    def html(
        self,
        path: str | os.PathLike[str],
        *,
        title: str | None = None,
        rows: int = PAGE_ROWS,
        redact: bool = False,
        exist: str = "replace",
    ) -> Report:
        """Write both runs side by side into one HTML file, which opens where they part.

        If there are more than `rows` rows, ops that match are left out first, and the page says so.
        `redact` leaves out source text, full paths and facts about the machine. If the file exists,
        `exist="replace"` replaces it, `"keep"` moves it to `run.1.html`, `"error"` raises.
        """
        return write_page(self, path, title=title, rows=rows, redact=redact, exist=exist)

    def __str__(self) -> str:
        return self.text()

    def text(self, rows: int = ROWS, more: str = "`table` has all") -> str:
        """Write the comparison with at most so many rows; `more` says how to see the others."""
        return "\n".join(diff_lines(self, rows, more))

    def __repr__(self) -> str:
        return "<Diff equal>" if self.equal else f"<Diff {self.first!r}>"

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain data."""
        return {
            "equal": self.equal,
            "first": None if self.first is None else self.first.to_dict(),
            "table": [row.to_dict() for row in self.table],
            "matched": self.matched.to_dict(),
            "noise": self.noise,
            "notes": list(self.notes),
            "steps": [row.to_dict() for row in self.steps],
        }

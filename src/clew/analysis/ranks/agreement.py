"""What a comparison of ranks found, as frozen data; `agreement_lines` writes it as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clew.analysis.ranks.agreement_lines import ROWS, agreement_lines, listed
from clew.analysis.ranks.placements import Placement
from clew.events.model import Data
from clew.plain_text import plain


@dataclass(frozen=True, slots=True, repr=False)
class RankDifference(Data):
    """Ranks that hold something else than they should, and what went wrong on them first.

    `kind` is "op" (took the same, gave something else), "arguments", "random", "input" (came in
    differing), "gradient" (not reduced), "collective", "order" (of tensors or shards), "missing"
    (they did not run it), "extra" (others did not), "dtype", "mode" or "nonfinite". `ranks` are
    wrong, `others` are not; without a majority `others` is empty. `name` is the parameter or buffer
    that it is about, `facts` show it.
    """

    kind: str
    ranks: tuple[int, ...]
    others: tuple[int, ...]
    step: int
    phase: str
    op: str
    module: str | None
    name: str | None
    file: str
    line: int
    event: int
    text: str
    facts: tuple[str, ...]

    @property
    def place(self) -> str:
        """Return file name and line as text, empty if they are not known."""
        return f"{self.file}:{self.line}" if self.file else ""

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return plain(f"<RankDifference {self.kind} on {listed(self.ranks)}, step {self.step}>")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return {
            "kind": self.kind, "ranks": list(self.ranks), "others": list(self.others),
            "step": self.step, "phase": self.phase, "op": self.op, "module": self.module,
            "name": self.name, "file": self.file, "line": self.line, "event": self.event,
            "text": self.text, "facts": list(self.facts),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class RankEnd(Data):
    """A rank whose trace was not closed: the last step and event that are there."""

    rank: int
    step: int
    op: str
    file: str
    line: int
    events: int


@dataclass(frozen=True, slots=True, repr=False)
class RankAgreement(Data):
    """Whether ranks that should agree do: `equal`, and `first`, the first place where not.

    `differences` has an entry for each group of ranks that is wrong in its own way. `groups` are
    ranks that agree with each other, the largest first. `placements` says how parameters and
    buffers lie on the ranks, `ended` which ranks were killed and where, `notes` what differs by
    design or was not checked. `compared` is the number of tensors that were looked at, per rank.
    """

    ranks: tuple[int, ...]
    differences: tuple[RankDifference, ...]
    groups: tuple[tuple[int, ...], ...]
    placements: tuple[Placement, ...]
    ended: tuple[RankEnd, ...]
    notes: tuple[str, ...]
    compared: int

    @property
    def equal(self) -> bool:
        """Return whether nothing was found that should agree and does not."""
        return not self.differences

    @property
    def first(self) -> RankDifference | None:
        """Return the first difference, None if there is none."""
        return self.differences[0] if self.differences else None

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        what = "agree" if self.first is None else f"differ: {self.first.text}"
        return plain(f"<RankAgreement {listed(self.ranks)} {what}>")

    def text(self, rows: int | None = ROWS, more: str = "text(rows=None) shows all") -> str:
        """Return the answer as text with at most so many placements and differences."""
        return "\n".join(agreement_lines(self, rows, more))

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain data."""
        return {
            "equal": self.equal,
            "ranks": list(self.ranks),
            "first": None if self.first is None else self.first.to_dict(),
            "differences": [one.to_dict() for one in self.differences],
            "groups": [list(group) for group in self.groups],
            "placements": [one.to_dict() for one in self.placements],
            "ended": [one.to_dict() for one in self.ended],
            "notes": list(self.notes),
            "compared": self.compared,
        }

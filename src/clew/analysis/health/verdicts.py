"""What the rules of `health` say, as frozen data: per rule a verdict, its findings, a note.

`analysis.health.health_check` makes them from a run; `health_lines` writes them as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from clew.analysis.health.health_lines import ROWS, health_lines
from clew.events.model import Data, Source
from clew.plain_text import plain
from clew.run.event import Event

FOUND, FINE, NOT_CHECKED = VERDICTS = ("found", "fine", "not checked")


@dataclass(frozen=True, slots=True, repr=False)
class HealthFinding(Data):
    """One thing that a rule found.

    `address` names the parameter, module or op, `step` and `rank` say when and where it was worst,
    `figure` is what was measured and `threshold` what it was compared with. `text` is a sentence,
    `advice` what to do. `event` is the event to look at. `certain` is set where nothing but a fault
    looks like this; such findings are in `Trace.findings` too.
    """

    rule: str
    address: str
    step: int
    rank: int
    figure: float
    threshold: float
    text: str
    advice: str
    event: Event
    certain: bool = False

    @property
    def source(self) -> Source | None:
        """Return the line of user code that the event came from."""
        return self.event.source

    def __str__(self) -> str:
        return f"{self.text}; {self.advice}"

    def __repr__(self) -> str:
        return plain(f"<HealthFinding {self.rule} at {self.address}: {self.text}>")

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as plain data; of the event only what is needed to find it."""
        source = self.source
        return {
            "rule": self.rule,
            "address": self.address,
            "step": self.step,
            "rank": self.rank,
            "figure": self.figure,
            "threshold": self.threshold,
            "text": self.text,
            "advice": self.advice,
            "certain": self.certain,
            "event": self.event.id,
            "event_address": self.event.address,
            "module": self.event.module,
            "source": None if source is None else source.to_dict(),
        }


@dataclass(frozen=True, slots=True, repr=False)
class HealthRule(Data):
    """One rule and its verdict: `"found"`, `"fine"` or `"not checked"`.

    `note` says why a rule was not checked and what to record for it, or what a check left open.
    `threshold` is the name of the threshold that it uses, empty for none.
    """

    name: str
    verdict: str
    findings: tuple[HealthFinding, ...]
    note: str
    threshold: str

    def __repr__(self) -> str:
        count = f" {len(self.findings):,}" if self.findings else ""
        return plain(f"<HealthRule {self.name}: {self.verdict}{count}>")

    def to_dict(self) -> dict[str, Any]:
        """Return the rule as plain data."""
        return {
            "name": self.name,
            "verdict": self.verdict,
            "threshold": self.threshold,
            "note": self.note,
            "findings": [one.to_dict() for one in self.findings],
        }


@dataclass(frozen=True, slots=True, repr=False)
class Health(Data):
    """What all rules say about a run; `print` shows what was found first."""

    rules: tuple[HealthRule, ...]
    thresholds: dict[str, float]
    steps: int

    @property
    def found(self) -> tuple[HealthFinding, ...]:
        """Return the findings of all rules."""
        return tuple(one for rule in self.rules for one in rule.findings)

    @property
    def is_fine(self) -> bool:
        """Return whether no rule found anything."""
        return not self.found

    def __getitem__(self, name: str) -> HealthRule:
        """Return a rule by its name."""
        for rule in self.rules:
            if rule.name == name:
                return rule
        raise KeyError(f"{name!r}; there are: {', '.join(rule.name for rule in self.rules)}")

    def __str__(self) -> str:
        return self.text()

    def text(self, rows: int = ROWS, more: str = "`found` has all") -> str:
        """Write the rules with at most so many findings each; `more` says how to see the rest."""
        return "\n".join(map(plain, health_lines(self, rows, more)))

    def __repr__(self) -> str:
        words = [f"{sum(r.verdict == word for r in self.rules)} {word}" for word in VERDICTS]
        return f"<Health of {self.steps:,} steps: {', '.join(words)}>"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "steps": self.steps,
            "found": len(self.found),
            "thresholds": dict(self.thresholds),
            "rules": [rule.to_dict() for rule in self.rules],
        }


def judged(
    name: str, findings: Sequence[HealthFinding], threshold: str = "", note: str = ""
) -> HealthRule:
    """Return the verdict of a rule that was checked."""
    named = tuple(replace(one, text=plain(one.text)) for one in findings)
    return HealthRule(name, FOUND if named else FINE, named, note, threshold)


def not_checked(name: str, why: str, threshold: str = "") -> HealthRule:
    """Return the verdict of a rule that could not be checked: `why`, and what to record."""
    return HealthRule(name, NOT_CHECKED, (), why, threshold)

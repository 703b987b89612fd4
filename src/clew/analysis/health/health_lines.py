"""The verdicts of `health` as lines of text: what was found first, then what was not checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from clew.analysis.file_names import bare_name

if TYPE_CHECKING:
    from clew.analysis.health.verdicts import Health, HealthFinding, HealthRule

# How many findings of each rule a text shows.
ROWS = 5


def health_lines(health: Health, rows: int, more: str) -> Iterator[str]:
    """Yield the lines: findings with what to do, rules that are fine, rules that lack facts."""
    found = [rule for rule in health.rules if rule.verdict == "found"]
    fine = [rule for rule in health.rules if rule.verdict == "fine"]
    unchecked = [rule for rule in health.rules if rule.verdict == "not checked"]
    steps = "1 step" if health.steps == 1 else f"{health.steps:,} steps"
    yield f"health of {steps}: {len(found)} of {len(found) + len(fine)} rules found something"
    for rule in found:
        yield from _found(rule, rows, more)
    if fine:
        yield f"fine: {', '.join(rule.name for rule in fine)}"
    for rule in fine:
        if rule.note:
            yield f"  {rule.name}: {rule.note}"
    reasons: dict[str, list[str]] = {}
    for rule in unchecked:
        reasons.setdefault(rule.note, []).append(rule.name)
    if unchecked:
        yield "not checked:"
    for why, names in reasons.items():
        yield f"  {', '.join(names)}: {why}"


def _found(rule: HealthRule, rows: int, more: str) -> Iterator[str]:
    uses = f" ({rule.threshold})" if rule.threshold else ""
    yield f"{rule.name}{uses}"
    advice = ""
    for one in rule.findings[:rows]:
        yield f"  {one.text}{_where(one)}"
        if one.advice != advice:
            yield f"    {one.advice}"
        advice = one.advice
    left = len(rule.findings) - rows
    if left > 0:
        yield f"  ... {left:,} more; {more}"
    if rule.note:
        yield f"  {rule.note}"


def _where(one: HealthFinding) -> str:
    source = one.source
    return "" if source is None else f", {bare_name(source.file)}:{source.line}"

"""Which NaN or Inf of a run `clew.guard` raises for, and what it lets pass.

Input: a `Run`, while it is recorded, and a `GuardRule`. Output: the first origin to raise for, as a
`NonFiniteOrigin`, or None. Only what an op produced from finite numbers counts, and a constant (the
-inf of a mask) that became NaN: not what came with the data, was in a parameter before, or is
absorbed.

Gradients that are too large for float16 are no alarm while a `GradScaler` looks after them; see
`loss_scale`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clew.analysis.nonfinite import CONSTANT, PRODUCED, NonFiniteOrigin, NonFiniteSearch
from clew.analysis.nonfinite_hints import nonfinite_arguments
from clew.analysis.selection import select
from clew.errors import ClewError
from clew.run.run import Run


@dataclass(frozen=True, slots=True)
class GuardRule:
    """What to raise for: NaN, Inf, or both; not what the addresses of `allow` name.

    With `any_op`, what reaches no output, loss or gradient counts too. What came before the event
    `since`, or ran on threads of other names, does not.
    """

    nan: bool = True
    inf: bool = True
    allow: tuple[str, ...] = ()
    any_op: bool = False
    since: int = 0
    other_threads: frozenset[str] = frozenset()


def first_alarm(
    run: Run, rule: GuardRule, ends_at: Sequence[int] | None = None, is_over: bool = True
) -> NonFiniteOrigin | None:
    """Return the first origin to raise for.

    `ends_at` are events whose values are known to be not finite: what they hold comes from it.
    """
    search = NonFiniteSearch(run, ends_at, is_over)
    for found in search.found:
        if (
            _counts(found, rule, ends_at is not None)
            and not found.is_skipped
            and not _is_allowed(run, found, rule.allow)
        ):
            return found
    return None


def _counts(found: NonFiniteOrigin, rule: GuardRule, is_reached: bool) -> bool:
    """Return whether an origin is one that the rule is about."""
    if found.event.id < rule.since or found.event.thread in rule.other_threads:
        return False
    is_constant = found.kind == CONSTANT or bool(nonfinite_arguments(found.event))
    if rule.any_op and found.event.kind == "op" and not is_constant:
        return rule.nan if "NaN" in found.what else rule.inf
    if found.kind not in (PRODUCED, CONSTANT):
        return False
    if found.kind == CONSTANT and found.arrives != "NaN":
        return False
    if found.arrives == "unknown":
        return is_reached
    return rule.nan if found.arrives == "NaN" else rule.inf


def _is_allowed(run: Run, found: NonFiniteOrigin, allow: Sequence[str]) -> bool:
    """Return whether an address names the op, its line, or a module it ran in."""
    if not allow:
        return False
    rows = {found.event.row}
    forward = found.event.forward
    if forward is not None:
        rows.add(forward.row)
    for row in list(rows):
        above = int(run.owner_row[row])
        while above >= 0:
            rows.add(above)
            above = int(run.parent_row[above])
    return any(not rows.isdisjoint(_rows(run, address)) for address in allow)


def _rows(run: Run, address: str) -> set[int]:
    try:
        return {event.row for event in select(run, address)}
    except ClewError:
        return set()  # nothing of that name has run yet

"""What modules and optimizers were set to, at any moment of a run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

from clew.events.columns import Attributes


class SettingsHistory:
    """What the modules and optimizers of one rank were set to; grows by what changed."""

    def __init__(self, noted: Iterable[Attributes]) -> None:
        self._changes: dict[tuple[str, int, int], list[Attributes]] = {}
        for one in noted:
            self._changes.setdefault((one.kind, one.number, one.group), []).append(one)
        for changes in self._changes.values():
            changes.sort(key=lambda one: one.event)

    def of(self, kind: str, number: int, group: int, event: int) -> dict[str, Any]:
        """Give what something was set to when an event began; nothing before it was seen."""
        changes = self._changes.get((kind, number, group), [])
        found: dict[str, Any] = {}
        for one in changes[: bisect_right(changes, event, key=lambda one: one.event)]:
            found |= one.values
        return found

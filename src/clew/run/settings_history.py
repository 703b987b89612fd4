"""Settings of modules and optimizers, at any moment of a run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

from clew.events.columns import Attributes


class SettingsHistory:
    """Settings of the modules and optimizers of one rank; grows only with changes."""

    def __init__(self, noted: Iterable[Attributes]) -> None:
        self._changes: dict[tuple[str, int, int], list[Attributes]] = {}
        for one in noted:
            self._changes.setdefault((one.kind, one.number, one.group), []).append(one)
        for changes in self._changes.values():
            changes.sort(key=lambda one: one.event)

    def of(self, kind: str, number: int, group: int, event: int) -> dict[str, Any]:
        """Return the settings of an object when an event began; empty before it was first seen."""
        changes = self._changes.get((kind, number, group), [])
        found: dict[str, object] = {}
        for one in changes[: bisect_right(changes, event, key=lambda one: one.event)]:
            found |= one.values
        return found

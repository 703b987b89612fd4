"""Read traces of earlier format versions: one `Upgrade` per version.

A version may add columns, which are null in earlier traces, and change rows of tables, which are
brought up to date one version at a time. To add a version: a line here, `SCHEMA_VERSION`, and the
smallest real trace of the version before under `tests/formats`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from clew.events.columns import SCHEMA_VERSION
from clew.store.format.schema import SCHEMAS


@dataclass(frozen=True, slots=True)
class Upgrade:
    """What one version changed: columns it added, and how it converts older rows."""

    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rows: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)


def _label_with_stage_and_rank(row: Any) -> Any:
    return [*row, None, None]


UPGRADES = {
    3: Upgrade(rows={"label": _label_with_stage_and_rank}),
    # Derived facts of events; for earlier traces the reader derives them.
    4: Upgrade(columns={"events": ("forward", "owner", "prefix", "source")}),
    # Random numbers and memory.
    5: Upgrade(columns={"events": ("generator", "draw"), "values": ("nbytes", "freed")}),
    # Composites, a kind of events: the parent of an op may be one.
    6: Upgrade(),
    7: Upgrade(columns={"values": ("fingerprint",)}),
}


def upgraded_row(table: str, row: object, version: int) -> Any:
    """Convert a row of a table from some version to the current one."""
    for later in range(version + 1, SCHEMA_VERSION + 1):
        change = UPGRADES[later].rows.get(table)
        if change is not None:
            row = change(row)
    return row


def added_columns(table: str) -> set[str]:
    """Return the columns of a table that some readable version lacks."""
    return {name for change in UPGRADES.values() for name in change.columns.get(table, ())}


def known_schemas(table: str) -> list[pa.Schema]:
    """Return the schemas of a table in all readable versions, the newest first."""
    schemas = [SCHEMAS[table]]
    for version in sorted(UPGRADES, reverse=True):
        added = UPGRADES[version].columns.get(table, ())
        if added:
            schemas.append(pa.schema([f for f in schemas[-1] if f.name not in added]))
    return schemas

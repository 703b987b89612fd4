"""Rows of a rank's tables that comparing needs: arguments, looks of tensors, modes, settings."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from clew.analysis.ranks.arrow_columns import coded
from clew.store.read.rank_columns import ints


@dataclass(frozen=True, slots=True)
class MetaFacts:
    """What a tensor looks like: DTensor's placements and local shape, if it is one."""

    dtype: str = ""
    shape: tuple[int, ...] = ()
    kind: str = ""
    placements: str | None = None
    local: tuple[int, ...] | None = None


@dataclass
class TableRows:
    """Rows of a rank's tables that comparing needs, as they are in its files."""

    templates: dict[int, str] = field(default_factory=dict)
    metas: dict[int, MetaFacts] = field(default_factory=dict)
    modes: dict[int, str] = field(default_factory=dict)
    settings: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    parameters: set[str] = field(default_factory=set)
    ended: bool = False
    values: str = ""


def leaves_of(text: str) -> list[tuple[str, str, Any]]:
    """Return role, path and content of each argument and result of a template's row."""
    try:
        found = json.loads(text) if text else []
        return [(str(role), str(path), leaf) for role, path, leaf in found]
    except (ValueError, TypeError, RecursionError):
        return []


def is_tensor(leaf: Any) -> bool:
    """Return whether an argument of a template is a tensor."""
    return type(leaf) is list and leaf[:1] == ["tensor"]


def read_tables(rows: pa.Table) -> TableRows:
    """Read the rows of tables that comparing needs; rows that are damaged are left out."""
    found = TableRows()
    names, texts = coded(rows["table"]), coded(rows["row"])
    numbers = ints(rows["number"]).tolist()
    for at, (name, text) in enumerate(zip(names.codes.tolist(), texts.codes.tolist(), strict=True)):
        if name >= 0 and text >= 0:
            try:
                _add_row(found, names.texts[name], numbers[at], texts.texts[text])
            except (ValueError, TypeError, KeyError, IndexError, RecursionError):
                continue
    return found


def _add_row(tables: TableRows, name: str, number: int, text: str) -> None:
    if name == "template":
        tables.templates[number] = text
    elif name == "meta":
        dtype, shape, _, _, _, kind, placements, local = json.loads(text)
        tables.metas[number] = MetaFacts(
            str(dtype), tuple(map(int, shape or ())), str(kind),
            None if placements is None else str(placements),
            None if local is None else tuple(map(int, local)),
        )  # fmt: skip
    elif name == "mode":
        step, mode = json.loads(text)
        tables.modes[int(step)] = str(mode)
    elif name == "attribute":
        kind, _, _, event, values = json.loads(text)
        if kind == "optimizer" and type(values) is dict:
            tables.settings.append((int(event), values))
    elif name == "parameter":
        tables.parameters.add(str(json.loads(text)[0]))
    elif name == "end":
        tables.ended = True
    elif name == "environment":
        tables.values = str(json.loads(text).get("values", ""))

"""The numbered tables of a trace, listed once for writing, reading and repairing.

Each table is a list of rows that columns refer to by number: names of ops, places in the code,
dtypes and shapes of tensors. To add one: a line here, and a field of `Columns`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from clew.events.columns import Meta, ModuleRow, Place, Template
from clew.events.vocabulary import LABELLED, Label
from clew.store.format.json_rows import (
    load_attributes,
    load_gap,
    load_label,
    load_meta,
    load_mode,
    load_module,
    load_name,
    load_parameter,
    load_place,
    load_template,
    load_text,
)

_LOST = "?"


@dataclass(frozen=True, slots=True)
class TableKind:
    """How a table's rows are made from JSON, and which field of `Columns` holds them.

    `lost` replaces a lost row; None means that such a row is left out, because nothing refers to it
    by number.
    """

    load: Callable[[Any], Any]
    attribute: str
    lost: Any = None


TABLES: dict[str, TableKind] = {
    "op": TableKind(load_name, "ops", _LOST),
    "note": TableKind(load_name, "notes", _LOST),
    "label": TableKind(load_label, "labels", Label(LABELLED[0], _LOST, _LOST)),
    "module": TableKind(load_module, "modules", ModuleRow(_LOST, _LOST, -1, False)),
    "place": TableKind(load_place, "places", Place(-1, "", "", 0, 0, 0, 0, True, 0, 0)),
    "template": TableKind(load_template, "templates", Template(())),
    "meta": TableKind(
        load_meta, "metas", Meta("unknown", None, None, "", "strided", "Tensor", None, None)
    ),
    "value_name": TableKind(load_text, "value_names", _LOST),
    "thread": TableKind(load_text, "threads", _LOST),
    "generator": TableKind(load_text, "generators", _LOST),
    "attribute": TableKind(load_attributes, "attributes"),
    "parameter": TableKind(load_parameter, "parameters"),
    "mode": TableKind(load_mode, "modes"),
    "gap": TableKind(load_gap, "gaps"),
}

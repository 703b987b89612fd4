"""Table rows as JSON text and back: names, templates, places and the like.

Every table of a trace on disk is a list of numbered rows, each a line of JSON, so that a reader
in any language can follow them and no code runs on load.
"""

from __future__ import annotations

import json
from dataclasses import astuple
from typing import Any

from clew.events.columns import Leaf, Meta, ModuleRow, Place, Symbol, Template, Tensor
from clew.events.model import Gap
from clew.events.records import Unseen


def dump(row: Any) -> str:
    """One row as JSON."""
    if isinstance(row, Template):
        data: Any = [[leaf.role, leaf.path, _dump_constant(leaf.constant)] for leaf in row.leaves]
    elif isinstance(row, (Meta, Place, ModuleRow, Gap)):
        data = astuple(row)
    else:
        data = row
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False)


def load_template(text: str) -> Template:
    """A template from its row."""
    return Template(
        tuple(Leaf(str(role), str(path), _load_constant(c)) for role, path, c in json.loads(text))
    )


def load_meta(text: str) -> Meta:
    """A meta from its row."""
    dtype, shape, stride, device, layout, cls, placements, local = json.loads(text)
    return Meta(
        str(dtype), _ints(shape), _ints(stride), str(device), str(layout), str(cls),
        placements, _ints(local),
    )  # fmt: skip


def load_place(text: str) -> Place:
    """A place from its row."""
    parent, file, function, line, end_line, col, end_col, library, phase, thread = json.loads(text)
    return Place(
        int(parent), str(file), str(function), int(line), int(end_line), int(col), int(end_col),
        bool(library), int(phase), int(thread),
    )  # fmt: skip


def load_module(text: str) -> ModuleRow:
    """A module's name from its row."""
    path, cls, number, wrapper = json.loads(text)
    return ModuleRow(str(path), str(cls), int(number), bool(wrapper))


def load_gap(text: str) -> Gap:
    """A gap from its row."""
    what, where, why, remedy = json.loads(text)
    return Gap(str(what), str(where), str(why), str(remedy))


def load_parameter(text: str) -> tuple[str, int, int]:
    """A parameter from its row."""
    path, owner, count = json.loads(text)
    return str(path), int(owner), int(count)


def _ints(values: list[int] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(int(v) for v in values)


def _dump_constant(constant: Any) -> list[Any]:
    if constant is Tensor:
        return ["tensor"]
    if constant is Unseen:
        return ["unseen"]
    if isinstance(constant, Symbol):
        return ["symbol", str(constant)]
    if isinstance(constant, float):
        return ["float", repr(constant)]
    if isinstance(constant, complex):
        return ["complex", repr(constant.real), repr(constant.imag)]
    return ["value", constant]


def _load_constant(data: list[Any]) -> Any:
    kind, *rest = data
    if kind == "tensor":
        return Tensor
    if kind == "unseen":
        return Unseen
    if kind == "symbol":
        return Symbol(rest[0])
    if kind == "float":
        return float(rest[0])
    if kind == "complex":
        return complex(float(rest[0]), float(rest[1]))
    return rest[0]

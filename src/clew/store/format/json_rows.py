"""Table rows as JSON text and back: names, templates, places and the like.

Every table of a trace on disk is a list of numbered rows, each a line of JSON, so that a reader in
any language can parse them and no code runs on load. Loading raises ValueError for anything that is
not such a row.
"""

from __future__ import annotations

import json
from dataclasses import astuple
from sys import intern
from typing import Any

from clew.events.columns import (
    IN,
    OUT,
    Attributes,
    Leaf,
    Meta,
    ModuleRow,
    ObjectClass,
    Place,
    Symbol,
    Template,
    Tensor,
)
from clew.events.model import Gap
from clew.events.vocabulary import LABELLED, MODES, PHASES, STAGES, Label, Unseen

_LARGEST = (1 << 63) - 1
# The largest line, column or rank.
_LARGEST_SMALL = (1 << 31) - 1
_MOST_THREADS = 1 << 16
# Python parses integers only up to a number of digits, and views count the numbers in names.
LONGEST_NAME = 4000


def dump(row: object) -> str:
    """Write one row as JSON."""
    if isinstance(row, Template):
        data: object = [
            [leaf.role, leaf.path, _dump_constant(leaf.constant)] for leaf in row.leaves
        ]
    elif isinstance(row, (Meta, Place, ModuleRow, Gap, Label, Attributes)):
        data = astuple(row)
    else:
        data = row
    return to_json(data)


def to_json(data: object) -> str:
    """Write compact JSON with readable text that is valid UTF-8."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        # Half a surrogate pair, as in file names that are not UTF-8, becomes an escape.
        text = json.dumps(data, separators=(",", ":"))
    return text


def from_json(text: str) -> Any:
    """Parse JSON; raise ValueError if it is invalid, or nested too deep."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def load_template(data: object) -> Template:
    """Make a template from its row."""
    return Template(tuple(_leaf(*_listed(item, 3)) for item in _listed(data)))


def load_meta(data: Any) -> Meta:
    """Make a meta from its row."""
    dtype, shape, stride, device, layout, cls, placements, local = _listed(data, 8)
    return Meta(
        _text(dtype), _sizes(shape), _sizes(stride), _text(device), _text(layout), _text(cls),
        None if placements is None else _text(placements), _sizes(local),
    )  # fmt: skip


def load_place(data: object) -> Place:
    """Make a place from its row."""
    parent, file, function, *numbers = _listed(data, 10)
    line, end_line, col, end_col, library, phase, thread = map(_small, numbers)
    if not 0 <= phase < len(PHASES) or not 0 <= thread < _MOST_THREADS:
        raise ValueError(f"there is no phase {phase} or thread {thread}")
    return Place(
        # Many places share a file and a function.
        _integer(parent), intern(_text(file)), intern(_text(function)), line, end_line, col,
        end_col, bool(library), phase, thread,
    )  # fmt: skip


def load_module(data: object) -> ModuleRow:
    """Make a module row from its data."""
    path, cls, number, wrapper = _listed(data, 4)
    return ModuleRow(_name(path), _name(cls), _integer(number), bool(wrapper))


def load_label(data: object) -> Label:
    """Make the label of a variable, tap or gradient from its row."""
    kind, stem, name, *rest, stage, rank = _listed(data, 9)
    if kind not in LABELLED or stage not in (None, *STAGES):
        raise ValueError(f"events of kind {kind!r} and stage {stage!r:.40} have no label")
    role, module, file, package = (r if r is None else _name(r) for r in rest)
    return Label(
        kind, _name(stem), _name(name), role, module, file, package, stage,
        None if rank is None else _small(rank),
    )  # fmt: skip


def load_attributes(data: object) -> Attributes:
    """Make the settings of a module or optimizer from their row."""
    kind, number, group, event, values = _listed(data, 5)
    return Attributes(
        _name(kind), _integer(number), _integer(group), _integer(event), load_facts(values)
    )


def load_gap(data: object) -> Gap:
    """Make a gap from its row."""
    return Gap(*map(_text, _listed(data, 4)))


def load_parameter(data: Any) -> tuple[str, int, int]:
    """Make a parameter from its row."""
    path, owner, count = _listed(data, 3)
    return _text(path), _integer(owner), _integer(count)


def load_mode(data: object) -> tuple[int, str]:
    """Make a step and its mode from their row."""
    step, mode = _listed(data, 2)
    if mode not in MODES:
        raise ValueError(f"there is no mode {mode!r:.40}")
    return _integer(step), mode


def load_name(data: object) -> str:
    """Make a name from its row."""
    return _name(data)


def load_text(data: Any) -> str:
    """Make a text from its row."""
    return _text(data)


def load_source(data: Any) -> tuple[str, str]:
    """Make a source file, its path and its text, from its row."""
    file, source = _listed(data, 2)
    return _text(file), _text(source)


def load_facts(data: object) -> dict[str, Any]:
    """Check a row that is a mapping."""
    if not isinstance(data, dict):
        raise ValueError(f"it is a {type(data).__name__}, no mapping")
    return data


def _dump_constant(constant: object) -> list[object]:
    if constant is Tensor:
        return ["tensor"]
    if constant is Unseen:
        return ["unseen"]
    if isinstance(constant, ObjectClass):
        return ["object", str(constant)]
    if isinstance(constant, Symbol):
        return ["symbol", str(constant)]
    if isinstance(constant, float):
        return ["float", repr(constant)]
    if isinstance(constant, complex):
        return ["complex", repr(constant.real), repr(constant.imag)]
    # Python writes integers in decimal only up to a number of digits.
    if isinstance(constant, int) and abs(constant) > _LARGEST:
        return ["integer", hex(constant)]
    if isinstance(constant, list) and any(abs(item) > _LARGEST for item in constant):
        return ["integers", [hex(item) for item in constant]]
    return ["value", constant]


def _load_constant(data: object) -> object:
    kind, *rest = _listed(data)
    if kind == "tensor":
        return Tensor
    if kind == "unseen":
        return Unseen
    if kind == "object":
        return ObjectClass(_text(*rest))
    if kind == "symbol":
        return Symbol(_text(*rest))
    if kind == "float":
        return float(_text(*rest))
    if kind == "complex":
        return complex(*map(float, map(_text, rest)))
    if kind == "integer":
        return int(_text(*rest), 16)
    if kind == "integers":
        return [int(_text(item), 16) for item in _listed(*rest)]
    (constant,) = rest
    if type(constant) is list:
        return [_integer(item) for item in constant]
    if constant is not None and type(constant) not in (bool, int, str):
        raise ValueError(f"a {type(constant).__name__} is no constant")
    return constant


def _leaf(role: object, path: object, constant: object) -> Leaf:
    if role not in (IN, OUT):
        raise ValueError(f"{role!r} is neither argument nor result")
    return Leaf(IN if role == IN else OUT, intern(_text(path)), _load_constant(constant))


def _listed(data: Any, count: int | None = None) -> list[Any]:
    if type(data) is not list or (count is not None and len(data) != count):
        raise ValueError(f"a list of {'some' if count is None else count} things belongs here")
    return data


def _text(data: object) -> str:
    if type(data) is not str:
        raise ValueError(f"text belongs where there is a {type(data).__name__}")
    return data


def _name(data: Any) -> str:
    if len(_text(data)) > LONGEST_NAME:
        raise ValueError(f"a name has {len(data)} characters")
    return str(data)


def _integer(data: Any) -> int:
    if type(data) not in (int, bool) or not -_LARGEST - 1 <= data <= _LARGEST:
        raise ValueError("a whole number belongs here")
    return int(data)


def _small(data: object) -> int:
    if abs(number := _integer(data)) > _LARGEST_SMALL:
        raise ValueError(f"{number} belongs nowhere")
    return number


def _sizes(data: object) -> tuple[int, ...] | None:
    return None if data is None else tuple(_integer(size) for size in _listed(data))

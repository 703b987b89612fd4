"""Words, colours and formats that Python and the page share, read from `spec.json`.

Input: the file. Output: constants. `viewer/spec.mjs` makes the page's constants and colours of the
same file, and its `cases` are tried by both languages.
"""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

_FILE = os.path.join(os.path.dirname(__file__), "spec.json")


class Units(NamedTuple):
    """Names of the units of something, each `base` times the one before."""

    base: int
    names: tuple[str, ...]


class Paint(NamedTuple):
    """Fill and line colour of a box on light and dark pages."""

    fill: str
    line: str
    dark_fill: str
    dark_line: str


def read() -> dict[str, Any]:
    """Return the whole file as plain data."""
    with open(_FILE, encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found


_SPEC = read()

KINDS: tuple[str, ...] = tuple(_SPEC["kinds"])
PHASES: tuple[str, ...] = tuple(_SPEC["phases"])
# Words after a colon in an address.
ROLES: tuple[str, ...] = tuple(_SPEC["roles"])
# Of findings, the worst first.
SEVERITIES: tuple[str, ...] = tuple(_SPEC["severities"])

SHORT_DTYPES: dict[str, str] = _SPEC["dtypes"]
DTYPE_PREFIXES: dict[str, str] = _SPEC["dtype_prefixes"]

# Ops by their bare names: those that give a tensor another shape, those whose result is
# uninitialised memory, and all that only look at memory in another way, copy it or make some.
RESHAPING_OPS: frozenset[str] = frozenset(_SPEC["reshaping_ops"])
UNINITIALISED_OPS: frozenset[str] = frozenset(_SPEC["uninitialised_ops"])
VIEW_OPS: frozenset[str] = frozenset(_SPEC["view_ops"])
# A pattern of the ops that people search for.
TELLING_OPS: str = _SPEC["telling_ops"]

# Families of ops and of module classes, each with a pattern of names; None for those that are not
# found by a pattern. The first that fits counts.
OP_FAMILIES: tuple[tuple[str, str | None], ...] = tuple(
    (name, pattern) for name, pattern, _ in _SPEC["op_families"]
)
CLASS_FAMILIES: tuple[tuple[str, str | None], ...] = tuple(
    (name, pattern) for name, pattern, *_ in _SPEC["class_families"]
)
CLASS_PAINTS: dict[str, Paint] = {
    name: Paint(*colors[:4]) for name, _, *colors in _SPEC["class_families"]
}
# Colours from little to much.
SCALE: tuple[Paint, ...] = tuple(Paint(*colors) for colors in _SPEC["scale"])

UNITS: dict[str, Units] = {
    what: Units(units["base"], tuple(units["names"])) for what, units in _SPEC["units"].items()
}
# From so many seconds on a time is written in minutes.
MINUTES_FROM: int = _SPEC["minutes_from_seconds"]
# Significant digits of a measured number.
DIGITS: int = _SPEC["digits"]

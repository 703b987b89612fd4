"""Runs that cost much to draw for how little they are: nested deep, or full of long names.

In comes a number of calls, out comes a run made of columns as a file holds them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clew.events.columns import (
    COLUMN_NAMES,
    IN,
    OUT,
    Columns,
    Leaf,
    Meta,
    ModuleRow,
    Place,
    Template,
    Tensor,
)
from clew.events.vocabulary import MODULE
from clew.run.run import Run, run_of


def nested(count: int) -> Run:
    """Calls of modules of their own, each inside the one before."""
    return _calls([f"m{n}" for n in range(count)], np.arange(count) - 1)


def recursive(count: int) -> Run:
    """Calls of one module, each inside the one before."""
    return _calls(["again"] * count, np.arange(count) - 1)


def long_names(count: int) -> Run:
    """Calls side by side of modules with long names without a dot."""
    names = ["", *(f"{n:x<300}" for n in range(count - 1))]
    return _calls(names, _side_by_side(count))


def long_paths(count: int) -> Run:
    """Calls side by side of modules with long names of many parts."""
    names = ["", *(f"m{n}" + ".a.b.c" * 50 for n in range(count - 1))]
    return _calls(names, _side_by_side(count))


def other_names(count: int) -> Run:
    """Calls side by side of modules with long names that do not count up."""
    return _calls(["", *(_letters(n) * 50 for n in range(count - 1))], _side_by_side(count))


def named(names: list[str]) -> Run:
    """Calls of modules with some names, side by side in the first."""
    return _calls(names, _side_by_side(len(names)))


def skips(count: int) -> Run:
    """Calls side by side that take what the one before gives, and what the first is given."""
    taken = [[0] if n < 2 else [0, n - 1] for n in range(count)]
    given = [[count - 1] if n == 0 else [n] for n in range(count)]
    return _calls([f"{_letters(n)}" for n in range(count)], _side_by_side(count), taken, given)


def fan(count: int) -> Run:
    """Calls side by side that take the same value, all of whose results are returned."""
    taken = [[0]] * count
    given = [list(range(1, count)) if n == 0 else [n] for n in range(count)]
    return _calls([f"{_letters(n)}" for n in range(count)], _side_by_side(count), taken, given)


RUNS = {
    made.__name__: made
    for made in (nested, recursive, long_names, long_paths, other_names, skips, fan)
}


def _side_by_side(count: int) -> Any:
    return np.where(np.arange(count) > 0, 0, -1)


def _letters(number: int) -> str:
    """Give a number as letters, which no view takes for one that counts up."""
    return f"{number:06}".translate(str.maketrans("0123456789", "abcdefghij"))


def _calls(
    names: list[str],
    parents: Any,
    taken: list[list[int]] | None = None,
    given: list[list[int]] | None = None,
) -> Run:
    count = len(names)
    taken, given = taken or [[]] * count, given or [[]] * count
    arrays: dict[str, Any] = {name: np.zeros(count, dtype=np.int64) for name in COLUMN_NAMES}
    arrays["id"] = np.arange(count, dtype=np.int64)
    arrays["start"] = np.arange(count, dtype=np.int64)
    arrays["end"] = 2 * count - np.arange(count, dtype=np.int64)
    arrays["kind"] += MODULE
    arrays["error"] -= 1
    paths = list(dict.fromkeys(names))
    numbers = {path: number for number, path in enumerate(paths)}
    arrays["subject"] = np.array([numbers[name] for name in names], dtype=np.int64)
    arrays["parent"] = np.asarray(parents, dtype=np.int64)
    refs = [[*ins, *outs] for ins, outs in zip(taken, given, strict=True)]
    arrays["refs"] = np.array([value for values in refs for value in values], dtype=np.int64)
    arrays["first_ref"] = np.cumsum([0, *map(len, refs)])[:-1]
    kinds = [(len(ins), len(outs)) for ins, outs in zip(taken, given, strict=True)]
    templates = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    arrays["template"] = np.array([templates[kind] for kind in kinds], dtype=np.int64)
    values = int(arrays["refs"].max(initial=-1)) + 1
    for name in ("version", "storage", "meta", "grad", "producer", "value_name"):
        arrays[name] = np.zeros(values, dtype=np.int64)
    arrays["storage"] += np.arange(values)
    arrays["producer"] -= 1
    arrays["value_name"] -= 1
    columns = Columns(
        **arrays,
        modules=[ModuleRow(path, "Block", number, False) for number, path in enumerate(paths)],
        parameters=[(f"{path}.w", number, 3) for number, path in enumerate(paths)],
        places=[Place(-1, "", "", 0, 0, 0, 0, True, 0, 0)],
        templates=[_template(*kind) for kind in templates],
        metas=[Meta("float32", (2,), (1,), "cpu", "strided", "Tensor", None, None)],
        threads=["main"],
        environment={"name": "deep", "level": "modules", "clock": 0},
    )
    return run_of(columns)


def _template(taken: int, given: int) -> Template:
    ins = [Leaf(IN, str(n), Tensor) for n in range(taken)]
    return Template((*ins, *(Leaf(OUT, f"out{n}", Tensor) for n in range(given))))

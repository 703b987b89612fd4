"""A plain list of calls, one module path per line, as a trace: names and order, no tensors.

Forward hooks list a call when it ends, after the calls in it; other tools when it begins. Both
orders are read. A container that has no line gets a node around the modules in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from clew.errors import ClewError
from clew.events.columns import COLUMN_NAMES, VALUE_COLUMNS, Columns, ModuleRow, Place, Template
from clew.events.vocabulary import MODULE
from clew.run.run import Run, run_of

# The name that hooks give the model itself, which has no path.
_ROOT = "root"


@dataclass(slots=True)
class _ListedCall:
    path: str
    inside: list[_ListedCall] = field(default_factory=list)
    listed: bool = False


def read_calls(lines: Iterable[str], title: str = "calls") -> Run:
    """Read the calls that some lines list."""
    paths = [line.strip() for line in lines]
    paths = [path for path in paths if path]
    if not paths:
        raise ClewError(f"{title} lists no calls; it needs one module path per line")
    for number, path in enumerate(paths, 1):
        if any(c.isspace() for c in path) or not all(path.split(".")):
            raise ClewError(f"{title}, call {number}: {path[:60]!r} is not the path of a module")
    if paths[-1] == _ROOT and len(paths) > 1:
        paths[-1] = ""
    elif paths[0] == _ROOT and len(paths) > 1:
        paths[0] = ""
    return _as_run(_nest(paths, _begins_first(paths)), title)


def _begins_first(paths: list[str]) -> bool:
    """Return whether a call is listed before those in it."""
    seen: dict[str, int] = {}
    for at, path in enumerate(paths):
        seen.setdefault(path, at)
    for path, at in seen.items():
        above = _container(path)
        while above is not None:
            if above in seen:
                return seen[above] < at
            above = _container(above)
    return False


def _container(path: str) -> str | None:
    """Return the module that contains a module; an index belongs to the name before it."""
    if not path:
        return None
    names = path.split(".")[:-1]
    while names and names[-1].isdigit() and path.split(".")[len(names)].isdigit():
        names.pop()
    if path.split(".")[-1].isdigit() and names and not names[-1].isdigit():
        names.pop()
    return ".".join(names)


def _nest(paths: list[str], begins_first: bool) -> list[_ListedCall]:
    """Return the calls as a forest, in order."""
    # Read backwards, a list by end has containers first, so the same code reads both orders.
    root = _ListedCall("", listed="" in paths)
    open_calls = [root]
    for path in paths if begins_first else reversed(paths):
        if path == "":
            continue
        while not _is_inside(path, open_calls[-1]):
            open_calls.pop()
        for above in _missing(path, open_calls[-1].path):
            call = _ListedCall(above)
            open_calls[-1].inside.append(call)
            open_calls.append(call)
        call = _ListedCall(path, listed=True)
        open_calls[-1].inside.append(call)
        open_calls.append(call)
    if not begins_first:
        _turn(root)
    return [root] if root.listed else root.inside


def _is_inside(path: str, call: _ListedCall) -> bool:
    return call.path == "" or path.startswith(call.path + ".")


def _missing(path: str, above: str) -> list[str]:
    """Return the containers between two modules, outermost first."""
    found: list[str] = []
    at = _container(path)
    while at and at != above and at.startswith(above + "." if above else ""):
        found.append(at)
        at = _container(at)
    return found[::-1]


def _turn(call: _ListedCall) -> None:
    pending = [call]
    while pending:
        turned = pending.pop()
        turned.inside.reverse()
        pending += turned.inside


def _as_run(calls: list[_ListedCall], title: str) -> Run:
    rows: list[tuple[str, int]] = []
    pending = [(call, -1) for call in reversed(calls)]
    while pending:
        call, parent = pending.pop()
        row = len(rows)
        rows.append((call.path, parent))
        pending += [(inner, row) for inner in reversed(call.inside)]
    paths = list(dict.fromkeys(path for path, _ in rows))
    subjects = {path: number for number, path in enumerate(paths)}
    count = len(rows)
    number: dict[str, int] = {}
    arrays: dict[str, Any] = {name: np.zeros(count, dtype=np.int64) for name in COLUMN_NAMES}
    arrays["id"] = np.arange(count, dtype=np.int64)
    arrays["kind"] += MODULE
    for name in ("error", "generator", "draw"):
        arrays[name] -= 1
    arrays["subject"] = np.array([subjects[path] for path, _ in rows], dtype=np.int64)
    arrays["parent"] = np.array([parent for _, parent in rows], dtype=np.int64)
    for row, (path, _) in enumerate(rows):
        arrays["number"][row] = number[path] = number.get(path, -1) + 1
    for name in ("refs", *VALUE_COLUMNS):
        arrays[name] = np.zeros(0, dtype=np.int64)
    columns = Columns(
        **arrays,
        modules=[ModuleRow(path, "", number, False) for number, path in enumerate(paths)],
        places=[Place(-1, "", "", 0, 0, 0, 0, True, 0, 0)],
        templates=[Template(())],
        threads=["main"],
        environment={"name": title, "level": "modules", "clock": 0},
    )
    return run_of(columns)

"""Named values of the tree: variables, taps, gradients; names that differ in an index are one."""

from __future__ import annotations

import re
from collections.abc import Hashable

from clew.analysis.tree.phases import listed
from clew.analysis.tree.tree_model import NAMED, TreeNode
from clew.events.columns import OUT
from clew.events.model import Source
from clew.events.vocabulary import GRADIENT, TAP, VARIABLE
from clew.run.run import Run

_DIGITS = re.compile(r"\d+")


def named_nodes(run: Run) -> tuple[TreeNode, ...]:
    """Return a node for each name; `count` is how many values it has, `outputs` their shapes."""
    found: dict[int, list[int]] = {}
    for row in sorted(row for kind in (VARIABLE, TAP, GRADIENT) for row in run.rows(kind).tolist()):
        found.setdefault(int(run.columns.subject[row]), []).append(row)
    groups: dict[Hashable, list[list[int]]] = {}
    for rows in found.values():
        key = _DIGITS.sub("#", _name(run, rows[0])), _looks(run, rows), len(rows)
        groups.setdefault(key, []).append(rows)
    return tuple(_node(run, alike) for alike in groups.values())


def _node(run: Run, alike: list[list[int]]) -> TreeNode:
    rows = alike[0]
    source, last = _lines(run, rows)
    return TreeNode(
        NAMED,
        listed([_name(run, mine[0]) for mine in alike]),
        0,
        len(alike) * len(rows),
        event=int(run.columns.id[rows[0]]),
        rank=int(run.process[rows[0]]),
        step=int(run.step[rows[0]]),
        modules=len(alike),
        outputs=tuple(("", look) for look in _looks(run, rows)),
        source=source,
        last_line=last,
    )


def _name(run: Run, row: int) -> str:
    """Return the address of all values that share a value's name."""
    stem = int(run.names.stem[row])
    return run.names.stems[stem].removesuffix("#") + run.names.roles[stem]


def _looks(run: Run, rows: list[int]) -> tuple[str, ...]:
    """Return dtype and shape of the values of one name, each once, in order."""
    texts = (", ".join(value.look for value in run.values_of(row, OUT).values()) for row in rows)
    return tuple(dict.fromkeys(texts))


def _lines(run: Run, rows: list[int]) -> tuple[Source | None, int | None]:
    """Return the first line of some events and the last, if they are in one file."""
    first = {int(run.derived.source[row]): row for row in reversed(rows)}
    sources = [source for row in first.values() if (source := run.source(row)) is not None]
    if len({source.file for source in sources}) != 1:
        return None, None
    lines = sorted(sources, key=lambda source: source.line)
    last = lines[-1].line
    return lines[0], last if last != lines[0].line else None

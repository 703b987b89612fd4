"""Facts of a graph's node: time, parameters, shapes, statistics, source, error."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from clew.analysis.file_names import file_names
from clew.analysis.fold import Folds, name_range
from clew.analysis.graph.graph_model import CALL, REPEAT, Node
from clew.analysis.parameters import Parameters
from clew.events.columns import IN, OUT, Meta
from clew.events.vocabulary import MODULE
from clew.events.vocabulary import OP as OP_EVENT

_SIZES = {"64": 8, "32": 4, "16": 2, "8": 1, "128": 16}


class NodeFacts:
    """Fills in the facts of nodes from the events they stand for."""

    def __init__(self, folds: Folds) -> None:
        self._structure = folds.structure
        self._run = folds.structure.run
        self._parameters = Parameters(self._run.columns.modules, self._run.columns.parameters)
        self._files = file_names(self._run)

    def filled(self, node: Node, rows: list[int]) -> Node:
        """Return the node with its facts; `rows` are its events in all runs, in order."""
        row = rows[0]
        if node.kind == REPEAT:
            return replace(node, events=self._ids(rows))
        c = self._run.columns
        error = next((int(c.error[r]) for r in rows if c.error[r] >= 0), -1)
        return replace(
            node,
            name=self._name(node, rows),
            events=self._ids(rows),
            ops=self._ops_inside[row],
            modules=len(self._modules(rows)) if node.kind == CALL else 0,
            parameters=self._parameters_of(rows) if node.kind == CALL else 0,
            seconds=self._seconds(rows),
            bytes=sum(_bytes(c.metas[int(c.meta[v])]) for v in self._given([row])),
            inputs=self._looks(row, IN),
            outputs=self._looks(row, OUT),
            stats=self._stats(rows),
            source=self._source(row),
            error=c.errors[error] if error >= 0 else None,
            address=self._run.event(row).address,
        )

    def _source(self, row: int) -> str | None:
        source = self._run.source(row)
        return None if source is None else f"{self._files[source.file]}:{source.line}"

    def _ids(self, rows: list[int]) -> tuple[int, ...]:
        ids = self._run.columns.id
        return tuple(int(ids[row]) for row in rows)

    def _name(self, node: Node, rows: list[int]) -> str:
        if node.kind != CALL or node.count == 1 or self._structure.kind[rows[-1]] != MODULE:
            return node.name
        first, last = self._structure.name(rows[0]), self._structure.name(rows[-1])
        return name_range(first, last) if first == node.name else node.name

    @cached_property
    def _ops_inside(self) -> list[int]:
        counts = (self._run.columns.kind == OP_EVENT).astype(np.int64)
        parents = self._structure.parent
        for level in reversed(self._structure.kids.levels):
            inside = level[parents[level] >= 0]
            np.add.at(counts, parents[inside], counts[inside])
        found: list[int] = counts.tolist()
        return found

    def _modules(self, rows: list[int]) -> dict[int, str]:
        """Return the modules that some calls called: number and path."""
        modules = self._run.columns.modules
        called = [modules[self._structure.subject[row]] for row in rows]
        return {module.number: module.path for module in called}

    def _parameters_of(self, rows: list[int]) -> int:
        return sum(self._parameters.inside(path) for path in self._modules(rows).values())

    def _seconds(self, rows: list[int]) -> float | None:
        start = self._run.columns.start
        ends = [int(self._run.end[row]) for row in rows]
        if any(end < 0 for end in ends):
            return None
        return sum(end - int(start[row]) for row, end in zip(rows, ends, strict=True)) / 1e9

    def _looks(self, row: int, role: str) -> tuple[str, ...]:
        holders = self._run.holders(row, role)
        inside = tuple(f"{path}." if path else "" for path in holders)
        values = self._run.values_of(row, role).items()
        looks = [value.look for path, value in values if not path.startswith(inside)]
        return (*looks, *holders.values())

    def _given(self, rows: Iterable[int]) -> list[int]:
        return [v for r in rows for leaf, v in self._run.direct_values(r) if leaf.role == OUT]

    def _stats(self, rows: list[int]) -> dict[str, float] | None:
        """Return counts and extremes over all results; NaN and Inf of everything inside."""
        kept = self._run.columns.kept
        if not kept:
            return None
        results = self._kept_stats(self._given(rows))
        inside = self._kept_stats(
            self._given(inner for row in rows for inner in self._structure.subtree(row))
        )
        if not inside:
            return None
        stats: dict[str, float] = {
            name: sum(s.get(name, 0) for s in (inside if name in ("nan", "inf") else results))
            for name in ("nan", "inf", "zeros", "count")
        }
        elements = sum(s.get("count", 0) for s in inside)
        stats["nan_share"] = stats["nan"] / elements if elements else 0.0
        for name, of in (("min", min), ("max", max), ("mean", _mean), ("std", max), ("norm", max)):
            known = [s[name] for s in results if s.get(name) is not None]
            if known:
                stats[name] = float(of(known))
        return stats

    def _kept_stats(self, values: list[int]) -> list[dict[str, Any]]:
        kept = self._run.columns.kept
        found = (kept.get(value) for value in dict.fromkeys(values))
        return [k.stats for k in found if k is not None and k.stats is not None]


def _mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)


def _bytes(meta: Meta) -> int:
    """Return how much memory a tensor's elements take, by its shape."""
    if meta.shape is None or any(size < 0 for size in meta.shape):
        return 0
    digits = "".join(c for c in meta.dtype.partition("_")[0] if c.isdigit())
    return prod(meta.shape) * _SIZES.get(digits, 1)

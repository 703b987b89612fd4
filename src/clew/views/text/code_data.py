"""Write the tree of the code view as plain data: dicts, lists, numbers and texts.

Input: nodes and a `Run`. Output: what `CodeView.to_dict()` returns and `clew code --json` prints.
Many JSON readers limit nesting, some to 256 levels. So below `DEEPEST` levels the children of a
node are in a separate list, and the node has its index.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import isfinite
from typing import Any

from clew.events.columns import IN, OUT
from clew.events.vocabulary import KINDS, MODULE, PHASES
from clew.run.run import Run
from clew.views.text.code_nodes import (
    BackwardPass,
    Failure,
    Line,
    ModuleCall,
    NamedValue,
    Node,
    Op,
    Ops,
    Rank,
    Repeated,
    Result,
    children,
)
from clew.views.text.event_texts import EventTexts

# How many nodes may lie inside each other; each is two levels of JSON.
DEEPEST = 100


def code_data(run: Run, texts: EventTexts, nodes: list[Node]) -> dict[str, Any]:
    """Write a tree.

    A node at the deepest level has no children; its `deeper` is an index into the list `deeper` of
    the whole result, where the children are.
    """
    facts = _NodeFacts(run, texts)
    top: list[dict[str, object]] = []
    deeper: list[list[dict[str, object]]] = []
    pending = [(node, top, 1) for node in reversed(nodes)]
    while pending:
        node, siblings, depth = pending.pop()
        fact = facts.of(node)
        siblings.append(fact)
        below = children(node)
        if isinstance(node, Line | ModuleCall | Rank):
            fact["children"] = []
        if below and depth < DEEPEST:
            pending += [(child, fact["children"], depth + 1) for child in reversed(below)]
        elif below:
            fact["deeper"] = len(deeper)
            deeper.append([])
            pending += [(child, deeper[-1], 1) for child in reversed(below)]
    return {"nodes": top, "deeper": deeper}


class _NodeFacts:
    """The facts of nodes of one run, their children aside."""

    def __init__(self, run: Run, texts: EventTexts) -> None:
        self._run = run
        self._texts = texts

    def of(self, node: Node) -> dict[str, Any]:
        """Return the facts of a node."""
        if isinstance(node, Line):
            return self._line(node)
        if isinstance(node, ModuleCall):
            return {"kind": "module", **self._call(node.row)}
        if isinstance(node, Result):
            return {"kind": "result", **self._call(node.row)}
        if isinstance(node, Op):
            forward = int(self._run.forward_row[node.rows[0]])
            return {
                "kind": KINDS[int(self._run.columns.kind[node.rows[0]])],
                "op": self._run.name(node.rows[0]),
                **self._events(node.rows),
                "forward": self._ids([forward])[0] if forward >= 0 else None,
                **self._arguments(node.rows[0]),
                "error": self._run.error(node.rows[0]),
            }
        if isinstance(node, NamedValue):
            return self._named(node)
        if isinstance(node, Failure):
            row = node.row
            error = self._run.error(row)
            return {
                "kind": "error",
                "name": self._run.name(row),
                **self._events([row]),
                "error": error,
            }
        if isinstance(node, Ops):
            return {"kind": node.kind, **self._counted(node.rows)}
        if isinstance(node, BackwardPass):
            elsewhere = self._ids(node.elsewhere)
            return {"kind": "backward_pass", **self._counted(node.counted), "elsewhere": elsewhere}
        if isinstance(node, Repeated):
            return self._repeated(node)
        return {"kind": "rank", "rank": node.rank}

    def _line(self, node: Line) -> dict[str, object]:
        calls = [row for row in node.calls if int(self._run.columns.kind[row]) == MODULE]
        return {
            "kind": "line",
            **self._run.source_at(node.place).to_dict(),
            "module": node.module,
            "run": node.run,
            "runs": node.runs.total,
            "calls": [self._call(row) for row in calls],
        }

    def _call(self, row: int) -> dict[str, object]:
        return {
            "module": self._run.module_path(row),
            "class": self._run.name(row),
            **self._events([row]),
            **self._arguments(row),
            "error": self._run.error(row),
        }

    def _named(self, node: NamedValue) -> dict[str, object]:
        row = node.rows[0]
        label = self._run.label(row)
        return {
            "kind": "value",
            "of": KINDS[int(self._run.columns.kind[row])],
            "name": self._run.name(row),
            "role": None if label is None else label.role,
            **self._events(node.rows),
            "text": self._texts.named(row),
            "values": self._values(row, OUT),
        }

    def _repeated(self, node: Repeated) -> dict[str, object]:
        tops = [row for run in node.runs for row in run]
        nan, inf = self._texts.not_finite(
            row for top in tops for row in (top, *self._run.subtree(top))
        )
        return {
            "kind": "repeat",
            "count": len(node.runs),
            "names": node.names,
            "runs": [self._ids(run) for run in node.runs],
            "nan": nan,
            "inf": inf,
        }

    def _counted(self, rows: list[int]) -> dict[str, object]:
        nan, inf = self._texts.not_finite(rows)
        return {
            "count": len(rows),
            "ops": dict(Counter(self._run.name(row) for row in rows)),
            "events": self._ids(rows),
            "nan": nan,
            "inf": inf,
        }

    def _events(self, rows: list[int]) -> dict[str, object]:
        """Return the events of a node, and the facts of the first of them."""
        seconds = [self._run.seconds(row) for row in rows]
        return {
            "events": self._ids(rows),
            "count": len(rows),
            "address": self._run.address(rows[0]),
            "step": int(self._run.step[rows[0]]),
            "phase": PHASES[int(self._run.phase[rows[0]])],
            "seconds": None if None in seconds else sum(s for s in seconds if s is not None),
        }

    def _arguments(self, row: int) -> dict[str, object]:
        return {
            "inputs": self._texts.inputs(row),
            "outputs": self._texts.outputs(row),
            "input_values": self._values(row, IN),
            "output_values": self._values(row, OUT),
        }

    def _values(self, row: int, role: str) -> list[dict[str, Any]]:
        found = []
        for path, value in self._run.values_of(row, role).items():
            stats = None if value.stats is None else _finite(value.stats.to_dict())
            shape = None if value.shape is None else list(value.shape)
            found.append({"path": path, "dtype": value.dtype, "shape": shape, "stats": stats})
        return found

    def _ids(self, rows: Sequence[int]) -> list[int]:
        ids = self._run.columns.id
        return [int(ids[row]) for row in rows]


def _finite(stats: dict[str, Any]) -> dict[str, Any]:
    """Replace numbers that are not finite by None, such as the mean of a tensor that is all NaN."""
    return {name: n if n is not None and isfinite(n) else None for name, n in stats.items()}

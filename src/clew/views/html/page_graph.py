"""The graph of a page: the model that `t.graph()` draws, with everything inside it, as columns.

Input: a run and the rows of the report. Output: columns in a `Packer` and a head of plain data. The
viewer draws boxes, opens and closes them; names, repeats, edges, labels, sizes and colours are
decided here. Forward passes of the same structure (steps, ranks) share one model, a `part`: column
`rows` has the rows of each pass, one pass after the other, and `event` of a node are positions in a
pass, one for each run of the repeats around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew.analysis.fold import Folds
from clew.analysis.graph import FlowModel, Node, Options, build_flow, count_boxes
from clew.analysis.graph.data_edges import Carried
from clew.analysis.graph.graph_model import CALL, INPUT, NEXT, OP, OUTPUT, REPEAT
from clew.analysis.graph.node_facts import NodeFacts
from clew.analysis.graph.part import forward_passes
from clew.errors import ClewError
from clew.events.columns import Ints
from clew.events.vocabulary import MODULE
from clew.plain_text import plain
from clew.run.run import Run
from clew.views.graph import words
from clew.views.graph.box_size import LABEL, box_size, title_size
from clew.views.graph.colors import FAMILIES, STEPS, Painter
from clew.views.graph.stylesheet import FONT, style_sheet
from clew.views.graph.text_size import text_width
from clew.views.graph.view import readable, readable_depth
from clew.views.html.payload import Packer

KINDS = (CALL, OP, REPEAT, INPUT, OUTPUT)
PAINTS = ("op", "io", "frame", *FAMILIES, *(f"q{step}" for step in range(STEPS)))
_COLORS = {
    "time": "time",
    "params": "parameters",
    "bytes": "bytes",
    "stats.std": "std",
    "stats.nan_share": "NaN share",
}
# Forward passes of so many different structures are drawn.
_MOST_PARTS = 8
_MOST_NODES = 12_000
# A pass with more events is split, and has no second model with views and copies.
_LONG_PASS = 20_000
_DEEPEST = 60
_DIGITS = re.compile(r"\d+")


class PageGraph:
    """The graphs of one trace; `new_row` has the row in the report of each event, -1 for none."""

    def __init__(self, run: Run, new_row: Ints) -> None:
        self._new_row = new_row
        self._texts: dict[str, int] = {"": 0}
        self._folds = {sizes: Folds(run, True, sizes) for sizes in (True, False)}
        self._folds[False].structure = self._folds[True].structure
        self._structure = self._folds[True].structure
        self._facts = NodeFacts(self._folds[True])

    def pack(self, packer: Packer, prefix: str) -> dict[str, Any]:
        """Put the columns into a packer; return the head."""
        groups, left_out = self._groups()
        parts = [
            self._part(passes, packer, f"{prefix}graph.{number}.")
            for number, passes in enumerate(groups)
        ]
        texts = [plain(text) for text in self._texts]
        packer.add(f"{prefix}graph.text_width", [ceil(text_width(t, LABEL)) for t in texts])
        return {
            "kinds": KINDS,
            "paints": PAINTS,
            "texts": texts,
            "font": FONT,
            "style": {theme: style_sheet(theme) for theme in ("light", "dark")},
            "parts": parts,
            "left_out": left_out,
        }

    def _groups(self) -> tuple[list[list[list[int]]], int]:
        """Return forward passes by structure, in order, and how many structures are left out."""
        passes = [
            part
            for rows in forward_passes(self._structure)
            for part in self._short(rows)
            if self._is_kept(part)
        ]
        if len(passes) < 2:
            return [passes] if passes else [], 0
        # Batches of several sizes go through the same calls.
        structure = self._folds[True].sizeless
        found: dict[tuple[int, ...], list[list[int]]] = {}
        for rows in passes:
            found.setdefault(tuple(structure.key(row) for row in rows), []).append(rows)
        groups = list(found.values())
        return groups[:_MOST_PARTS], max(0, len(groups) - _MOST_PARTS)

    def _short(self, rows: list[int]) -> Iterator[list[int]]:
        """Split a very long pass, such as a loop that calls a model, after each outermost call."""
        sizes, kind = self._structure.kids.sizes, self._structure.kind
        calls = [at for at, row in enumerate(rows) if kind[row] == MODULE]
        cuts = calls[:-1] if int(sizes[rows].sum()) > _LONG_PASS else []
        for start, end in pairwise([-1, *cuts, len(rows) - 1]):
            yield rows[start + 1 : end + 1]

    def _is_kept(self, rows: list[int]) -> bool:
        return bool((self._new_row[rows] >= 0).any())

    def _part(self, passes: list[list[int]], packer: Packer, prefix: str) -> dict[str, Any]:
        """Pack the model of passes that have the same structure, and the rows of each."""
        first = passes[0]
        spans = [self._span(rows) for rows in passes]
        chosen = self._chosen(first, len(spans[0]))
        folds = self._folds[chosen.sizes]
        heads: list[dict[str, Any]] = []
        for ops in ("major", "all"):
            if ops == "all" and len(spans[0]) > _LONG_PASS:
                break
            options = self._fitting(replace(chosen, ops=ops), first, folds)
            if heads and options.ops != ops:  # Too large with views and copies.
                break
            model = build_flow(options, first, folds, self._facts)
            packed = _PackedModel(model, self._texts, chosen.depth or 0)
            heads.append(packed.pack(packer, f"{prefix}{ops}.", self._pass_rows(model, spans)))
        return {"passes": len(passes), "models": heads}

    def _chosen(self, rows: list[int], events: int) -> Options:
        """Return the options with which `t.graph()` draws some rows; of very many, without edges
        having been drawn to see how many boxes there are.
        """
        if events > _LONG_PASS:
            return Options(readable_depth(Options(), rows, self._folds[True]))
        return readable(Options(), rows, self._folds)[1]

    def _fitting(self, options: Options, rows: list[int], folds: Folds) -> Options:
        """Return the options for the deepest model that is not too large for a page."""
        tries = [replace(options, depth=_DEEPEST)]
        tries += [replace(options, depth=depth, ops="between") for depth in (_DEEPEST, 6, 4, 3, 2)]
        for wanted in tries:
            if count_boxes(folds, wanted, rows)[0] <= _MOST_NODES:
                return wanted
        return replace(options, depth=1, ops="between")

    def _span(self, rows: list[int]) -> Ints:
        return np.array([r for row in rows for r in self._structure.subtree(row)], dtype=np.int64)

    def _pass_rows(self, model: FlowModel, spans: list[Ints]) -> tuple[Ints, list[Ints]]:
        """Return the rows that the nodes stand for, and the rows in the report of each pass."""
        used = np.unique(np.array([r for rows in model.rows.values() for r in rows], np.int64))
        # What ran in several threads does not lie in one stretch of rows.
        order = np.argsort(spans[0])
        at = order[np.searchsorted(spans[0], used, sorter=order)]
        same = [span for span in spans if len(span) == len(spans[0])]
        kept = [self._new_row[span[at]] for span in same]
        return used, [kept[0], *(rows for rows in kept[1:] if (rows >= 0).all())]


class _PackedModel:
    """One model as columns: nodes in order, edges with the values they carry."""

    def __init__(self, model: FlowModel, texts: dict[str, int], depth: int) -> None:
        self._model = model
        self._nodes = model.graph.nodes
        self._texts = texts
        self._depth = depth
        self._number = {node.id: number for number, node in enumerate(self._nodes)}

    def pack(self, packer: Packer, prefix: str, rows: tuple[Ints, list[Ints]]) -> dict[str, Any]:
        """Put the columns into a packer; return the head."""
        used, passes = rows
        packer.add(prefix + "rows", np.concatenate(passes), differences=True)
        events = [np.searchsorted(used, self._model.rows.get(node.id, ())) for node in self._nodes]
        packer.add(prefix + "events", [len(positions) for positions in events])
        packer.add(prefix + "event", _joined(events), differences=True)
        for name, column in self._node_columns().items():
            packer.add(prefix + name, column)
        for name, column in self._edge_columns().items():
            packer.add(prefix + name, column)
        colors = {}
        for by, name in _COLORS.items():
            found = self._colored(by)
            if found is not None:
                packer.add(f"{prefix}color.{by}", found[0])
                colors[by] = [name, *found[1:]]
        return {"prefix": prefix, "used": len(used), "passes": len(passes), "colors": colors}

    def _node_columns(self) -> dict[str, list[int]]:
        nodes, painter = self._nodes, Painter(self._nodes, "class")
        sizes = [
            (*box_size(node, words.SHOWN), *title_size(node), title_size(node, right=True)[0])
            for node in nodes
        ]
        by_id = {node.id: node for node in nodes}
        return {
            "id": [int(_DIGITS.findall(node.id)[0]) for node in nodes],
            "kind": [KINDS.index(node.kind) for node in nodes],
            "parent": [0 if n.parent is None else self._number[n.parent] + 1 for n in nodes],
            "name": [self._text(words.title(node)) for node in nodes],
            "class": [self._text(words.subtitle(node)) for node in nodes],
            "facts": [self._text(words.facts(node)) for node in nodes],
            "result": [self._text(", ".join(node.outputs[:3])) for node in nodes],
            "count": [node.count for node in nodes],
            "varies": [int(not node.exact) for node in nodes],
            "failed": [int(node.error is not None) for node in nodes],
            "open": [int(self._opens(node, by_id)) for node in nodes],
            "paint": [PAINTS.index(painter.css_class(node)) for node in nodes],
            **{
                name: [ceil(size[at]) for size in sizes]
                for at, name in enumerate(
                    ("width", "height", "title_width", "title_height", "title_line")
                )
            },
        }

    def _opens(self, node: Node, nodes: dict[str, Node]) -> bool:
        """Return whether `t.graph()` draws a node as a frame."""
        if not node.children or node.kind == REPEAT:
            return bool(node.children)
        calls = any(nodes[child].kind in (CALL, REPEAT) for child in node.children)
        return node.level < self._depth and (calls or node.level == 0)

    def _edge_columns(self) -> dict[str, list[int]]:
        entries: dict[tuple[int, str], int] = {}
        # Those of a closed frame have the frame as their target.
        drawn = [carried for carried in self._model.carried if carried.kind != NEXT]
        drawn += self._model.borders
        carries = [
            [entries.setdefault((v, carried.texts[v]), len(entries)) for v in _one_run(carried)]
            for carried in drawn
        ]
        return {
            "edge.source": [self._number[carried.source] for carried in drawn],
            "edge.target": [self._number[carried.target] for carried in drawn],
            "edge.kind": [self._text(carried.kind) for carried in drawn],
            "edge.values": [len(found) for found in carries],
            "edge.value": [value for found in carries for value in found],
            "value.label": [self._text(words.clipped_label(label)) for _, label in entries],
        }

    def _colored(self, by: str) -> tuple[list[int], str, str] | None:
        """Return the paint of each node by a number, and the ends of the scale."""
        try:
            painter = Painter(self._nodes, by, frames=True)
        except ClewError:  # No statistics were recorded.
            return None
        legend = painter.legend()
        assert legend is not None
        return [PAINTS.index(painter.css_class(node)) for node in self._nodes], *legend[1:]

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))


def _one_run(carried: Carried) -> list[int]:
    """Return the values of the run that carries most, and one for each text that it lacks."""
    runs: dict[object, list[int]] = {}
    for value, run in carried.values.items():
        runs.setdefault(run, []).append(value)
    found = max(runs.values(), key=len)
    said = {carried.texts[value] for value in found}
    for value in carried.values:
        if carried.texts[value] not in said:
            said.add(carried.texts[value])
            found.append(value)
    return found


def _joined(lists: Iterable[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype=np.int64), *lists])

"""The graph of a trace as users get it: pictures, text, data.

Input: a `Run`. Output: a `GraphView` with `.svg()`, `.png()`, `.dot()`, `.mermaid()`, `.json()`;
`str()` lists the boxes with the inputs of each.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from clew.analysis.fold import Folds
from clew.analysis.graph import Graph, Options, build, count_boxes
from clew.analysis.graph.graph_model import BACKWARD, NEXT
from clew.analysis.graph.part import one_rank
from clew.errors import ClewError
from clew.run.run import Run
from clew.store.write.place import place_file
from clew.views.file_kinds import KINDS
from clew.views.graph import words
from clew.views.graph.dot import dot, netron_dot
from clew.views.graph.graph_options import DIRECTIONS, FACTS, SUFFIXES, THEMES
from clew.views.graph.mermaid import mermaid
from clew.views.graph.png import png_bytes
from clew.views.graph.svg import Drawing
from clew.views.strict_json import as_json
from clew.views.text.style import counted

# The most boxes of a picture whose depth is not given.
READABLE = 48
_DEEPEST = 12

PathLike = str | os.PathLike[str]


class GraphView:
    """A graph that can be drawn, written and read.

    `dpi`, `width` and `height` are the defaults for a PNG. The names of Graphviz's Python package
    work too: `source` is DOT, `render` writes a picture.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        direction: str = "down",
        color: str = "class",
        show: Sequence[str] = words.SHOWN,
        theme: str = "auto",
        dpi: float = 192,
        width: float | None = None,
        height: float | None = None,
    ) -> None:
        _check("direction", direction, DIRECTIONS)
        _check("theme", theme, THEMES)
        for fact in show:
            _check("show", fact, FACTS)
        self.model = graph
        self._direction = direction
        self._color = color
        self._show = tuple(show)
        self._theme = theme
        self.dpi = dpi
        self.width = width
        self.height = height

    def svg(
        self, path: PathLike | None = None, *, theme: str | None = None, exist: str = "replace"
    ) -> str:
        """Return the picture as SVG; write it to a file if a path is given.

        `theme` is `"light"`, `"dark"`, or `"auto"`, which follows the page. If the file exists,
        `exist="replace"` replaces it, `"keep"` moves it to `graph.1.svg`, `"error"` raises. `exist`
        means the same for the other formats.
        """
        return _written(self._drawing(theme or self._theme).text(), path, "svg", exist)

    def png(
        self,
        path: PathLike,
        *,
        dpi: float | None = None,
        width: float | None = None,
        height: float | None = None,
        theme: str | None = None,
        exist: str = "replace",
    ) -> Path | str:
        """Write the picture as PNG; it fits `width` and `height`, in inches, if they are given."""
        theme, dpi = theme or self._theme, dpi or self.dpi
        width, height = width or self.width, height or self.height
        drawing = self._drawing("light" if theme == "auto" else theme)
        data = png_bytes(drawing.text(), drawing.size, dpi, width, height)
        return _write(path, data, "png", exist)

    def dot(
        self, path: PathLike | None = None, *, netron: bool = False, exist: str = "replace"
    ) -> str:
        """Return the graph in the DOT language; with `netron` in the form for Netron."""
        text = netron_dot(self.model) if netron else dot(self.model, **self._looks)
        return _written(text, path, "dot", exist)

    def mermaid(self, path: PathLike | None = None, *, exist: str = "replace") -> str:
        """Return the graph as a Mermaid flowchart."""
        return _written(mermaid(self.model, **self._looks), path, "mermaid", exist)

    def json(self, path: PathLike | None = None, *, exist: str = "replace") -> str:
        """Return the graph as JSON: nested nodes, and edges."""
        return _written(as_json(self.to_dict(), indent=1) + "\n", path, "json", exist)

    def to_dict(self) -> dict[str, Any]:
        """Return the graph as plain data."""
        return self.model.to_dict()

    def save(self, path: PathLike, *, exist: str = "replace", **options: Any) -> Path | str:
        """Write the graph in the format of the file's ending; return the path."""
        suffix = Path(path).suffix.lower()
        kinds = ("svg", "png", "dot", "dot", "mermaid", "json")
        forms: dict[str, str] = dict(zip(SUFFIXES, kinds, strict=True))
        if suffix not in forms:
            raise ClewError(f"cannot tell from {path} what to write; end it in {_listed(SUFFIXES)}")
        kind = forms[suffix]
        if kind == "png":
            return self.png(path, exist=exist, **options)
        text: str = getattr(self, kind)(**options)
        return _write(path, text.encode(), kind, exist)

    @property
    def source(self) -> str:
        """Return the graph in the DOT language."""
        return self.dot()

    def render(self, filename: PathLike, cleanup: bool = True, format: str = "png") -> str:
        """Write the picture in the format of the file's ending, else `format`; return the path."""
        path = os.fspath(filename)
        if Path(path).suffix.lower() not in SUFFIXES:
            path = f"{path}.{format}"
        return str(self.save(path))

    @property
    def _looks(self) -> dict[str, Any]:
        return {"color": self._color, "direction": self._direction, "show": self._show}

    def _drawing(self, theme: str) -> Drawing:
        return Drawing(self.model, theme=theme, **self._looks)

    @cached_property
    def _text(self) -> str:
        graph = self.model
        names = {node.id: words.title(node) for node in graph.nodes}
        taken: dict[str, list[str]] = {}
        gradients: dict[str, list[str]] = {}
        for edge in graph.edges:
            if edge.kind != NEXT:
                label = words.edge_label(edge)
                source = names[edge.source] + (f" {label}" if label else "")
                found = gradients if edge.kind == BACKWARD else taken
                found.setdefault(edge.target, []).append(source)
        depth: dict[str, int] = {}
        nodes, edges = len(graph.nodes), len(graph.edges)
        if not nodes:
            return "nothing to draw: nothing was recorded, or all of it is left out"
        lines = [f"{words.heading(graph)}: {counted(nodes, 'node')}, {counted(edges, 'edge')}"]
        for node in graph.nodes:
            depth[node.id] = 1 + depth[node.parent] if node.parent is not None else 0
            said = [words.title(node), words.times(node), words.subtitle(node)]
            sources = [
                f"{mark} {', '.join(found[node.id])}"
                for mark, found in (("←", taken), ("gradients ←", gradients))
                if node.id in found
            ]
            text = "  ".join(filter(None, [*said, *sources]))
            lines.append("  " * depth[node.id] + text)
        return "\n".join(lines)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        nodes = counted(len(self.model.nodes), "node")
        return f"<GraphView {words.heading(self.model)}: {nodes}; .svg('g.svg') draws it>"

    def _repr_mimebundle_(self, **kwargs: object) -> dict[str, str]:
        try:
            return {"image/svg+xml": self.svg(), "text/plain": str(self)}
        except ClewError as too_much:
            return {"text/plain": f"{too_much}\n{self}"}


def graph_view(
    run: Run,
    roots: list[int] | None = None,
    *,
    depth: int | None = None,
    fold: bool = True,
    ops: str | None = None,
    prune: bool | str | Sequence[str] = False,
    squash: str | None = None,
    edges: str = "data",
    backward: bool = False,
    step: int | None = None,
    **looks: Any,
) -> GraphView:
    """Return the graph of one forward pass, or of some calls, on one rank.

    Without `depth` it is as deep as stays readable.
    """
    run, roots, said = one_rank(run, roots)
    roots = None if roots is None else _outermost(run, roots)
    pruned = prune if isinstance(prune, bool) else (prune,) if isinstance(prune, str) else (*prune,)

    folded = {sizes: Folds(run, fold, sizes) for sizes in (True, False)}
    options = Options(depth, fold, ops, pruned, squash, edges, backward, True, step)
    if depth is not None:
        return GraphView(build(run, options, roots, folded[True], said), **looks)
    graph, _ = readable(options, roots, folded, said)
    return GraphView(graph, **looks)


def readable(
    options: Options, roots: list[int] | None, folded: dict[bool, Folds], said: str = ""
) -> tuple[Graph, Options]:
    """Return the deepest graph that is still readable, and the options that give it.

    `folded` has folds of the run that tell sizes apart, and folds that do not.
    """

    def at(depth: int, sizes: bool = True) -> tuple[Graph, Options]:
        chosen, folds = replace(options, depth=depth, sizes=sizes), folded[sizes]
        return build(folds.structure.run, chosen, roots, folds, said), chosen

    return _readable(at, readable_depth(options, roots, folded[True]), options.fold)


def readable_depth(options: Options, roots: list[int] | None, folds: Folds) -> int:
    """Return the last depth that shows more than the one before, and not too many boxes."""

    def count(depth: int) -> tuple[int, int]:
        return count_boxes(folds, replace(options, depth=depth), roots)

    return _deepest(count)


def _outermost(run: Run, rows: list[int]) -> list[int]:
    """Return those of some events that lie in none of the others."""
    parents = run.parent_row.tolist()
    wanted = set(rows)
    # Whether a call, or a call that contains it, is among those wanted.
    inside: dict[int, bool] = {-1: False}
    found = []
    for row in sorted(wanted):
        path = [parents[row]]
        while path[-1] not in inside and path[-1] not in wanted:
            path.append(parents[path[-1]])
        is_inside = path[-1] in wanted or inside[path[-1]]
        inside.update(dict.fromkeys(path, is_inside))
        if not is_inside:
            found.append(row)
    return found


def _deepest(count: Callable[[int], tuple[int, int]]) -> int:
    """Return the last depth that shows more than the one before, and not too many boxes."""
    known, _ = count(1)
    for depth in range(2, _DEEPEST + 1):
        nodes, boxes = count(depth)
        if nodes == known or boxes > READABLE:
            return depth - 1
        known = nodes
    return _DEEPEST


def _readable(
    at: Callable[..., tuple[Graph, Options]], deepest: int, fold: bool
) -> tuple[Graph, Options]:
    """Return the deepest graph that is still readable, inputs and outputs included."""
    depth = deepest
    best = at(depth)
    while depth > 1 and len(best[0].boxes) > READABLE:
        depth -= 1
        best = at(depth)
    if fold and len(best[0].boxes) > READABLE:
        # A loop whose tensors grow is folded only if showing each turn would be too much.
        shorter = at(1, False)
        return shorter if len(shorter[0].boxes) < len(best[0].boxes) else best
    return best


def _check(name: str, given: str, known: Sequence[str]) -> None:
    if given not in known:
        raise ClewError(f"{name}={given!r} is not one of {_listed(known)}")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def _written(text: str, path: PathLike | None, kind: str, exist: str) -> str:
    if path is not None:
        _write(path, text.encode(), kind, exist)
    return text


def _write(path: PathLike, data: bytes, kind: str, exist: str) -> Path | str:
    def write(target: Path) -> None:
        target.write_bytes(data)

    return place_file(path, exist, KINDS[kind], write)[0]

"""Write the tree of the code view as text.

Input: nodes, a `Run` and a `Style`. Output: lines. Numbers and texts of one node are on one line; a
terminal wraps it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from clew.events.columns import Place
from clew.events.vocabulary import RECOMPUTE
from clew.plain_text import first_line, plain, plain_code
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
    walk,
)
from clew.views.text.code_places import CodePlaces
from clew.views.text.event_texts import EventTexts
from clew.views.text.style import Style, counted, not_finite_text

BAR = "│ "
# Deeper lines begin with a number instead of bars, so that the text grows linearly.
_MOST_BARS = 100
_MOST_NAMES = 8


class CodeText:
    """Writes nodes of one run in one style."""

    def __init__(self, run: Run, texts: EventTexts, succinct: bool, style: Style) -> None:
        self._run = run
        self._texts = texts
        self._succinct = succinct
        self._style = style
        self._places = CodePlaces(run)

    def lines(self, nodes: list[Node]) -> list[str]:
        """Write a tree; ranks with the same text are written once."""
        ranks = [node for node in nodes if isinstance(node, Rank)]
        if not ranks:
            return self._tree(nodes, 0)
        alike: dict[tuple[str, ...], list[int]] = {}
        for rank in ranks:
            alike.setdefault(tuple(self._tree(rank.children, 1)), []).append(rank.rank)
        lines = []
        for below, numbers in alike.items():
            lines += [self._style.paint(_rank_text(numbers), "bold"), *below]
        return lines

    def _tree(self, nodes: list[Node], depth: int) -> list[str]:
        wrapped = self._style.wrapped
        return [
            line
            for below, node in walk(nodes)
            for line in wrapped(_bars(depth + below), self._node(node))
        ]

    def _node(self, node: Node) -> str:
        paint = self._style.paint
        if isinstance(node, Line):
            return self._line(node)
        if isinstance(node, ModuleCall):
            return self._module(node)
        if isinstance(node, Result):
            return self._result(node)
        if isinstance(node, Op):
            return self._op(node)
        if isinstance(node, NamedValue):
            return self._named(node)
        if isinstance(node, Failure):
            return paint(f"# ✗ {first_line(self._run.error(node.row) or '')}", "red", "bold")
        if isinstance(node, Ops):
            return self._ops(node)
        if isinstance(node, BackwardPass):
            return self._backward_pass(node)
        if isinstance(node, Repeated):
            text = f"… ×{len(node.runs)} more like this: {plain(node.names)}"
            tops = [row for run in node.runs for row in run]
            inside = [row for top in tops for row in (top, *self._run.subtree(top))]
            return paint(text, "cyan") + self._not_finite(inside)
        return _rank_text([node.rank])

    def _line(self, node: Line) -> str:
        """Write a source line with its position, which run of it this is, and whose code."""
        place, style = node.place, self._style
        raw = self._places.raw_line(place)
        is_painted = style.color and raw.strip()
        text = _highlighted(place, raw, style) if is_painted else plain_code(raw.strip())
        where = f"# {self._places.file(place.file)}:{place.line} in {plain(place.function)}"
        if not self._succinct and place.end_col and not style.color:
            whole = len(raw.encode(errors="surrogatepass"))
            end = place.end_col if place.end_line == place.line else whole
            where += f", columns {place.col + 1}–{end}"
        where += f" ({node.run})" if node.run > 1 else ""
        tag = f"   [{plain(node.tag)}]" if node.tag else ""
        gap = "  " if text else ""
        return text + gap + style.paint(where, "dim") + style.paint(tag, "magenta")

    def _module(self, node: ModuleCall) -> str:
        """Write a call of a torch module; its arguments only if nothing it ran is listed below."""
        row = node.row
        cls = plain(self._run.name(row))
        name = self._module_name(row)
        text = self._style.paint(f"[{name}]", "magenta") + ("" if name == cls else f" {cls}")
        numbers = self._texts.numbers(row)
        outputs = self._texts.outputs(row)
        notes = (isinstance(child, Ops) and child.kind == "backward" for child in node.children)
        is_alone = all(notes)
        if is_alone:
            text += f"({self._texts.inputs(row)})"
        if outputs and (numbers or is_alone):
            text += f" -> {outputs}"
        return text + (f"  {numbers}" if numbers else "") + self._not_finite([row])

    def _result(self, node: Result) -> str:
        path = self._module_name(node.row)
        numbers = self._texts.numbers(node.row)
        text = f"# {self._style.paint(f'[{path}]', 'magenta')} -> {self._texts.outputs(node.row)}"
        return text + (f"  {numbers}" if numbers else "") + self._not_finite([node.row])

    def _module_name(self, row: int) -> str:
        name = plain(self._run.module_path(row) or self._run.name(row))
        return f"{name}, recompute" if int(self._run.phase[row]) == RECOMPUTE else name

    def _op(self, node: Op) -> str:
        row = node.rows[0]
        numbers = self._texts.numbers(row)
        text = f"# {'↩ ' if node.linked else ''}{self._texts.op(row)}"
        error = self._run.error(row)
        if error is not None:
            text = f"# ✗ {self._texts.op(row)}  {first_line(error)}"
            return self._style.paint(text, "red", "bold")
        text += f"  {numbers}" if numbers else ""
        text = self._style.paint(text, "dim") if node.linked else text
        return text + self._not_finite([row]) + _times(node.rows)

    def _named(self, node: NamedValue) -> str:
        row = node.rows[0]
        is_finite = not any(self._texts.not_finite([row]))
        text = self._style.paint(f"# {self._texts.named(row)}", "green" if is_finite else "red")
        return text + _times(node.rows)

    def _ops(self, node: Ops) -> str:
        """Write ops that are only counted."""
        names = self._names(node.rows)
        count = counted(len(node.rows), "op")
        way = self._style.way("succinct=False shows them", "--all shows them")
        text = {
            "backward": f"# ↩ backward: {names}",
            "recompute": f"# recompute: {count}: {names}",
            "optimizer": f"# {count}: {names}",
            "more": f"# … {len(node.rows):,} more; {way}",
        }[node.kind]
        if node.kind in ("backward", "recompute"):
            text = self._style.paint(text, "dim")
        return text + self._not_finite(node.rows)

    def _backward_pass(self, node: BackwardPass) -> str:
        names = self._names(node.counted)
        if node.elsewhere:
            lines = (
                "line of its forward op"
                if len(node.elsewhere) == 1
                else "lines of their forward ops"
            )
            text = f"# ↩ {counted(len(node.elsewhere), 'op')} at the {lines}"
            text += f"; without one: {names}" if names else ""
        else:
            text = f"# ↩ {counted(len(node.counted), 'op')}: {names}"
        return self._style.paint(text, "dim") + self._not_finite(node.counted)

    def _names(self, rows: list[int]) -> str:
        names = Counter(map(self._texts.short_op, rows))
        shown = [n + (f" ×{names[n]}" if names[n] > 1 else "") for n in names]
        rest = f", +{len(shown) - _MOST_NAMES}" if len(shown) > _MOST_NAMES else ""
        return ", ".join(shown[:_MOST_NAMES]) + rest

    def _not_finite(self, rows: Sequence[int]) -> str:
        text = not_finite_text(*self._texts.not_finite(rows))
        return f"  {self._style.paint(text, 'red', 'bold')}" if text else ""


def _bars(depth: int) -> str:
    return BAR * depth if depth <= _MOST_BARS else f"{BAR * _MOST_BARS}(depth {depth}) "


def _times(rows: list[int]) -> str:
    return f"  ×{len(rows)}" if len(rows) > 1 else ""


def _rank_text(ranks: list[int]) -> str:
    """Write the heading of one rank, or of several that did the same.

    >>> _rank_text([1]), _rank_text([0, 1, 2, 3]), _rank_text([0, 2])
    ('rank 1', 'ranks 0 … 3 ×4', 'ranks 0, 2 ×2')
    """
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    in_a_row = ranks[-1] - ranks[0] == len(ranks) - 1
    names = f"{ranks[0]} … {ranks[-1]}" if in_a_row else ", ".join(map(str, ranks))
    return f"ranks {names} ×{len(ranks)}"


def _highlighted(place: Place, raw: str, style: Style) -> str:
    """Write a source line with the columns of the call in colour."""
    encoded = raw.encode(errors="surrogatepass")
    end = place.end_col if place.end_line == place.line else len(encoded)
    if not 0 <= place.col < end:
        return plain_code(raw.strip())
    before = encoded[: place.col].decode(errors="replace").lstrip()
    inside = encoded[place.col : end].decode(errors="replace").rstrip()
    after = encoded[end:].decode(errors="replace").rstrip()
    return plain_code(before) + style.paint(plain_code(inside), "cyan") + plain_code(after)

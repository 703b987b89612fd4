"""Nodes of the tree as text: name, shapes, value, number of ops, parameters, time, source.

Input: `TreeNode`s. Output: `Cells`. Numbers of a node that stands for several calls are those of
one call (the mean if they differ), after the number of calls: `6×8`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from clew.analysis.tree.tree_model import (
    BACKWARD,
    CALL,
    FAILURE,
    GROUP,
    LINE,
    NAMED,
    OPS,
    OPTIMIZER,
    REST,
    THREAD,
    ResultStats,
    TreeNode,
)
from clew.events.model import Source
from clew.events.number_text import measured
from clew.events.vocabulary import FORWARD, PHASES, RECOMPUTE
from clew.plain_text import plain, plain_code
from clew.spec import TELLING_OPS, VIEW_OPS
from clew.views.text.code_places import short_place_of
from clew.views.text.style import base_op, merged, number_text, short_number, time_text

_MOST_NAMES = 6
_MOST_TENSORS = 3
# The ops that people search for are the last to be left out of a list, views the first.
_TELLING = re.compile(TELLING_OPS)


@dataclass(slots=True)
class Cells:
    """Texts of one line. `flow` goes from the longest form to the shortest."""

    name: str
    bullet: str = ""
    cls: str = ""
    # Shorter forms of `cls`, in that order.
    shorter: list[str] = field(default_factory=list)
    mark: str = ""
    flow: list[str] = field(default_factory=lambda: [""])
    value: str = ""
    # What is not finite, shown in red after the value.
    alarm: str = ""
    ops: str = ""
    params: str = ""
    time: str = ""
    source: str = ""
    failed: bool = False
    # Whether `cls` may be cut for want of room.
    elastic: bool = False


def cells_of(node: TreeNode, times: int = 1, above: Source | None = None) -> Cells:
    """Write the cells of a node.

    `times` is how often the nodes that contain it ran, `above` the source line of the node that
    contains it: the node's line is written only if it is another.
    """
    each = times * node.count
    cells = Cells(
        name=node.name,
        mark=_mark(node),
        ops=_times(node.count, number_text(node.ops // each)) if node.ops else "",
        time=_times(node.count, time_text(node.seconds / each)) if node.seconds is not None else "",
        source=_source(node, above),
        failed=node.error is not None,
    )
    cells.value, cells.alarm = _value(node.stats)
    if node.kind == CALL:
        # A root is named after its class.
        cells.cls = node.cls if node.name != node.cls else ""
        cells.params = _parameters(node)
        cells.flow = _flow(_named(node.inputs), _named(node.outputs), _main(node.outputs))
    elif node.kind in (OPS, FAILURE):
        names = op_names(node.folded_counts, each)
        cells.name, cells.bullet, cells.elastic = "", "· " if node.kind == OPS else "", True
        cells.cls, cells.shorter = names[0], names[1:]
        taken, given = [text for _, text in node.inputs], [text for _, text in node.outputs]
        cells.flow = _flow(taken, given, _main(node.outputs))
    elif node.kind in (GROUP, LINE, OPTIMIZER):
        cells.flow = op_names(node.folded_counts, each) if node.folded_counts else [""]
    elif node.kind == NAMED:
        cells.flow = _looks([text for _, text in node.outputs])
    if node.kind in (BACKWARD, OPTIMIZER):
        cells.cls, cells.elastic = _code(node.source), True
    elif node.kind == LINE:
        cells.name, cells.bullet, cells.cls, cells.elastic = "", "· ", _code(node.source), True
    elif node.kind == REST:
        cells.name, cells.cls = "", node.name
    elif node.kind == THREAD:
        # The ops that ran on a thread are written beside its name, not under it.
        cells.ops = cells.time = ""
    return _plain(cells)


def _plain(cells: Cells) -> Cells:
    """Escape control characters in names of the program, before widths are measured."""
    # One check of everything, as nearly every line is printable.
    if "".join((cells.name, cells.cls, cells.mark, *cells.flow, *cells.shorter)).isprintable():
        return cells
    cells.name, cells.cls, cells.mark = map(plain, (cells.name, cells.cls, cells.mark))
    cells.flow, cells.shorter = list(map(plain, cells.flow)), list(map(plain, cells.shorter))
    return cells


def _code(source: Source | None) -> str:
    return "" if source is None else plain_code(source.text)


def _mark(node: TreeNode) -> str:
    marks = [f"×{number_text(node.count)}"] if node.count > 1 else []
    if node.sizes_vary:
        marks.append("(sizes vary)")
    if node.passes > 1:
        marks.append(f"({number_text(node.passes)} passes)")
    if node.mode is not None:
        marks.append(f"({node.mode})")
    if node.same_as is not None:
        same = node.same_as in ("", node.name)
        marks.append("(as above)" if same else f"(as {node.same_as})")
    if node.kind == CALL and node.phase != PHASES[FORWARD]:
        marks.append(f"({node.phase})")
    if node.kind == GROUP and node.phase == PHASES[RECOMPUTE]:
        marks.append("(recompute)")
    if node.is_open:
        marks.append("(open)")
    return " ".join(marks)


def _source(node: TreeNode, above: Source | None) -> str:
    source = node.source
    if source is None:
        return ""
    is_line = node.last_line is None
    if is_line and above is not None and (source.file, source.line) == (above.file, above.line):
        return ""
    text = short_place_of(source.file, source.line)
    return text if is_line else f"{text}–{node.last_line}"


def _parameters(node: TreeNode) -> str:
    if not node.parameters:
        return "shared" if node.shares_parameters else ""
    return _times(node.own_modules, short_number(node.parameters // node.modules))


def _value(stats: ResultStats | None) -> tuple[str, str]:
    """Write mean and standard deviation of a result, and how many elements are not finite."""
    if stats is None:
        return "", ""
    value = ""
    if stats.mean is not None and stats.std is not None:
        value = measured(stats.mean) + (f" ± {measured(stats.std)}" if stats.count > 1 else "")
    odd = (("NaN", stats.nan), ("Inf", stats.inf))
    return value, " ".join(f"{name} ×{number_text(n)}" for name, n in odd if n)


def op_names(counts: Sequence[tuple[str, int]], each: int) -> list[str]:
    """Write the names of ops in running order, from all of them to the most important one.

    >>> op_names((("aten.t.default", 2), ("aten.addmm.default", 2)), 2)
    ['t, addmm', 'addmm, +1']
    """
    found: dict[str, int] = {}
    for name, count in counts:
        found[base_op(name)] = found.get(base_op(name), 0) + count // each
    names = list(found)
    telling = sorted(names, key=_rank)
    forms = []
    for most in range(min(len(names), _MOST_NAMES), 0, -1):
        kept = set(telling[:most])
        shown = [
            name + (f" ×{found[name]}" if found[name] > 1 else "") for name in names if name in kept
        ]
        shown += [f"+{len(names) - most}"] if most < len(names) else []
        forms.append(", ".join(shown))
    return forms or [""]


def failure_text(node: TreeNode) -> str:
    """Write what failed where: the op with its arguments, the line with its text."""
    what = f"in {base_op(node.name)}({_arguments(node)})" if node.ops else "raised"
    source = node.source
    where = "" if source is None else f" at {short_place_of(source.file, source.line)}"
    code = _code(source)
    return plain(what) + where + (f": {code}" if code else "")


def _arguments(node: TreeNode) -> str:
    return ", ".join(
        text if path[:1].isdigit() else f"{path}={text}" for path, text in node.arguments
    )


def _rank(op: str) -> int:
    if op in VIEW_OPS:
        return 2
    return 0 if _TELLING.search(op) else 1


def _named(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Write tensors with the names they have, if they have other than numbers."""
    return [f"{path} {text}" if path and not path[0].isdigit() else text for path, text in pairs]


def _flow(taken: list[str], given: list[str], main: int) -> list[str]:
    """Write inputs and outputs, from the longest form to the shortest; `main` is the chief output.

    Tensors that a shorter form leaves out are counted, or marked.
    """
    inputs = _forms(taken, 0)
    outputs = _forms(given, main)
    forms = [_arrow(text, outputs[0]) for text in inputs]
    forms += [_arrow(inputs[-1], text) for text in outputs[1:]]
    return [*forms, _arrow("…", outputs[-1])] if taken and given else forms


def _forms(texts: list[str], one: int) -> list[str]:
    """Write tensors: all of them or the first few, then one of them."""
    if len(texts) < 2:
        return texts or [""]
    runs = [len(list(run)) for _, run in groupby(texts)]
    rest = sum(runs[_MOST_TENSORS:])
    shown = merged(texts)[:_MOST_TENSORS] + ([f"+{rest}"] if rest else [])
    return [", ".join(shown), f"{texts[one]}, +{len(texts) - 1}"]


def result_text(given: Sequence[tuple[str, str]]) -> str:
    """Write the results of an event, by path, in their shortest form.

    >>> result_text([("loss", "f32[]"), ("logits", "f32[2,9]"), ("cache.0.keys", "f32[2,4,6,8]")])
    'f32[2,9], +2'
    """
    return _forms([text for _, text in given], _main(given))[-1]


def _main(given: Sequence[tuple[str, str]]) -> int:
    """Choose the chief of several results, the widest of the least deep: logits, not a cache."""

    def rank(at: int) -> tuple[bool, int, int]:
        path, text = given[at]
        return "[" not in text, path.count("."), -len(text)

    return min(range(len(given)), key=rank, default=0)


def _looks(looks: list[str]) -> list[str]:
    """Write dtype and shape of the values of one name, from the first to the last."""
    if len(looks) > _MOST_TENSORS:
        looks = [*looks[: _MOST_TENSORS - 1], "…", looks[-1]]
    return [" → ".join(looks)]


def _times(count: int, text: str) -> str:
    return f"{number_text(count)}×{text}" if count > 1 else text


def _arrow(inputs: str, outputs: str) -> str:
    if inputs and outputs:
        return f"{inputs} → {outputs}"
    return f"→ {outputs}" if outputs else inputs

"""Graph of a tree of names: a box for each module, equal ones as one box with a count.

Input: a tree of `Name`s, made from paths or by hand. Output: a `Graph` whose edges lead from each
module to those in it. Modules are equal if they differ only in a number and hold the same.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from clew.analysis.fold import name_range
from clew.analysis.graph.graph_model import CALL, INSIDE, Edge, Graph, Node
from clew.compat.engine.name_tree import Name

# The name that hooks give the model itself, which has no path.
_ROOT = "root"
_MODEL = "(root)"
# The most numbers that a box lists if they are not consecutive.
_MOST_NUMBERS = 3


@dataclass(slots=True)
class _Module:
    """One module: `title` is its name with its numbers; the name of a leaf has none below it."""

    path: str
    name: str
    title: str
    is_leaf: bool = False
    inside: list[_Module] = field(default_factory=list)

    @property
    def family(self) -> str:
        """Return what it shares with modules that differ only in a number."""
        return "" if self.title.partition(".")[0].isdigit() else self.name


@dataclass(slots=True)
class _Box:
    """Modules that are drawn as one, and the boxes of what is in the first of them."""

    modules: list[_Module]
    inside: list[_Box] = field(default_factory=list)
    look: int = 0


def name_graph(
    tree: Name, *, prune: bool = False, fold: bool = True, squash: bool = False
) -> Graph:
    """Return the graph of a tree.

    `prune` leaves out names without others below them, if more than one box is left. `fold` makes
    one box of equal modules; `squash` one of all that have the same name.
    """
    boxes = _Boxes(fold).of(_tops(tree))
    if prune and _count(_pruned(boxes)) > 1:
        boxes = _pruned(boxes)
    nodes, edges = _drawn(boxes, squash)
    return Graph("calls", tuple(nodes), tuple(edges))


def _tops(tree: Name) -> list[_Module]:
    """Return the modules that no other contains; the model itself contains all if it is listed."""
    around, is_listed = _Module("", _ROOT, _MODEL), False
    if tree.parents or tree.name != _ROOT:  # a part of a tree
        _add(tree, dict.fromkeys(tree.places.values() or [""], around))
    else:
        model = tree.children.get(_ROOT)
        is_listed = model is not None and not model.children and len(tree.children) > 1
        for name in tree.children.values():
            if name is not model or not is_listed:
                _add(name, {"": around})
    for top in around.inside:
        top.is_leaf = False
    return [around] if is_listed else around.inside


def _add(name: Name, around: dict[str, _Module]) -> None:
    """Put the modules of a name, and all below it, into their containers, given by path."""
    made: dict[str, _Module] = {}
    found = _found(name, around)
    for place, numbers, _ in found:
        title = ".".join([name.name, *numbers])
        made[place] = _Module(place, name.name, title, not name.children)
    for place, _, outer in found:
        module, holder = made[place], _holder(place, made)
        if holder is not None:
            module.title = place[len(holder) + 1 :]
        (around[outer] if holder is None else made[holder]).inside.append(module)
    for child in name.children.values():
        _add(child, made)


def _found(name: Name, around: Collection[str]) -> list[tuple[str, list[str], str]]:
    """Return the modules of a name: their paths, the numbers at the end, paths of containers.

    If a tree was made or changed by hand, its indices are repeated in every container.
    """
    places = [(place, _numbers(place, outer), outer) for place, outer in name.places.items()]
    seen = {number for _, numbers, _ in places for number in numbers}
    if seen == name.indices and any(outer in around for *_, outer in places):
        return [found for found in places if found[2] in around]
    each = [[number] for number in sorted(name.indices, key=int)] or [[]]
    return [
        (".".join(filter(None, [outer, name.name, *numbers])), numbers, outer)
        for outer in around
        for numbers in each
    ]


def _numbers(place: str, above: str) -> list[str]:
    return (place[len(above) + 1 :] if above else place).split(".")[1:]


def _holder(place: str, places: dict[str, _Module]) -> str | None:
    """Return the module of the same name that holds a numbered one, such as a Sequential."""
    above, _, last = place.rpartition(".")
    while last.isdigit() and above:
        if above in places:
            return above
        above, _, last = above.rpartition(".")
    return None


class _Boxes:
    """Turns modules into boxes, equal ones into one."""

    def __init__(self, fold: bool) -> None:
        self._fold = fold
        self._looks: dict[tuple[tuple[str, int, int], ...], int] = {}

    def of(self, modules: list[_Module]) -> list[_Box]:
        found: dict[object, _Box] = {}
        for module in modules:
            inside = self.of(module.inside)
            parts = tuple((box.modules[0].family, len(box.modules), box.look) for box in inside)
            look = self._looks.setdefault(parts, len(self._looks))
            box = _Box([module], inside, look)
            first = found.setdefault((module.family, look) if self._fold else len(found), box)
            if first is not box:
                first.modules.append(module)
        return list(found.values())


def _pruned(boxes: list[_Box]) -> list[_Box]:
    return [
        _Box(box.modules, _pruned(box.inside), box.look)
        for box in boxes
        if not box.modules[0].is_leaf
    ]


def _count(boxes: list[_Box]) -> int:
    """Count the boxes besides that of the model itself."""
    return sum((box.modules[0].path != "") + _count(box.inside) for box in boxes)


def _drawn(boxes: list[_Box], squash: bool) -> tuple[list[Node], list[Edge]]:
    nodes: dict[object, Node] = {}
    edges: dict[tuple[str, str], Edge] = {}

    def add(box: _Box, above: str | None, level: int) -> None:
        first, count = box.modules[0], len(box.modules)
        key = (first.name, bool(box.inside)) if squash else len(nodes)
        before = nodes.get(key)
        name = _title(box) if before is None else first.name
        ident = f"n{len(nodes)}" if before is None else before.id
        count += 0 if before is None else before.count
        nodes[key] = Node(ident, CALL, name, path=first.path, level=level, count=count)
        if above is not None and above != ident:
            edges[above, ident] = Edge(above, ident, INSIDE)
        for inner in box.inside:
            add(inner, ident, level + 1)

    for box in boxes:
        add(box, None, 0)
    return list(nodes.values()), list(edges.values())


def _title(box: _Box) -> str:
    """Return the name of one module, or of several with their numbers."""
    first, last = box.modules[0].title, box.modules[-1].title
    numbers = [module.title.rpartition(".")[2] for module in box.modules]
    if not all(map(str.isdigit, numbers)) or int(numbers[-1]) - int(numbers[0]) < len(numbers):
        return name_range(first, last)
    more = " …" if len(numbers) > _MOST_NUMBERS else ""
    return f"{first}, {', '.join(numbers[1:_MOST_NUMBERS])}{more}"

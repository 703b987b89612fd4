"""Names in a list of calls as a tree: `layers.0.attn` and `layers.1.attn` are one name, twice.

Input: module paths, in the order of the calls. Output: a tree of `Name`s that shows what was called
and how often, without each single call. `name_graph` makes a picture of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(eq=False)
class Name:
    """One name in the tree.

    `indices` are the numbers after it (`layers.0`), `count` how many modules they distinguish,
    `first_seen` the number of the first path that has it. `places` maps the path of each module of
    this name to the path of its container; a tree made by hand has none.
    """

    name: str
    children: dict[str, Name] = field(default_factory=dict)
    count: int = 1
    first_seen: int = 0
    parents: list[Name] = field(default_factory=list)
    indices: set[str] = field(default_factory=set)
    places: dict[str, str] = field(default_factory=dict, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the tree from here on as plain data; `count` is the number of indices."""
        return {
            "name": self.name,
            "count": len(self.indices),
            "indices": sorted(self.indices, key=int),
            "children": [child.to_dict() for child in self.children.values()],
        }


def name_tree(paths: Iterable[str]) -> Name:
    """Return paths as a tree of names; numbers belong to the name before them.

    >>> tree = name_tree(["layers.0.attn", "layers.1.attn", "head"])
    >>> [(name, found.count) for name, found in tree.children.items()]
    [('layers', 2), ('head', 1)]
    """
    root = Name("root")
    for number, path in enumerate(paths):
        at, above = root, ""
        for name, *indices in _names(path):
            if name not in at.children:
                at.children[name] = Name(name, first_seen=number, parents=[at])
            at = at.children[name]
            at.indices.update(indices)
            at.count = max(1, len(at.indices))
            place = ".".join([above, name, *indices] if above else [name, *indices])
            at.places.setdefault(place, above)
            above = place
    return root


def _names(path: str) -> Iterator[list[str]]:
    """Yield the names in a path, each with the numbers after it."""
    found: list[str] = []
    for part in path.split("."):
        if found and not part.isdigit():
            yield found
            found = []
        found.append(part)
    yield found


def without_leaves(tree: Name) -> Name:
    """Return the tree without names that have none below them; those at the top stay."""
    return _copied(tree, None, tree.children)


def _copied(tree: Name, above: Name | None, below: dict[str, Name]) -> Name:
    copy = replace(tree, children={}, parents=[] if above is None else [above])
    for key, child in below.items():
        inner = {name: found for name, found in child.children.items() if found.children}
        copy.children[key] = _copied(child, copy, inner)
    return copy

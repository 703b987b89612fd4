"""The names in a list of calls as a tree: `layers.0.attn` and `layers.1.attn` are one name, twice.

In come module paths, in the order of the calls; out comes a tree of `Name`s, for whoever wants to
know what was called and how often without looking at each call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

# The last of several names, with the numbers behind it.
_LAST_NAME = re.compile(r"\.(?!\d+(?:\.|$))[^.]+(?:\.\d+)*$")


@dataclass(eq=False)
class Name:
    """One name in the tree.

    `indices` are the numbers that stood behind it (`layers.0`), `count` says in how many paths it
    is, `first_seen` in which one first. The root of a tree has the `paths` it was made of.
    """

    name: str
    children: dict[str, Name] = field(default_factory=dict)
    count: int = 1
    first_seen: int = 0
    parents: list[Name] = field(default_factory=list)
    indices: set[str] = field(default_factory=set)
    paths: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The tree from here on as plain data."""
        return {
            "name": self.name,
            "count": self.count,
            "indices": sorted(self.indices, key=int),
            "children": [child.to_dict() for child in self.children.values()],
        }


def name_tree(paths: Iterable[str]) -> Name:
    """Paths as a tree of names; numbers belong to the name before them.

    >>> tree = name_tree(["layers.0.attn", "layers.1.attn", "head"])
    >>> [(name, found.count) for name, found in tree.children.items()]
    [('layers', 2), ('head', 1)]
    """
    root = Name("root", paths=list(paths))
    for number, path in enumerate(root.paths):
        at = root
        for part in path.split("."):
            if part.isdigit() and at is not root:
                at.indices.add(part)
                continue
            if part not in at.children:
                at.children[part] = Name(part, count=0, first_seen=number, parents=[at])
            at = at.children[part]
            at.count += 1
    return root


def without_leaves(tree: Name) -> Name:
    """The tree of the same paths without the last name of each; a path of one name stays."""
    return name_tree(_LAST_NAME.sub("", path) for path in tree.paths)

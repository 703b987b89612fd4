"""Values of one address as the callbacks of a gather, and of the end, are given them.

`Gathered` is a list that also tells where each value is from; `nested` makes a container again of
one that has parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


class Gathered(list[Any]):
    """The values of an address that have data, and where each is from.

    `steps` are their steps; `ordinals` are 1 for the first step of the kind that
    `Callbacks(only=...)` names, of all steps without it, and so on. A rank is None for a value that
    was made of several ranks'. A callback that returns a `Gathered` says which ordinals its values
    have: a number each, or an array of them.
    """

    def __init__(
        self,
        values: Iterable[Any],
        ordinals: Sequence[Any],
        address: str = "",
        steps: Sequence[int] = (),
        ranks: Sequence[int | None] = (),
    ) -> None:
        super().__init__(values)
        self.ordinals = list(ordinals)
        self.address = address
        self.steps = list(steps)
        self.ranks = list(ranks)


def nested(value: Any) -> Any:
    """A value as it is, but parts by path as dicts, and as a tuple where they are numbered.

    >>> nested({"0": 1, "1.a": 2, "1.b.c": 3})
    (1, {'a': 2, 'b': {'c': 3}})
    """
    if not isinstance(value, dict):
        return value
    groups: dict[str, dict[str, Any]] = {}
    for path, part in value.items():
        first, _, rest = path.partition(".")
        groups.setdefault(first, {})[rest] = part
    found = {key: group[""] if "" in group else nested(group) for key, group in groups.items()}
    is_row = list(found) == [str(n) for n in range(len(found))]
    return tuple(found.values()) if is_row else found

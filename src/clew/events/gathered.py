"""Values of one address as the callbacks of a gather, and of the end, are given them."""

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

"""Values of one address as the callbacks of a gather, and of the end, get them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


class Gathered(list[Any]):
    """The values of an address that have data, and where each came from.

    `steps` are their steps; `ordinals` number the steps from 1, among those of the kind that
    `Callbacks(only=...)` names, or among all. A rank is None for a value made from several ranks. A
    callback that returns a `Gathered` sets the ordinals of its values: a number each, or an array
    of them.
    """

    def __init__(
        self,
        values: Iterable[object],
        ordinals: Sequence[object],
        address: str = "",
        steps: Sequence[int] = (),
        ranks: Sequence[int | None] = (),
    ) -> None:
        super().__init__(values)
        self.ordinals = list(ordinals)
        self.address = address
        self.steps = list(steps)
        self.ranks = list(ranks)

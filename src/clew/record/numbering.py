"""Number things that repeat, in order of first use."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any


class Numbering:
    """Numbers for things that repeat, and a row for each."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self._numbers: dict[Any, int] = {}

    def __getitem__(self, key: Any) -> int:
        """Return the number of `key`, which must have one."""
        return self._numbers[key]

    def get(self, key: Any) -> int | None:
        """Return the number of `key`, None if it has none."""
        return self._numbers.get(key)

    def number(self, key: Any, make: Callable[[], Any]) -> int:
        """Return the number of `key`; make its row if it is new."""
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.rows)
            self.rows.append(make())
        return number

    def many(self, keys: list[Any], number: Callable[[Any], int]) -> list[int]:
        """Return the numbers of several keys; `number` is called with each new one."""
        known = map(self._numbers.get, keys)
        return [
            number(key) if found is None else found for key, found in zip(keys, known, strict=True)
        ]


class RecentNumbering(Numbering):
    """A numbering that remembers only the rows used last.

    A key that is used after it was dropped gets a new number.
    """

    def __init__(self, most: float) -> None:
        super().__init__()
        self._most = most
        self._count = 0

    def number(self, key: Any, make: Callable[[], Any]) -> int:
        """Return the number of `key`; make its row if it is new."""
        number = self._numbers.pop(key, None)
        if number is None:
            number = self._count
            self._count += 1
            self.rows.append(make())
        self._numbers[key] = number  # moves it to the end: it was used last
        return number

    def gained(self) -> list[Any]:
        """Return the rows added since the last call."""
        rows, self.rows = self.rows, []
        return rows

    def let_go(self) -> list[int]:
        """Drop the rows that were not used for longest, and return their numbers."""
        many = int(max(0, len(self._numbers) - self._most))
        oldest = list(itertools.islice(self._numbers, many))
        return [self._numbers.pop(key) for key in oldest]

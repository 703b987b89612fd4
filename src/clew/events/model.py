"""Small types that every room knows: a source line, statistics, a gap in the coverage."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, cast

from clew.events.notebook_port import Shown
from clew.plain_text import plain

# Version of what `--json` prints and of the JSON of a graph: it changes when a key is removed or
# changes its meaning.
SCHEMA = 1


class Data(Shown):
    """Base of dataclasses that convert to plain data."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {field.name: getattr(self, field.name) for field in fields(cast(Any, self))}


@dataclass(frozen=True, slots=True)
class Source(Data):
    """A line in the user's code. Columns count from 0; both are 0 if Python does not know them."""

    file: str
    line: int
    end_line: int
    col: int
    end_col: int
    function: str
    text: str

    def __str__(self) -> str:
        return plain(f"{self.file}:{self.line}")


@dataclass(frozen=True, slots=True)
class Stats(Data):
    """Statistics of a tensor's elements; min, max, mean, std, norm are of the finite ones."""

    min: float | None
    max: float | None
    mean: float | None
    std: float | None
    norm: float | None
    nan: int
    inf: int
    zeros: int
    count: int


@dataclass(frozen=True, slots=True)
class Gap(Data):
    """Something that was not seen, and what to do about it."""

    what: str
    where: str
    why: str
    remedy: str

    def __str__(self) -> str:
        place = f" at {self.where}" if self.where else ""
        return plain(f"{self.what}{place}: {self.why}; {self.remedy}")

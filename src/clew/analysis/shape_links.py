"""The answer to why a tensor has its shape: a chain of links, as frozen data.

`analysis.shape_chain` makes it from a run; `analysis.shape_lines` writes it as text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clew.analysis.shape.call import Shape
from clew.analysis.shape_lines import ROWS, chain_lines
from clew.events.model import Data, Source
from clew.plain_text import plain
from clew.run.event import Event

# Where a dimension can end besides at an op.
INPUT, PARAMETER, BUFFER, OUTSIDE = "input", "parameter", "buffer", "outside"
# A dimension that another branch already follows.
SEEN = "seen"


@dataclass(frozen=True, slots=True)
class Dimension(Data):
    """One dimension of a shape."""

    shape: Shape
    dim: int

    @property
    def size(self) -> int:
        """Return the size of the dimension."""
        return self.shape[self.dim]

    def __str__(self) -> str:
        return f"dim {self.dim} of [{','.join(map(str, self.shape))}]"

    def to_dict(self) -> dict[str, Any]:
        """Return shape, dim and size."""
        return {"shape": list(self.shape), "dim": self.dim, "size": self.size}


@dataclass(frozen=True, slots=True, repr=False)
class ShapeLink(Data):
    """One link of a chain: what happened to a dimension, and where it was before.

    `how` is a word: `"carried"`, `"permuted"`, `"split"`, `"merged"`, `"broadcast"`,
    `"concatenated"`, `"sliced"`, `"resized"`, `"repeated"`, `"taken"` (from a weight or an index),
    `"reduced"`, `"created"`, `"counted"` (its size depends on the data), `"assumed"`, `"unknown"`,
    or where the chain ends: `"input"`, `"parameter"`, `"buffer"`, `"outside"`, `"seen"` for what
    another branch has shown; an input that was made inside the trace is passed on the way. `text`
    says it in words. `event` is the op, None if there is none. `after` is the dimension behind the
    op, `before` the dimensions that it was made of, empty at an end. `count` is the number of ops
    that a link of ops which only carry the dimension stands for. `depth` counts the branches that
    lead here. `name` is the parameter or the address of the input.
    """

    how: str
    text: str
    event: Event | None
    after: Dimension
    before: tuple[Dimension, ...] = ()
    count: int = 1
    depth: int = 0
    name: str = ""

    @property
    def source(self) -> Source | None:
        """Return the line of user code that ran the op."""
        return None if self.event is None else self.event.source

    @property
    def is_end(self) -> bool:
        """Return whether the dimension comes from here."""
        return not self.before

    def __repr__(self) -> str:
        return plain(f"<ShapeLink {self.after}: {self.text}>")

    def to_dict(self) -> dict[str, Any]:
        """Return the link as plain data; of the event only what is needed to find it."""
        event, source = self.event, self.source
        return {
            "how": self.how,
            "text": self.text,
            "after": self.after.to_dict(),
            "before": [dimension.to_dict() for dimension in self.before],
            "count": self.count,
            "depth": self.depth,
            "name": self.name,
            "op": None if event is None else event.name,
            "address": None if event is None else event.address,
            "module": None if event is None else event.module,
            "source": None if source is None else source.to_dict(),
        }


@dataclass(frozen=True, slots=True, repr=False)
class ShapeChain(Data):
    """Where one dimension of a tensor comes from; `print` shows the chain, the tensor first.

    `links` lead from the tensor back; where a dimension was merged or concatenated, the links of
    each of its parts follow one another, a level deeper. `origins` are the links where it ends.
    """

    address: str
    dimension: Dimension
    links: tuple[ShapeLink, ...]
    notes: tuple[str, ...] = ()

    @property
    def dim(self) -> int:
        """Return the dimension that was asked for, counted from the beginning."""
        return self.dimension.dim

    @property
    def shape(self) -> Shape:
        """Return the shape of the tensor."""
        return self.dimension.shape

    @property
    def size(self) -> int:
        """Return the size of the dimension."""
        return self.dimension.size

    @property
    def origins(self) -> tuple[ShapeLink, ...]:
        """Return the inputs, parameters and ops that the dimension comes from."""
        return tuple(link for link in self.links if link.is_end and link.how != SEEN)

    def __str__(self) -> str:
        return self.text()

    def text(self, rows: int = ROWS, more: str = "`links` has all") -> str:
        """Write the chain with at most so many links; `more` says how to see the others."""
        return "\n".join(chain_lines(self, rows, more))

    def __repr__(self) -> str:
        ends = ", ".join(dict.fromkeys(link.name or link.text for link in self.origins))
        what = f"{self.dimension} of {self.address}" if self.address else str(self.dimension)
        return plain(f"<ShapeChain {what} from {ends}>")

    def to_dict(self) -> dict[str, Any]:
        """Return the chain as plain data."""
        return {
            "address": self.address,
            **self.dimension.to_dict(),
            "links": [link.to_dict() for link in self.links],
            "origins": [link.to_dict() for link in self.origins],
            "notes": list(self.notes),
        }

"""Input and output of a layout: boxes and frames with their sizes, links, rectangles, routes."""

from __future__ import annotations

from dataclasses import dataclass, field

Size = tuple[float, float]
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Box:
    """A box of a size, or, with `inside`, a frame around others with a title of that size."""

    id: str
    width: float
    height: float
    inside: tuple[Box, ...] = ()


@dataclass(frozen=True, slots=True)
class Link:
    """An edge to draw, `label` the size of its text. Links of different `lane`s share no line.

    Links that are `minor` are straightened last.
    """

    source: str
    target: str
    label: Size | None = None
    lane: str = ""
    minor: bool = False


@dataclass(frozen=True, slots=True)
class Rect:
    """Rectangle of a box."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def bottom(self) -> float:
        return self.y + self.height

    def contains(self, other: Rect, slack: float = 1e-6) -> bool:
        """Return whether another rectangle lies inside."""
        return (
            self.x <= other.x + slack
            and self.y <= other.y + slack
            and other.right <= self.right + slack
            and other.bottom <= self.bottom + slack
        )

    def overlaps(self, other: Rect, slack: float = 1e-6) -> bool:
        """Return whether two rectangles share more than an edge."""
        return (
            self.x < other.right - slack
            and other.x < self.right - slack
            and self.y < other.bottom - slack
            and other.y < self.bottom - slack
        )


@dataclass(slots=True)
class Route:
    """Points of one link from its source to its target, in order.

    A link too long to draw has a `stub`: a rectangle beside its target that names the source; the
    points begin there.
    """

    points: list[Point] = field(default_factory=list)
    label: Rect | None = None
    stub: Rect | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """A finished layout: the routes are in the order of the links, None for those not drawn."""

    width: float
    height: float
    boxes: dict[str, Rect]
    routes: list[Route | None]


@dataclass(frozen=True, slots=True)
class Spacing:
    """How much room is left: between boxes of a row, beside lines, between rows, in frames."""

    boxes: float = 22
    lines: float = 12
    rows: float = 12
    frame: float = 14
    # How many rows a link may span; a longer one gets a stub with a name.
    longest: int = 30

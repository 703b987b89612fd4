"""Layout of one frame: its boxes in rows, lines between them, ports where lines leave the frame.

Input: numbered places with sizes, and ties between them that lead from lower to higher numbers.
Output: the centre of each place and the bends of each tie. A frame inside this one is a box with
ports here; what it contains is not known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from clew.errors import ClewError
from clew.views.graph.layout.box_columns import columns
from clew.views.graph.layout.crossings import ordered
from clew.views.graph.layout.grid import Grid, Ties
from clew.views.graph.layout.layers import ranks
from clew.views.graph.layout.shapes import Point, Rect, Size, Spacing

# A place is a box in the rows, or a port through which lines enter or leave.
BOX, ENTRY, EXIT = 0, -1, 1
_FAR = 1 << 20
# A line has a bend in each row that it passes.
_MOST_BENDS = 100_000


@dataclass(frozen=True, slots=True)
class Tie:
    """Line from one place to another. Offsets fix it off a place's centre; None leaves it free."""

    source: int
    target: int
    leaves_at: float | None = None
    arrives_at: float | None = None
    label: Size | None = None
    minor: bool = False


@dataclass(slots=True)
class Laid:
    """A finished level: rectangles of the places, points of the ties, rectangles of labels."""

    width: float
    height: float
    places: list[Rect]
    ways: list[list[Point]]
    labels: list[Rect | None]


@dataclass(slots=True)
class _Place:
    width: float
    height: float
    row: int
    bend: bool = False
    title: bool = False


@dataclass(slots=True)
class _Chain:
    """The places a tie runs through: its ends and the bends between."""

    places: list[int] = field(default_factory=list)
    label: int | None = None
    minor: bool = False

    @property
    def length(self) -> int:
        """Return how far it goes; of several lines the shortest is kept straight."""
        return len(self.places) + (_FAR if self.minor else 0)


class Level:
    """Lays out one level."""

    def __init__(
        self,
        sizes: list[Size],
        sorts: list[int],
        ties: list[Tie],
        title: Size,
        space: Spacing,
        label_after: bool = True,
    ) -> None:
        self._sizes = sizes
        self._sorts = sorts
        self.ties = ties
        self._title = title
        self._space = space
        # A line runs along one side of its label.
        self._side = -0.5 if label_after else 0.5

    def rows_of_boxes(self) -> list[int]:
        """Return the row of each place; ports are before the first row and after the last."""
        boxes = [n for n, sort in enumerate(self._sorts) if sort == BOX]
        number = {place: i for i, place in enumerate(boxes)}
        inner = [
            (number[tie.source], number[tie.target])
            for tie in self.ties
            if tie.source in number and tie.target in number
        ]
        found = ranks(len(boxes), inner)
        last = max(found, default=0)
        edge = {ENTRY: -1, EXIT: last + 1}
        return [
            found[number[n]] if sort == BOX else edge[sort] for n, sort in enumerate(self._sorts)
        ]

    def bends(self) -> int:
        """Count the rows that all ties together pass."""
        rows = self.rows_of_boxes()
        return sum(max(0, rows[tie.target] - rows[tie.source] - 1) for tie in self.ties)

    def laid(self) -> Laid:
        """Return the finished level; raise ClewError if its lines pass too many rows."""
        bends = self.bends()
        if bends > _MOST_BENDS:
            raise ClewError(
                f"{len(self.ties):,} lines would pass {bends:,} rows of boxes, more than the "
                f"{_MOST_BENDS:,} of a picture; draw less, with depth=, prune=, squash= or an "
                "address; the text, .dot(), .mermaid() and .json() have all of it"
            )
        places = [
            _Place(width, height, row)
            for (width, height), row in zip(self._sizes, self.rows_of_boxes(), strict=True)
        ]
        chains = [self._chain(tie, places) for tie in self.ties]
        title = None
        if self._title[0]:
            title = len(places)
            places.append(_Place(*self._title, row=-1, title=True))
        above, below = _neighbours(chains, len(places))
        rows = _filled(places)
        body = ordered([[p for p in row if p != title] for row in rows], above, below)
        if title is not None:
            body[0] = [title, *body[0]]
        ties_above, ties_below = self._fixed(chains, body, places)
        grid = Grid(
            body,
            [place.width / 2 for place in places],
            ties_above,
            ties_below,
            [place.bend for place in places],
            lambda one, two: self._room(places[one], places[two]),
        )
        xs = columns(grid)
        if title is not None:
            self._title_left(xs, places, title)
        return self._finished(places, chains, body, xs, ties_below)

    def _chain(self, tie: Tie, places: list[_Place]) -> _Chain:
        """Return a tie with a bend in each row it passes, and the label in the first row after its
        box.
        """
        chain = _Chain([tie.source], minor=tie.minor)
        first = places[tie.source].row
        for row in range(first + 1, places[tie.target].row):
            labelled = tie.label is not None and chain.label is None and row % 2 == 1
            width, height = tie.label if labelled and tie.label is not None else (0.0, 0.0)
            if labelled:
                chain.label = len(places)
            chain.places.append(len(places))
            places.append(_Place(width, height, row, bend=True))
        chain.places.append(tie.target)
        return chain

    def _room(self, one: _Place, two: _Place) -> float:
        if one.title or two.title:
            return self._space.boxes / 2
        if one.bend or two.bend:
            return self._space.lines
        return self._space.boxes

    def _fixed(
        self, chains: list[_Chain], rows: list[list[int]], places: list[_Place]
    ) -> tuple[Ties, Ties]:
        """Return the ties between neighbouring places, with their offsets on each place."""
        at = {place: i for row in rows for i, place in enumerate(row)}
        leaves = self._offsets(chains, at, leaving=True)
        arrives = self._offsets(chains, at, leaving=False)
        above: Ties = [[] for _ in places]
        below: Ties = [[] for _ in places]
        for number, chain in enumerate(chains):
            offsets = [self._side * places[place].width for place in chain.places]
            offsets[0], offsets[-1] = leaves[number], arrives[number]
            ends = zip(chain.places, offsets, strict=True)
            for (one, out), (two, into) in pairwise(ends):
                below[one].append((two, out, into, chain.length))
                above[two].append((one, into, out, chain.length))
        return above, below

    def _offsets(self, chains: list[_Chain], at: dict[int, int], leaving: bool) -> list[float]:
        """Return the offset of each tie at its end: the shortest in the middle, the others beside
        it.
        """
        offsets = [0.0] * len(chains)
        ends: dict[int, list[int]] = {}
        for number, (tie, chain) in enumerate(zip(self.ties, chains, strict=True)):
            given = tie.leaves_at if leaving else tie.arrives_at
            if given is not None:
                offsets[number] = given
            else:
                ends.setdefault(chain.places[0 if leaving else -1], []).append(number)
        for place, numbers in ends.items():
            if len(numbers) == 1 or self._sorts[place] != BOX:
                continue
            near = 1 if leaving else -2
            numbers.sort(key=lambda n: at[chains[n].places[near]])
            middle = (len(numbers) - 1) / 2
            main = min(
                range(len(numbers)),
                key=lambda i: (chains[numbers[i]].length, abs(i - middle)),
            )
            most = max(main, len(numbers) - 1 - main)
            step = min(self._space.lines, (self._sizes[place][0] / 2 - 8) / most)
            for i, number in enumerate(numbers):
                offsets[number] = (i - main) * step
        return offsets

    def _title_left(self, xs: list[float], places: list[_Place], title: int) -> None:
        """Put the title at the left, where there is nothing else."""
        left = min(
            x - place.width / 2
            for number, (x, place) in enumerate(zip(xs, places, strict=True))
            if number != title
        )
        xs[title] = min(xs[title], left + places[title].width / 2)

    def _finished(
        self,
        places: list[_Place],
        chains: list[_Chain],
        rows: list[list[int]],
        xs: list[float],
        below: Ties,
    ) -> Laid:
        left = min((x - p.width / 2 for x, p in zip(xs, places, strict=True)), default=0.0)
        xs = [x - left for x in xs]
        tops, bottoms = self._heights(places, rows, xs, below)
        rects = [
            Rect(
                x - place.width / 2,
                (tops[place.row] + bottoms[place.row] - place.height) / 2,
                place.width,
                place.height,
            )
            for x, place in zip(xs, places, strict=True)
        ]
        # Offsets of lines between two places; the first line decides for all between the same two.
        fixed = {
            (one, two): (out, into)
            for one, ties in enumerate(below)
            for two, out, into, _ in reversed(ties)
        }
        ways = [self._way(chain, places, xs, rects, tops, bottoms, fixed) for chain in chains]
        labels = [None if chain.label is None else rects[chain.label] for chain in chains]
        width = max((rect.right for rect in rects), default=0.0)
        height = max(bottoms.values(), default=0.0)
        return Laid(width, height, rects[: len(self._sizes)], ways, labels)

    def _heights(
        self, places: list[_Place], rows: list[list[int]], xs: list[float], below: Ties
    ) -> tuple[dict[int, float], dict[int, float]]:
        """Return top and bottom of each row; slanting lines between rows push them apart."""
        tops: dict[int, float] = {}
        bottoms: dict[int, float] = {}
        y = 0.0
        for row in rows:
            number = places[row[0]].row
            tops[number] = y
            bottoms[number] = y + max(places[place].height for place in row)
            slants = (
                abs(xs[place] + out - xs[other] - into)
                for place in row
                for other, out, into, _ in below[place]
            )
            y = bottoms[number] + self._space.rows + min(max(slants, default=0.0) * 0.1, 26.0)
        return tops, bottoms

    def _way(
        self,
        chain: _Chain,
        places: list[_Place],
        xs: list[float],
        rects: list[Rect],
        tops: dict[int, float],
        bottoms: dict[int, float],
        fixed: dict[tuple[int, int], tuple[float, float]],
    ) -> list[Point]:
        """Return the points of a tie: straight down through each row, past the boxes."""
        points = []
        for one, two in pairwise(chain.places):
            out, into = fixed[one, two]
            row = places[one].row
            start = tops[row] if places[one].bend else rects[one].bottom
            x = xs[one] + out
            points += [(x, start), (x, bottoms[row]), (xs[two] + into, tops[places[two].row])]
        return [*points, (points[-1][0], rects[chain.places[-1]].y)]


def _neighbours(chains: list[_Chain], count: int) -> tuple[list[list[int]], list[list[int]]]:
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for chain in chains:
        for one, two in pairwise(chain.places):
            below[one].append(two)
            above[two].append(one)
    return above, below


def _filled(places: list[_Place]) -> list[list[int]]:
    """Return the rows with their places, without empty rows."""
    rows: dict[int, list[int]] = {}
    for number, place in enumerate(places):
        rows.setdefault(place.row, []).append(number)
    return [rows[row] for row in sorted(rows)]

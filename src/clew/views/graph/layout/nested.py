"""Layout of a whole graph: every frame separately, from the inside out, then put together.

A link between boxes of different frames is cut where it crosses a frame: it leaves each frame by a
port at its end and enters by a port at its beginning. Links of one origin share their ports.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from clew.views.graph.layout.level import BOX, ENTRY, EXIT, Laid, Level, Tie
from clew.views.graph.layout.shapes import Box, Link, Picture, Point, Rect, Route, Size, Spacing

_TOP = ""
# With more bends of lines in a frame than this, not all lines are drawn.
_MANY_BENDS = 20_000
# A link's origin and lane, which make its ports.
_Key = tuple[str, str]
# An end of a cut link in one frame: a box with the port used, or the frame's own port.
_End = tuple[int, str, _Key | None]
# A piece of a link in a frame: its ends and its lane.
_Name = tuple[_End, _End, str]


@dataclass(slots=True)
class _Cut:
    """One piece of one or more links inside one frame."""

    source: _End
    target: _End
    minor: bool
    label: Size | None = None


@dataclass(slots=True)
class _Frame:
    """A frame while it is laid out; sizes and places are in the frame's coordinates."""

    box: Box
    cuts: dict[_Name, _Cut] = field(default_factory=dict)
    ports: dict[tuple[int, _Key], float] = field(default_factory=dict)
    size: Size = (0.0, 0.0)
    # Where the frame's coordinates begin, from its corner.
    inset: Point = (0.0, 0.0)
    places: dict[str, Rect] = field(default_factory=dict)
    ways: dict[_Name, list[Point]] = field(default_factory=dict)
    labels: dict[_Name, Rect | None] = field(default_factory=dict)
    stubs: dict[_Name, Rect] = field(default_factory=dict)


@dataclass(slots=True)
class _Way:
    """Pieces of one link, from its upper end to its lower, and whether it was reversed."""

    pieces: list[tuple[str, _Name]] = field(default_factory=list)
    labelled: int = 0
    turned: bool = False
    minor: bool = False


def lay_out(
    boxes: list[Box],
    links: list[Link],
    *,
    right: bool = False,
    space: Spacing | None = None,
    stub_size: Callable[[str], Size] = lambda name: (60.0, 16.0),
) -> Picture:
    """Place boxes and route links, downwards or to the right."""
    return _Nested(boxes, links, right, space or Spacing(), stub_size).picture()


class _Nested:
    def __init__(
        self,
        boxes: list[Box],
        links: list[Link],
        right: bool,
        space: Spacing,
        stub_size: Callable[[str], Size],
    ) -> None:
        self._right = right
        self._space = space
        self._stub_size = stub_size
        self._above: dict[str, str] = {}
        self._order: dict[str, int] = {}
        self._frames = {_TOP: _Frame(Box(_TOP, 0.0, 0.0, tuple(boxes)))}
        self._index(_TOP, tuple(boxes))
        self._ways = [self._cut(link) for link in links]

    def _index(self, parent: str, boxes: tuple[Box, ...]) -> None:
        for box in boxes:
            self._above[box.id] = parent
            self._order[box.id] = len(self._order)
            if box.inside:
                self._frames[box.id] = _Frame(box)
                self._index(box.id, box.inside)

    def _path(self, name: str) -> list[str]:
        """Return a box and the frames that contain it, innermost first, without the outermost."""
        path = [name]
        while self._above[path[-1]] != _TOP:
            path.append(self._above[path[-1]])
        return path

    def _cut(self, link: Link) -> _Way | None:
        """Cut a link at the frames it crosses; None if one end contains the other."""
        if link.source not in self._order or link.target not in self._order:
            return None
        source, target = self._path(link.source), self._path(link.target)
        while source and target and source[-1] == target[-1]:
            source.pop()
            target.pop()
        if not source or not target:
            return None
        way = _Way(turned=self._order[source[-1]] > self._order[target[-1]])
        if way.turned:
            source, target = target, source
        key = source[0], link.lane + ("<" if way.turned else ">")
        way.minor = link.minor
        self._leave(source, key, way)
        way.labelled = len(way.pieces)
        frame = self._above[source[-1]]
        self._piece(frame, self._end(source, key), self._end(target, key), key, way, link.label)
        self._arrive(target, key, way)
        return way

    def _end(self, path: list[str], key: _Key) -> _End:
        return (BOX, path[-1], key if len(path) > 1 else None)

    def _leave(self, path: list[str], key: _Key, way: _Way) -> None:
        for depth in range(1, len(path)):
            frame = path[depth]
            self._piece(frame, self._end(path[:depth], key), (EXIT, frame, key), key, way)

    def _arrive(self, path: list[str], key: _Key, way: _Way) -> None:
        for depth in range(len(path) - 1, 0, -1):
            frame = path[depth]
            self._piece(frame, (ENTRY, frame, key), self._end(path[:depth], key), key, way)

    def _piece(
        self,
        frame: str,
        source: _End,
        target: _End,
        key: _Key,
        way: _Way,
        label: Size | None = None,
    ) -> None:
        name = source, target, key[1]
        cut = self._frames[frame].cuts.setdefault(name, _Cut(source, target, way.minor))
        if label is not None:
            cut.label = label if cut.label is None else _wider(cut.label, label)
        way.pieces.append((frame, name))

    def picture(self) -> Picture:
        """Return the finished layout."""
        for name in sorted(self._frames, key=lambda n: -self._order.get(n, -1)):
            self._lay_frame(self._frames[name])
        corners: dict[str, Point] = {_TOP: (0.0, 0.0)}
        rects: dict[str, Rect] = {}
        for name, frame in self._frames.items():
            x, y = corners[name][0] + frame.inset[0], corners[name][1] + frame.inset[1]
            for inner, rect in frame.places.items():
                rects[inner] = Rect(rect.x + x, rect.y + y, rect.width, rect.height)
                corners[inner] = rects[inner].x, rects[inner].y
        routes = [None if way is None else self._route(way, corners) for way in self._ways]
        width, height = self._frames[_TOP].size
        if self._right:
            return Picture(height, width, {n: _turned(r) for n, r in rects.items()}, routes)
        return Picture(width, height, rects, routes)

    def _lay_frame(self, frame: _Frame) -> None:
        """Lay out the inside of one frame; the frames in it have their sizes already."""
        level = _FrameLevel(frame, self._sizes(frame), self._offset, self._space, self._stub_size)
        title = (frame.box.width, frame.box.height)
        side = self._space.frame if frame.box.id != _TOP else 0.0
        if self._right or frame.box.id == _TOP:
            laid = level.lay((0.0, 0.0), self._right)
            ahead = title[1] + side / 2 if title[1] else side
            across = laid.width + ahead + side
            along = max(laid.height, title[0]) + 2 * side
            frame.inset = (ahead, side + max(0.0, title[0] - laid.height) / 2)
        else:
            laid = level.lay(title, False)
            across, along = laid.width + 2 * side, laid.height + side * 1.25
            frame.inset = (side, side / 4)
        frame.size = across, along
        middle = across / 2
        for port, place in level.ports.items():
            rect = laid.places[place]
            frame.ports[port] = rect.x + rect.width / 2 + frame.inset[0] - middle

    def _sizes(self, frame: _Frame) -> dict[str, Size]:
        sizes = {}
        for box in frame.box.inside:
            if box.inside:
                sizes[box.id] = self._frames[box.id].size
            else:
                size = box.width, box.height
                sizes[box.id] = size[::-1] if self._right else size
        return sizes

    def _offset(self, end: _End, sort: int) -> float | None:
        """Return the offset of a port from the middle of its frame; None for a plain box."""
        _, name, key = end
        return None if key is None else self._frames[name].ports[sort, key]

    def _route(self, way: _Way, corners: dict[str, Point]) -> Route:
        """Join the pieces of a link, from its source to its target."""
        route = Route()
        for number, (name, piece) in enumerate(way.pieces):
            frame = self._frames[name]
            x = corners[name][0] + frame.inset[0]
            y = corners[name][1] + frame.inset[1]
            points = [(px + x, py + y) for px, py in frame.ways[piece]]
            label = frame.labels[piece] if number == way.labelled else None
            if piece in frame.stubs:
                route.points.clear()
                route.stub = self._real(_moved(frame.stubs[piece], x, y))
            route.points += points
            if label is not None:
                route.label = self._real(_moved(label, x, y))
        if way.turned:
            route.points.reverse()
        if self._right:
            route.points = [(y, x) for x, y in route.points]
        return route

    def _real(self, rect: Rect) -> Rect:
        return _turned(rect) if self._right else rect


class _FrameLevel:
    """One frame as a `Level`: its boxes, ports and stubs by number."""

    def __init__(
        self,
        frame: _Frame,
        sizes: dict[str, Size],
        offset: Callable[[_End, int], float | None],
        space: Spacing,
        stub_size: Callable[[str], Size],
    ) -> None:
        self._frame = frame
        self._box_sizes = sizes
        self._offset = offset
        self._space = space
        self._stub_size = stub_size
        self.ports: dict[tuple[int, _Key], int] = {}
        self._boxes: dict[str, int] = {}
        self._stubs: dict[_Name, int] = {}

    def lay(self, title: Size, right: bool) -> Laid:
        """Lay out the inside of the frame and store the result in the frame."""
        frame = self._frame
        level = self._followable(title, right)
        laid = level.laid()
        for name, way, label in zip(frame.cuts, laid.ways, laid.labels, strict=True):
            frame.ways[name], frame.labels[name] = way, label
            if name in self._stubs:
                frame.stubs[name] = laid.places[self._stubs[name]]
        for box, place in self._boxes.items():
            frame.places[box] = laid.places[place]
        return laid

    def _followable(self, title: Size, right: bool) -> Level:
        """Return the level with stubs for lines that are too long to follow.

        If very many lines remain, lines from outside the frame get stubs too, provided that helps.
        """
        first = self._level(set(), title, right)
        long = self._too_long(first, (BOX,))
        level = self._level(long, title, right) if long else first
        bends = level.bends()
        if bends <= _MANY_BENDS:
            return level
        more = self._level(self._too_long(first, (BOX, ENTRY)), title, right)
        return more if more.bends() < bends else self._level(long, title, right)

    def _too_long(self, level: Level, sources: tuple[int, ...]) -> set[_Name]:
        """Return the cuts that span more rows than one can follow."""
        rows = level.rows_of_boxes()
        return {
            name
            for name, tie in zip(self._frame.cuts, level.ties, strict=True)
            if rows[tie.target] - rows[tie.source] > 2 * self._space.longest
            and name[0][0] in sources
            and name[1][0] == BOX
        }

    def _level(self, long: set[_Name], title: Size, right: bool) -> Level:
        """Number everything in the frame, earlier runs before later ones."""
        sizes: list[Size] = []
        sorts: list[int] = []

        def place(size: Size, sort: int = BOX) -> int:
            sizes.append(size)
            sorts.append(sort)
            return len(sizes) - 1

        self._stubs.clear()
        stubs: dict[tuple[str, str], int] = {}
        into: dict[str, list[_Name]] = {}
        for name in self._frame.cuts:
            if name in long:
                into.setdefault(name[1][1], []).append(name)
        for box in self._frame.box.inside:
            for name in into.get(box.id, ()):
                origin = self._origin(name)
                if (origin, box.id) not in stubs:
                    size = self._stub_size(origin)
                    stubs[origin, box.id] = place(size[::-1] if right else size)
                self._stubs[name] = stubs[origin, box.id]
            self._boxes[box.id] = place(self._box_sizes[box.id])
        self.ports.clear()
        for cut in self._frame.cuts.values():
            for sort, _, key in (cut.source, cut.target):
                if sort != BOX and key is not None and (sort, key) not in self.ports:
                    self.ports[sort, key] = place((0.0, 0.0), sort)
        ties = [self._tie(name, cut, right) for name, cut in self._frame.cuts.items()]
        return Level(sizes, sorts, ties, title, self._space, label_after=not right)

    def _origin(self, name: _Name) -> str:
        _, box, key = name[0]
        return box if key is None else key[0]

    def _tie(self, name: _Name, cut: _Cut, right: bool) -> Tie:
        label = None if cut.label is None else cut.label[::-1] if right else cut.label
        target, arrives = self._number(cut.target), self._port_offset(cut.target, ENTRY)
        if name in self._stubs:
            return Tie(self._stubs[name], target, None, arrives, minor=cut.minor)
        source, leaves = self._number(cut.source), self._port_offset(cut.source, EXIT)
        return Tie(source, target, leaves, arrives, label, cut.minor)

    def _port_offset(self, end: _End, sort: int) -> float | None:
        return self._offset(end, sort) if end[0] == BOX else 0.0

    def _number(self, end: _End) -> int:
        sort, name, key = end
        if sort == BOX:
            return self._boxes[name]
        assert key is not None
        return self.ports[sort, key]


def _wider(one: Size, two: Size) -> Size:
    return max(one[0], two[0]), max(one[1], two[1])


def _moved(rect: Rect, x: float, y: float) -> Rect:
    return Rect(rect.x + x, rect.y + y, rect.width, rect.height)


def _turned(rect: Rect) -> Rect:
    return Rect(rect.y, rect.x, rect.height, rect.width)

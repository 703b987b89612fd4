"""Lines of the code view while they are open: source lines nested as they call each other.

Input: chains of source lines, outermost first. Output: `Line` nodes in a tree. A line gets a new
node when it differs from the one before, or runs again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from clew.events.columns import Place
from clew.views.text.code_nodes import Line, ModuleCall, Node, Runs


@dataclass(frozen=True, slots=True)
class Frame:
    """One line on the way to an op: a source line, or, without a place, a module of torch.

    `key` identifies the line, `position` the position in the line. `call` is the row of the module
    call made from here, -1 if there was none.
    """

    key: object
    position: object
    call: int
    place: Place | None
    module: str | None = None
    tag: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """A frame and those above it; chains of events that run under it share it."""

    frame: Frame
    above: Chain | None
    depth: int


def extended(chain: Chain | None, frames: Iterable[Frame]) -> Chain | None:
    """Return a chain, None for an empty one, with frames under it."""
    for frame in frames:
        chain = Chain(frame, chain, 0 if chain is None else chain.depth + 1)
    return chain


@dataclass(slots=True)
class Visit:
    """A line while it runs, and what ran under it; `children` are those of its node."""

    children: list[Node]
    calls: list[int] = field(default_factory=list)
    runs: Runs = field(default_factory=Runs)
    position: object = None
    call: int = -1
    # Positions of the line that were reached in this visit, calls of modules apart.
    seen: set[tuple[object, bool]] = field(default_factory=set)
    inside: dict[object, Visit] = field(default_factory=dict)

    def runs_again(self, frame: Frame) -> bool:
        """Return whether reaching a position once more means that the line runs once more."""
        if (frame.position, frame.call >= 0) not in self.seen:
            return False
        # One instruction may run several ops, and everything inside a call lies under it.
        return frame.call != self.call if frame.call >= 0 else frame.position != self.position

    def reach(self, frame: Frame) -> None:
        """Note a position as reached."""
        self.position, self.call = frame.position, frame.call
        self.seen.add((frame.position, frame.call >= 0))
        if frame.call >= 0 and frame.call not in self.calls[-1:]:
            self.calls.append(frame.call)


class OpenLines:
    """Builds the tree of lines, remembering which are open."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._open = [Visit(self.nodes)]
        # The chain that led to each open line last.
        self._reached: list[Chain] = []

    def go(self, chain: Chain | None) -> None:
        """Open the lines of a chain, with new nodes for those that are not open yet."""
        length = 0 if chain is None else chain.depth + 1
        new: list[Chain] = []
        # Lines that the same chain reached stay open, so only the part that differs is walked.
        while chain is not None and (
            len(self._reached) <= chain.depth or self._reached[chain.depth] is not chain
        ):
            new.append(chain)
            chain = chain.above
        for link in reversed(new):
            self._enter(link)
        self._close(length)

    def _enter(self, link: Chain) -> None:
        frame, depth = link.frame, link.depth
        above = self._open[depth]
        before = above.inside.get(frame.key)
        is_open = len(self._open) > depth + 1 and self._open[depth + 1] is before
        if is_open and before is not None and not before.runs_again(frame):
            before.reach(frame)
            self._reached[depth] = link
            return
        self._close(depth)
        visit = _visit(before, frame, above.children)
        above.inside[frame.key] = visit
        self._open.append(visit)
        self._reached.append(link)

    def put(self, node: Node) -> None:
        """Add a node under the innermost open line."""
        self._open[-1].children.append(node)

    def runs(self) -> dict[object, int]:
        """Return how often the lines directly under the innermost open one ran."""
        return {key: visit.runs.total for key, visit in self._open[-1].inside.items()}

    def repeat(self, before: Mapping[object, int], times: int) -> None:
        """Count the runs since `before`, of lines directly under the innermost open one, again."""
        for key, visit in self._open[-1].inside.items():
            visit.runs.total += times * (visit.runs.total - before.get(key, 0))

    def _close(self, depth: int) -> None:
        del self._open[depth + 1 :]
        del self._reached[depth:]


def _visit(before: Visit | None, frame: Frame, siblings: list[Node]) -> Visit:
    """Open a line: a new run of it, or more of a statement that spreads over several lines."""
    runs = Runs() if before is None else before.runs
    again = before is not None and (frame.position, frame.call >= 0) in before.seen
    runs.total += again
    node: Line | ModuleCall
    if frame.place is None:
        node = ModuleCall(frame.call)
        visit = Visit(node.children, runs=runs)
    else:
        node = Line(frame.place, frame.module, frame.tag, runs.total, runs)
        visit = Visit(node.children, node.calls, runs)
    siblings.append(node)
    if before is not None and not again:
        visit.seen, visit.inside = before.seen, before.inside
    visit.reach(frame)
    return visit

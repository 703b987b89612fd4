"""Lines of the code view: source lines nested as they call each other, ops beneath.

In come chains of source lines, outermost first, and texts to stand under them; out come lines of
text. A source line is printed when it differs from the one before, or runs again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from clew.events.columns import Place
from clew.views.text.style import Style

BAR = "│ "


@dataclass(frozen=True, slots=True)
class Frame:
    """One line on the way to an op: a source line, or a module of torch's own.

    `key` tells lines apart, `position` positions in one line. `call` is the row of the module
    call made from here, -1 if the frame was not left by one.
    """

    key: object
    position: object
    call: int
    text: str


@dataclass(slots=True)
class Visit:
    """A line while it runs, and what ran under it: `index` counts how often it did so far."""

    key: object
    index: int = 1
    position: object = None
    call: int = -1
    # Positions of the line that were reached in this visit, calls of modules apart.
    seen: set[tuple[object, bool]] = field(default_factory=set)
    inside: dict[object, Visit] = field(default_factory=dict)

    def runs_again(self, frame: Frame) -> bool:
        """Whether reaching a position once more means that the line is run once more."""
        if (frame.position, frame.call >= 0) not in self.seen:
            return False
        # One instruction may run several ops, and everything inside a call lies under it.
        return frame.call != self.call if frame.call >= 0 else frame.position != self.position

    def reach(self, frame: Frame) -> None:
        """Note a position as reached."""
        self.position, self.call = frame.position, frame.call
        self.seen.add((frame.position, frame.call >= 0))


class LineWriter:
    """Writes lines, remembering which are open."""

    def __init__(self, style: Style) -> None:
        self._style = style
        self.lines: list[str] = []
        self._open = [Visit(None)]
        self._waiting: list[str] = []

    @property
    def depth(self) -> int:
        """How many lines are open."""
        return len(self._open) - 1

    def go(self, chain: list[Frame]) -> bool:
        """Open the lines of a chain, printing those that are not open yet; whether any was."""
        moved = False
        for depth, frame in enumerate(chain):
            above = self._open[depth]
            before = above.inside.get(frame.key)
            is_open = len(self._open) > depth + 1 and self._open[depth + 1] is before
            if is_open and before is not None and not before.runs_again(frame):
                before.reach(frame)
                continue
            moved = True
            self._close(depth)
            visit = self._visit(before, frame)
            above.inside[frame.key] = visit
            self._open.append(visit)
            mark = f" ({visit.index})" if visit.index > 1 else ""
            self._print(depth, frame.text.replace("\0", mark))
        if len(self._open) > len(chain) + 1:
            moved = True
            self._close(len(chain))
        return moved

    def put(self, texts: Iterable[str]) -> None:
        """Print lines under the innermost open one."""
        for text in texts:
            self._print(self.depth, text)

    def put_at(self, depth: int, text: str) -> None:
        """Print a line at a depth, closing what is deeper."""
        self._close(depth)
        self._print(depth, text)

    def ran_more(self, keys: set[object], depth: int, times: int) -> None:
        """Count runs of lines at a depth that are not printed."""
        for key in keys:
            visit = self._open[depth].inside.get(key)
            if visit is not None:
                visit.index += times

    def _visit(self, before: Visit | None, frame: Frame) -> Visit:
        visit = Visit(frame.key)
        if before is not None:
            again = (frame.position, frame.call >= 0) in before.seen
            visit.index = before.index + again
            if not again:
                # The same run of a statement that spreads over several lines.
                visit.seen, visit.inside = before.seen, before.inside
        visit.reach(frame)
        return visit

    def _close(self, depth: int) -> None:
        del self._open[depth + 1 :]

    def _print(self, depth: int, text: str) -> None:
        self.lines += self._style.wrapped(BAR * depth, text)


def source_line(
    place: Place, raw: str, file: str, module: str, succinct: bool, style: Style
) -> str:
    """A source line with where it is; `\\0` stands where a count of runs goes."""
    text = raw.strip()
    if style.color and text:
        text = _highlighted(place, raw, style)
    where = f"# {file}:{place.line} in {place.function}"
    if not succinct and place.end_col and not style.color:
        end = place.end_col if place.end_line == place.line else len(raw.encode())
        where += f", columns {place.col + 1}–{end}"
    where += "\0"
    tag = f"   [{module}]" if module else ""
    gap = "  " if text else ""
    return text + gap + style.paint(where, "dim") + style.paint(tag, "magenta")


def _highlighted(place: Place, raw: str, style: Style) -> str:
    """A source line with the columns of the call in colour."""
    encoded = raw.encode()
    end = place.end_col if place.end_line == place.line else len(encoded)
    if not 0 <= place.col < end:
        return raw.strip()
    before = encoded[: place.col].decode(errors="replace").lstrip()
    inside = encoded[place.col : end].decode(errors="replace").rstrip()
    after = encoded[end:].decode(errors="replace").rstrip()
    return before + style.paint(inside, "cyan") + after

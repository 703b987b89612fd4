"""Positions in user code, as the views write them: line, short file name.

Input: rows of a `Run`. Output: `Place`s and short texts. Frames of torch are skipped.
"""

from __future__ import annotations

from functools import cached_property, lru_cache

from clew.analysis.file_names import bare_name, file_names
from clew.events.columns import Place
from clew.plain_text import plain
from clew.run.run import Run, source_lines


class CodePlaces:
    """Lines of user code that the events of one trace came from."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._places = run.columns.places
        self._place: list[int] = run.columns.place.tolist()
        self._parent: list[int] = run.parent_row.tolist()
        self._sources = run.columns.sources
        self._lines: dict[str, list[str]] = {}
        self._between: dict[tuple[int, int], list[int]] = {}

    def frames(self, row: int) -> list[int]:
        """Return user frames between an event and the module call it ran in, outermost first."""
        above = self._parent[row]
        ends = self._place[row], self._place[above] if above >= 0 else -1
        frames = self._between.get(ends)
        if frames is None:
            frames = self._between[ends] = self._walk(*ends)
        return frames

    def _walk(self, place: int, stop: int) -> list[int]:
        found = []
        while place >= 0 and place != stop:
            frame = self._places[place]
            if frame.line > 0 and not frame.library:
                found.append(place)
            place = frame.parent
        return found[::-1]

    def raw_line(self, place: Place) -> str:
        """Return the source line of a place as in its file, empty if it was not recorded."""
        lines = self._lines.get(place.file)
        if lines is None:
            lines = self._lines[place.file] = source_lines(self._sources.get(place.file, ""))
        return lines[place.line - 1] if 0 < place.line <= len(lines) else ""

    def file(self, file: str) -> str:
        """Return a short file name: from its package on, or as much of the path as is unique."""
        return self._names[file]

    @cached_property
    def _names(self) -> dict[str, str]:
        return {file: plain(name) for file, name in file_names(self._run).items()}


def short_place(place: Place, last: Place | None = None) -> str:
    """Write `model.py:12`, or `model.py:12–15` for several lines."""
    if last is None or last.file != place.file:
        last = place
    first, end = sorted((place.line, last.line))
    text = short_place_of(place.file, first)
    return text if first == end else f"{text}–{end}"


@lru_cache(maxsize=4096)
def short_place_of(file: str, line: int) -> str:
    """Write `model.py:12`."""
    return plain(f"{bare_name(file)}:{line}")

"""`Diff.html`: two runs side by side and a viewer for them in one file that needs no network.

Input: a `Diff`. Output: an HTML page. It holds the tables of both runs as a report does, for the
events in its rows, and what `analysis.diff.aligned` says of each row.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from clew.analysis.diff.aligned import STATES, Aligned, align
from clew.analysis.diff.divergence import Diff
from clew.errors import ClewError
from clew.events.columns import OUT, Ints
from clew.run.event import Event
from clew.run.lookup import find
from clew.store.write.place import place_file
from clew.views.file_kinds import KINDS
from clew.views.html.diff_rows import call_order, different_settings, left_out_inside, shown_rows
from clew.views.html.page_frame import page_text
from clew.views.html.page_tables import PageTables
from clew.views.html.payload import Packer
from clew.views.html.previews import Previews
from clew.views.html.report import Report, environment_facts

if TYPE_CHECKING:
    from clew.analysis.diff.compared import Compared


def write_diff_page(
    diff: Diff,
    path: str | os.PathLike[str],
    *,
    title: str | None,
    rows: int,
    redact: bool,
    exist: str,
) -> Report:
    """Write the page to a path or URL, in one go."""
    if rows < 1:
        raise ClewError(f"rows={rows}: a page holds at least one row")
    if diff.compared is None:
        raise ClewError("this comparison does not have its runs any more; make it with clew.diff")
    page = _DiffPage(diff, diff.compared, rows, redact)

    def write(target: Path) -> int:
        data = page.text(title or page.name).encode("utf-8", "backslashreplace")
        target.write_bytes(data)
        return len(data)

    place, size = place_file(path, exist, KINDS["html"], write)
    return Report(place, page.events, size, tuple(page.left_out))


class _DiffPage:
    """The data of one page."""

    def __init__(self, diff: Diff, compared: Compared, most: int, redact: bool) -> None:
        self._diff = diff
        self._compared = compared
        self._redact = redact
        self._aligned = align(compared, diff.first)
        first = diff.first
        wanted = [] if first is None else [first.a, first.b]
        self._shown = shown_rows(self._aligned, most, _rows_with(self._aligned, wanted))
        self._runs = compared.a.graph.run, compared.b.graph.run
        self._previews = Previews(), Previews()
        self._tables = self._table(0, self._aligned.a), self._table(1, self._aligned.b)
        self.left_out = self._left_out()

    @property
    def name(self) -> str:
        """Return the names of both runs, or a plain title if they have none."""
        names = [str(run.environment.get("name") or "") for run in self._runs]
        return " and ".join(names) if all(names) else "two runs"

    @property
    def events(self) -> int:
        """Return how many events of both runs the page holds."""
        events = (self._aligned.a, self._aligned.b)
        return sum(int((column[self._shown] >= 0).sum()) for column in events)

    def _table(self, side: int, column: Ints) -> PageTables:
        run = self._runs[side]
        events = column[self._shown]
        kept = np.unique(events[events >= 0])
        nothing = np.zeros(len(run), dtype=np.int64)
        first = self._diff.first
        here = None if first is None else (first.a, first.b)[side]
        values = [] if here is None else run.direct_values(here.row)
        wanted = [number for _, number in sorted(values, key=lambda one: one[0].role != OUT)]
        return PageTables(run, kept, nothing, self._previews[side], self._redact, wanted)

    def text(self, title: str) -> str:
        """Return the whole page."""
        main, values = Packer(), Packer()
        traces = []
        for side, tables in enumerate(self._tables):
            traces.append({**tables.pack(main, f"{side}."), **self._trace_facts(side)})
            self._previews[side].pack(values, f"{side}.")
        self._pack_rows(main)
        self._pack_values(main)
        head = {"format": 1, "traces": traces, "diff": self._head(title)}
        return page_text(title, main.text(head), values.text({}), "diff")

    def _trace_facts(self, side: int) -> dict[str, object]:
        return {
            "name": "ab"[side],
            "environment": environment_facts(self._runs[side], self._redact),
            "redacted": self._redact,
            "findings": [],
            "all_clear": [],
            "origins": [],
            "gaps": {"total": 0, "first": []},
            "left_out": [],
        }

    def _pack_rows(self, packer: Packer) -> None:
        rows, shown = self._aligned, self._shown
        place = np.full(len(rows) + 1, -1, dtype=np.int64)
        place[shown] = np.arange(len(shown))
        for name, column, tables in (
            ("a", rows.a, self._tables[0]),
            ("b", rows.b, self._tables[1]),
        ):
            events = column[shown]
            packer.add(f"row.{name}", [tables.row_of(e) + 1 if e >= 0 else 0 for e in events])
        packer.add("row.parent", place[rows.parent[shown]] + 1)
        packer.add("row.state", rows.state[shown])
        packer.add("row.harm", rows.harm[shown])
        packer.add("row.error", rows.error[shown].astype(np.float32))
        packer.add("row.beyond", rows.beyond[shown])
        packer.add("row.count", [rows.folds.get(row, 0) for row in shown.tolist()])
        packer.add("row.more", left_out_inside(rows, shown))

    def _pack_values(self, packer: Packer) -> None:
        """Add for each value of `b` its partner in `a` and how far it is from it."""
        numbers_a, numbers_b = (tables.numbers for tables in self._tables)
        half = self._compared.b
        partner = half.partner[numbers_b] if len(numbers_b) else numbers_b
        there = find(numbers_a, partner) if len(numbers_a) else np.full(len(partner), -1)
        far = half.far[numbers_b] if len(numbers_b) else np.zeros(0)
        packer.add("value.partner", np.where(partner >= 0, there, -1) + 1)
        packer.add("value.far", far.astype(np.float32))
        agrees = half.right & ~(half.far > half.noise)
        packer.add("value.agrees", agrees[numbers_b] if len(numbers_b) else numbers_b)

    def _head(self, title: str) -> dict[str, object]:
        diff, rows = self._diff, self._aligned
        first = diff.first
        calls, left_out = call_order(rows, self._runs[1])
        place = {row: at for at, row in enumerate(self._shown.tolist())}
        return {
            "title": title,
            "equal": diff.equal,
            "headline": diff.text(rows=1).splitlines()[0],
            "evidence": [] if first is None else list(first.evidence),
            "suspects": [] if first is None else list(first.suspects),
            "notes": list(diff.notes),
            "matched": diff.matched.to_dict(),
            "noise": diff.noise,
            "states": STATES,
            "counts": _counts(rows),
            "first": {
                "kind": "" if first is None else first.kind,
                "row": place.get(rows.first, -1),
                "a": self._event(0, None if first is None else first.a),
                "b": self._event(1, None if first is None else first.b),
            },
            "texts": {str(place[row]): both for row, both in rows.texts.items() if row in place},
            "calls": [place[row] for row in calls if row in place],
            "calls_left_out": left_out,
            "settings": self._settings(place),
            "left_out": self.left_out,
        }

    def _event(self, side: int, event: Event | None) -> int:
        return -1 if event is None else self._tables[side].row_of(event.row)

    def _settings(self, place: Mapping[int, int]) -> dict[str, list[list[str]]]:
        found = {} if self._redact else different_settings(self._aligned, *self._runs)
        return {str(place[row]): one for row, one in found.items() if row in place}

    def _left_out(self) -> list[str]:
        total, shown = len(self._aligned), len(self._shown)
        found = []
        if shown < total:
            found.append(
                f"{total - shown:,} of {total:,} rows, first those that match and are far from "
                f"where the runs part; html(path, rows={total}) takes all"
            )
        pictures = sum(previews.left_out for previews in self._previews)
        if pictures:
            found.append(f"pictures of {pictures:,} kept values, more than a page holds")
        return found


def _rows_with(rows: Aligned, events: list[Event | None]) -> list[int]:
    """Return the rows of an event of `a` and of one of `b`."""
    found: list[int] = []
    for column, event in zip((rows.a, rows.b), events, strict=False):
        if event is not None:
            found += np.flatnonzero(column == event.row).tolist()
    return found


def _counts(rows: Aligned) -> dict[str, tuple[int, int]]:
    """Count the ops, and the calls without ops, by their state, and how many of them do harm."""
    leaf = np.ones(len(rows), dtype=bool)
    leaf[rows.parent[rows.parent >= 0]] = False
    found = {}
    for code, name in enumerate(STATES):
        mine = leaf & (rows.state == code)
        found[name] = int(mine.sum()), int((mine & (rows.harm > 0)).sum())
    return found

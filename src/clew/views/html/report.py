"""`Trace.html`: a trace and its viewer in one file that needs no network and no server.

Input: a run. Output: an HTML page with the built viewer (`assets/`, from `viewer/`), the payload,
and a policy that forbids the page to load anything. A page may hold several traces, each with
separate tables, to show them side by side.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from clew.analysis.findings import all_clear, list_findings
from clew.analysis.nonfinite import NonFiniteSearch
from clew.analysis.parameters import Parameters
from clew.analysis.tree.tree_build import wall_seconds
from clew.errors import ClewError
from clew.events.columns import Ints
from clew.events.vocabulary import COMPOSITE
from clew.plain_text import plain_lines
from clew.run.run import Run
from clew.store.write.place import place_file
from clew.views.file_kinds import KINDS
from clew.views.html import EVENTS, page_findings
from clew.views.html.page_frame import page_text
from clew.views.html.page_gradients import pack_gradients
from clew.views.html.page_graph import PageGraph
from clew.views.html.page_layers import pack_layers
from clew.views.html.page_memory import pack_memory
from clew.views.html.page_outline import page_outline
from clew.views.html.page_tables import PageTables
from clew.views.html.payload import Packer
from clew.views.html.previews import Previews
from clew.views.text.style import time_text
from clew.views.text.tree import run_facts

# Statistics of more values than this are unpacked after the page has opened.
_MOST_AT_ONCE = 100_000

_PRIVATE = ("name", "argv", "cwd", "host", "user", "platform")


@dataclass(frozen=True, slots=True)
class Side:
    """One trace of a report, and its name."""

    run: Run
    name: str


@dataclass(frozen=True, slots=True)
class Report:
    """A finished report; `left_out` lists what did not fit."""

    path: Path | str
    events: int
    size: int
    left_out: tuple[str, ...] = field(default=())

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        text = f"{self.path}: {self.events:,} events, {self.size / 1e6:.1f} MB"
        return plain_lines("\n".join([text, *(f"left out: {what}" for what in self.left_out)]))

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as plain data."""
        return {
            "path": str(self.path),
            "events": self.events,
            "bytes": self.size,
            "left_out": list(self.left_out),
        }


def write_report(
    side: Side, path: str | os.PathLike[str], *, events: int, redact: bool, exist: str
) -> Report:
    """Write the page to a path or URL, in one go."""

    def write(target: Path) -> tuple[int, int, list[str]]:
        page, kept, left_out = report_page([side], events=events, redact=redact)
        data = page.encode("utf-8", "backslashreplace")
        target.write_bytes(data)
        return kept, len(data), left_out

    place, (kept, size, left_out) = place_file(path, exist, KINDS["html"], write)
    return Report(place, kept, size, tuple(left_out))


def report_page(
    sides: Sequence[Side], *, events: int = EVENTS, redact: bool = False
) -> tuple[str, int, list[str]]:
    """Return a page of one or more traces as text, its number of events, and what was left out."""
    if events < 1:
        raise ClewError(f"events={events}: a report holds at least one event")
    main, later, values = Packer(), Packer(), Packer()
    heads, count, left_out = [], 0, []
    for number, side in enumerate(sides):
        head, kept, lost = _trace(side, (main, later, values), f"{number}.", events, redact)
        heads.append(head)
        count += kept
        left_out += lost
    data = main.text({"format": 1, "traces": heads, "later": len(later) > 0})
    page = page_text(sides[0].name, data, values.text({}), later=later.text({}) if later else "")
    return page, count, left_out


def _trace(
    side: Side,
    packers: tuple[Packer, Packer, Packer],
    prefix: str,
    events: int,
    redact: bool,
) -> tuple[dict[str, object], int, list[str]]:
    """Pack the columns of one trace; return its head, its number of events, what was left out.

    The packers are for what is shown first, for statistics of many values, and for pictures.
    """
    run, (main, later, values) = side.run, packers
    if not len(run):
        raise ClewError("nothing was recorded, so there is nothing to look at; see t.coverage")
    search = NonFiniteSearch(run)
    found = list_findings(search)
    rows = page_findings.kept_rows(run, events, found)
    previews = Previews()
    outline = page_outline(run)
    tables = PageTables(run, rows, search.marks(), previews, redact, outline=outline)
    left_out = _left_out(run, rows, previews, events)
    parameters = Parameters(run.columns.modules, run.columns.parameters)
    head = {
        **tables.pack(main, prefix, later if tables.described > _MOST_AT_ONCE else main),
        "name": side.name,
        "summary": [*run_facts(run, parameters.total), f"{time_text(wall_seconds(run))} wall"],
        "environment": environment_facts(run, redact),
        "redacted": redact,
        "findings": page_findings.finding_list(found, tables.row_of),
        "start": page_findings.start_row(run, found, tables.row_of),
        "all_clear": all_clear(run, found),
        "origins": page_findings.origin_list(search.found, tables.row_of),
        "gaps": page_findings.gaps(run.coverage),
        "left_out": left_out,
        "graph": PageGraph(run, tables.new_row).pack(main, prefix),
        "layers": pack_layers(run, tables.new_row, main, prefix),
        "memory": pack_memory(run, tables.new_row, main, prefix),
        "gradients": pack_gradients(run, tables.new_row, main, prefix),
    }
    previews.pack(values, prefix)
    return head, len(rows), left_out


def _left_out(run: Run, rows: Ints, previews: Previews, events: int) -> list[str]:
    shown = run.columns.kind != COMPOSITE
    total, kept = int(shown.sum()), len(rows)
    found = []
    if kept < total:
        shown[rows] = False
        steps = np.unique(run.step[shown]).tolist()
        between = f" of steps {steps[0]} to {steps[-1]}" if len(steps) > 1 else ""
        found.append(
            f"{total - kept:,} of {total:,} events{between}, more than events={events:,}; "
            f"t.html(path, events={total}) or `clew html --events {total}` takes all"
        )
    if previews.left_out:
        found.append(
            f"pictures of {previews.left_out:,} kept values, more than a report holds; "
            "t[address].value has the data"
        )
    return found


def environment_facts(run: Run, redact: bool) -> dict[str, object]:
    """Return what a page says of the machine and the program; without private facts if redacted."""
    facts = {k: v for k, v in run.environment.items() if k not in ("clock", "crash", "crash_facts")}
    return {k: v for k, v in facts.items() if not (redact and k in _PRIVATE)}

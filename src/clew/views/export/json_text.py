"""JSON: what `Trace.to_dict()` gives, written event by event; `.gz` at the end compresses it."""

from __future__ import annotations

from pathlib import Path

from clew.analysis.findings import findings_of
from clew.run.run import Run
from clew.views.export.formats import Contents
from clew.views.export.text import text_file
from clew.views.strict_json import as_json


def write(run: Run, target: Path) -> Contents:
    """Write all events of all ranks as one JSON object."""
    gaps = [str(gap) for gap in run.coverage]
    found = [finding.to_dict() for finding in findings_of(run)]
    with text_file(target) as file:
        file.write(f'{{"environment": {as_json(dict(run.environment))},\n')
        file.write(f' "findings": {as_json(found)},\n')
        file.write(f' "coverage": {as_json(gaps)},\n "events": [')
        for row in range(len(run)):
            file.write(",\n" if row else "\n")
            file.write(as_json(run.event(row).to_dict()))
        file.write("\n]}\n")
    return Contents(len(run), "event")

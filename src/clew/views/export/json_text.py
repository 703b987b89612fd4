"""JSON: what `Trace.to_dict()` gives, written event by event; `.gz` at the end compresses it."""

from __future__ import annotations

from pathlib import Path

from clew.store.reader import Reader
from clew.views.export.formats import Contents
from clew.views.export.text import as_json, text_file


def write(readers: list[Reader], target: Path) -> Contents:
    """Write all events of all ranks as one JSON object."""
    gaps = [str(gap) for reader in readers for gap in reader.columns.gaps]
    count = 0
    with text_file(target) as file:
        file.write(f'{{"environment": {as_json(dict(readers[0].columns.environment))},\n')
        file.write(f' "coverage": {as_json(gaps)},\n "events": [')
        for reader in readers:
            for row in range(len(reader)):
                file.write(",\n" if count else "\n")
                file.write(as_json(reader.event(row).to_dict()))
                count += 1
        file.write("\n]}\n")
    return Contents(count, "event")

"""Text files to write to."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import TextIO, cast


def text_file(target: Path) -> TextIO:
    """Open a new UTF-8 file to write to, compressed if its name ends in `.gz`."""
    errors = "backslashreplace"
    if target.suffix == ".gz":
        return cast(TextIO, gzip.open(target, "wt", encoding="utf-8", errors=errors, newline="\n"))
    return open(target, "w", encoding="utf-8", errors=errors, newline="\n")

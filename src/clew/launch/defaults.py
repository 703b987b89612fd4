"""Find the defaults of `clew run`: `[tool.clew]` of the nearest pyproject.toml.

Input: the folder of the program. Output: `RunOptions`. Errors name the file and the key.
"""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path
from typing import Any

from clew.errors import ClewError
from clew.launch.options import RunOptions, options_from_table

_TABLE = re.compile(r"^\s*\[\s*tool\s*\.\s*[\"']?clew\b", re.MULTILINE)


def defaults_for(folder: str | os.PathLike[str]) -> RunOptions:
    """Return the defaults for a program in a folder: those of the nearest file upward."""
    start = Path(folder).absolute()
    for above in (start, *start.parents):
        file = above / "pyproject.toml"
        if file.is_file():
            return _read(file)
    return RunOptions()


def _read(file: Path) -> RunOptions:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as broken:
        raise ClewError(f"cannot read {file}: {broken}") from broken
    # Most files say nothing about Clew, and need no parser.
    if not _TABLE.search(text):
        return RunOptions()
    toml = _parser()
    if toml is None:
        raise ClewError(f"{file} has [tool.clew], which needs Python 3.11, or: pip install tomli")
    try:
        table = toml.loads(text).get("tool", {}).get("clew", {})
    except ValueError as broken:
        raise ClewError(f"cannot read {file}: {broken}") from broken
    return options_from_table(table, str(file))


def _parser() -> Any:
    """Return the module that parses TOML; None if this Python has none."""
    for name in ("tomllib", "tomli"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None

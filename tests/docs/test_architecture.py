"""The map in ARCHITECTURE.md names every file, and no other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "clew"


def test_the_map_names_every_file_once() -> None:
    _, _, the_map = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("## The map")
    listed = re.findall(r"^\| `([^`]+\.py)` \| .{10,} \|$", the_map, re.MULTILINE)
    files = [str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.py")]
    wanted = {file for file in files if not file.endswith("__init__.py")}
    assert len(listed) == len(set(listed))
    assert set(listed) == wanted

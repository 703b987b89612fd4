"""`docs/api.txt` lists every name users can write, and no name that was shipped goes missing.

`api-0.1.txt` has the names, without signatures, that this version ships; it is never written again.
"""

from __future__ import annotations

from difflib import unified_diff
from pathlib import Path

import pytest

from scripts import api

SHIPPED = Path(__file__).with_name("api-0.1.txt")

# A shipped name that was taken away → why, and what to write instead.
GONE: dict[str, str] = {
    "clew graph --engine": "Graphviz reads `clew graph -o g.dot` by itself: `dot -Tsvg g.dot`",
}


@pytest.fixture(scope="module")
def names() -> dict[str, str]:
    return api.api()


def test_the_list_is_what_the_code_has(names: dict[str, str]) -> None:
    listed, present = api.TARGET.read_text(encoding="utf-8"), api.text(names)
    lines = listed.splitlines(), present.splitlines()
    difference = "\n".join(unified_diff(*lines, "docs/api.txt", "the code", n=0, lineterm=""))
    assert listed == present, f"run `make api` and read the difference:\n{difference}"


def test_no_shipped_name_is_gone(names: dict[str, str]) -> None:
    shipped = SHIPPED.read_text(encoding="utf-8").splitlines()
    missing = [name for name in shipped if name not in names and name not in GONE]
    assert not missing, f"bring these names back, or say in GONE why they went: {missing}"


def test_what_is_said_to_be_gone_was_shipped_and_is_gone(names: dict[str, str]) -> None:
    shipped = SHIPPED.read_text(encoding="utf-8").splitlines()
    assert [name for name in GONE if name in names or name not in shipped] == []

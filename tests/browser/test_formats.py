"""The page writes numbers as Python does, and its constants are those of the shared spec."""

from __future__ import annotations

import json
import random
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

from clew import spec
from clew.events.number_text import bytes_text, measured, short_number, time_text
from tests.browser.test_addresses import node
from tests.processes import HANG_GUARD

ROOT = Path(__file__).parents[2]
SPEC = spec.read()


def test_the_page_answers_the_cases_of_the_spec() -> None:
    cases = [(name, *case) for name, cases in SPEC["cases"].items() for case in cases]
    assert node("formats.mjs", [case[:-1] for case in cases]) == [case[-1] for case in cases]


def any_number(chance: random.Random) -> float:
    """A number of any size, or one in the middle between two short ones."""
    if chance.random() < 0.4:
        return chance.choice((-1, 1)) * chance.randrange(1, 80_000) / 2 ** chance.randrange(8)
    while True:
        found: float = struct.unpack("<d", chance.randbytes(8))[0]
        if abs(found) < 1e15:
            return found


def test_the_page_writes_any_number_as_python_does() -> None:
    chance = random.Random(0)
    formats = {"count": short_number, "bytes": bytes_text, "time": time_text}
    asked: list[tuple[Any, ...]] = []
    wanted = []
    for _ in range(4000):
        n = any_number(chance)
        digits = chance.choice((3, 4))
        asked.append(("measured", n, digits))
        wanted.append(measured(n, digits))
        for name, write in formats.items():
            asked.append((name, n))
            wanted.append(write(n))
    answers = node("formats.mjs", asked)
    differ = [(*a, w, b) for a, w, b in zip(asked, wanted, answers, strict=True) if w != b]
    assert differ == []


def test_the_constants_of_the_page_are_made_of_the_spec() -> None:
    made = subprocess.run(
        [str(shutil.which("node")), "spec.mjs", "--check"],
        cwd=ROOT / "viewer",
        capture_output=True,
        text=True,
        timeout=HANG_GUARD,
    )
    assert made.returncode == 0, made.stderr
    text = (ROOT / "viewer" / "src" / "spec.ts").read_text(encoding="utf-8")
    assert f"export const ROLES = {json.dumps(SPEC['roles'], separators=(',', ':'))}" in text

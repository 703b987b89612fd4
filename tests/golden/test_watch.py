"""What a watch prints, compared with the files beside this one."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import pytest

import clew
from clew.events.watch_events import ValueSummary, WatchedCall, WatchEvent
from clew.views.text.style import Style
from clew.views.text.watch import WatchText
from tests.golden import watched

Golden = Callable[[str, str], None]


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """As wide as ever, whatever the terminal."""
    monkeypatch.setenv("COLUMNS", "120")


TIME = re.compile(r"\b\d[\d.]* (?:ns|µs|ms|s|min)\b")
CALLER = re.compile(r" ← .*")


def printed(program: Callable[[], Any], *names: str, **options: Any) -> str:
    stream = io.StringIO()
    try:
        clew.watch(*names, out=stream, **options)(program)()
    except ValueError:
        pass
    lines = [CALLER.sub("", TIME.sub("‹time›", line)) for line in stream.getvalue().splitlines()]
    return "\n".join(line.rstrip() for line in lines)


@pytest.mark.parametrize("program", ["clips", "loop", "values", "crash"])
def test_watch(program: str, golden: Golden) -> None:
    named = {"clips": ["video", "self.cache.last"], "values": ["x"]}.get(program, [])
    golden(f"watch_{program}", printed(getattr(watched, program), *named))


def test_watch_with_lines(golden: Golden) -> None:
    golden("watch_lines", printed(watched.clips, "video", lines=True))


CALL = WatchedCall(0, None, 0, "run", "/a/run.py", 1, ("run.py:9",))
FLOATS = {"count": 64, "min": -1.0, "max": 2.0, "mean": 0.5, "std": 0.9, "nan": 0, "inf": 0}
ON_CPU = ValueSummary("tensor", "Tensor", "float32", (8, 8), "cpu", stats=FLOATS, memory=(1, 0, 0))
ON_CUDA = ValueSummary("tensor", "Tensor", "float16", (8, 8), "cuda:0", grad=True,
               stats={**FLOATS, "nan": 3, "max": 9.0}, memory=(2, 0, 0))  # fmt: skip


def records() -> list[WatchEvent]:
    return [
        WatchEvent("enter", CALL, 1),
        WatchEvent("input", CALL, 1, "x", after=ON_CPU, changes=("new",)),
        WatchEvent("change", CALL, 2, "x", before=ON_CPU, after=ON_CUDA, source="x = x.half()",
                  changes=("dtype", "device", "requires_grad", "NaN", "range")),
        WatchEvent("delete", CALL, 3, "x", before=ON_CUDA),
        WatchEvent("return", CALL, 4, after=ON_CUDA, seconds=0.25),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "style"),
    [("plain", Style()), ("color", Style(color=True)), ("ascii", Style(unicode=False))],
)
def test_records_to_lines(name: str, style: Style, golden: Golden) -> None:
    text = WatchText(style)
    lines = [line for happening in records() for line in text.lines(happening)]
    golden(f"watch_records_{name}", "\n".join(lines))
    if name == "ascii":
        assert all(line.isascii() for line in lines)

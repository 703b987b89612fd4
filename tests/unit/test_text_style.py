"""Short forms, and what a stream can show."""

from __future__ import annotations

import io
import re

import pytest

from clew.events.columns import Meta
from clew.views.text.style import (
    SYMBOLS,
    WIDE,
    Style,
    clipped,
    meta_text,
    short_number,
    style_for,
    time_text,
)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Latin(io.StringIO):
    """A stream that takes only Latin-1."""

    encoding = "latin-1"  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM"):
        monkeypatch.delenv(name, raising=False)


def test_a_pipe_is_plain_and_wide() -> None:
    assert style_for(io.StringIO()) == Style(color=False, unicode=True, width=WIDE, bounded=False)


def test_a_terminal_has_color_and_its_own_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "77")
    assert style_for(Terminal()) == Style(color=True, unicode=True, width=77, bounded=True)


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_color_can_be_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert not style_for(Terminal()).color


def test_an_empty_no_color_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "")
    assert style_for(Terminal()).color


def test_color_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert style_for(io.StringIO()).color
    monkeypatch.setenv("NO_COLOR", "1")
    assert not style_for(io.StringIO()).color
    assert style_for(io.StringIO(), color=True).color


def test_columns_also_tells_a_pipe_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    assert style_for(io.StringIO()) == Style(width=90, bounded=True)


def test_symbols_become_ascii_where_the_stream_takes_no_others() -> None:
    style = style_for(Latin())
    assert not style.unicode
    assert style.finish(SYMBOLS).isascii()
    assert style.finish("├─ h.0 … h.11 ×12 → µs") == "|- h.0 ... h.11 x12 -> us"


def test_paint_only_where_there_is_color() -> None:
    assert Style(color=True).paint("x", "red", "bold") == "\x1b[31;1mx\x1b[0m"
    assert Style().paint("x", "red") == "x"


LONG = "value = layer(hidden, mask=mask)  # model.py:57 in Decoder.forward"


@pytest.mark.parametrize("width", [30, 40, 50])
@pytest.mark.parametrize("color", [False, True])
def test_long_lines_go_on_under_the_same_tree_lines(width: int, color: bool) -> None:
    style = Style(color=color, width=width, bounded=True)
    code, where = LONG.split("  ")
    lines = style.wrapped("│ │ ", f"{style.paint(code, 'cyan')}  {style.paint(where, 'dim')}")
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
    assert len(plain) > 1
    assert max(map(len, plain)) <= width
    assert all(line.startswith("│ │ ") for line in plain)
    assert [line.startswith("│ │     ") for line in plain] == [False] + [True] * (len(plain) - 1)
    assert " ".join(line[4:].strip() for line in plain).split() == LONG.split()
    # No colour runs on into the next line.
    assert all(not color or line.rindex("\x1b[0m") > len(line) - 5 for line in lines)


def test_a_word_longer_than_the_line_is_cut() -> None:
    lines = Style(width=40, bounded=True).wrapped("│ ", "x" * 100)
    assert [len(line) for line in lines] == [40, 40, 2 + 4 + 28]
    # One that ends at the edge comes before it, so that the space between lies past the edge.
    lines = Style(width=40, bounded=True).wrapped("│ ", f"{'y' * 38} {'x' * 100}")
    assert [len(line) for line in lines] == [40, 40, 40, 2 + 4 + 32]


def test_where_nothing_bounds_a_line_it_stays_whole() -> None:
    assert Style(width=40).wrapped("│ ", LONG) == [f"│ {LONG}"]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (999, "999"),
        (999.6, "1.00k"),
        (99_960, "100k"),
        (999_999, "1.00M"),
        (8e12, "8.00T"),
    ],
)
def test_numbers_never_take_more_than_five_characters(number: float, text: str) -> None:
    assert short_number(number) == text
    assert len(text) <= 5


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ns"),
        (9.999e-4, "1.00 ms"),
        (0.09996, "100 ms"),
        (59.5, "59.5 s"),
        (3600, "1:00:00 h"),
    ],
)
def test_times_take_few_characters(seconds: float, text: str) -> None:
    assert time_text(seconds) == text
    assert len(text) <= (7 if seconds < 60 else 10)


def test_clipping_keeps_the_width() -> None:
    assert [clipped("abc", width) for width in (4, 3, 2, 1)] == ["abc", "abc", "a…", "…"]


def _meta(**facts: object) -> Meta:
    plain: dict[str, object] = {
        "dtype": "float32", "shape": (2, 3), "stride": (3, 1), "device": "cpu",
        "layout": "strided", "cls": "Tensor", "placements": None, "local_shape": None,
    }  # fmt: skip
    return Meta(**plain | facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({}, "f32[2,3]"),
        ({"cls": "Parameter"}, "f32[2,3]"),
        ({"shape": ()}, "f32[]"),
        ({"shape": None}, "f32[?]"),
        ({"shape": (2, -1), "layout": "jagged", "cls": "NestedTensor"}, "f32[2,?] jagged"),
        ({"dtype": "float8_e4m3fn"}, "f8e4m3fn[2,3]"),
        ({"layout": "sparse_coo"}, "f32[2,3] sparse_coo"),
        ({"cls": "FakeTensor"}, "f32[2,3] FakeTensor"),
        (
            {"cls": "DTensor", "local_shape": (1, 3), "placements": "(Shard(dim=0),)"},
            "f32[2,3] local [1,3] (Shard(dim=0),)",
        ),
    ],
)
def test_tensors(facts: dict[str, object], text: str) -> None:
    assert meta_text(_meta(**facts)) == text

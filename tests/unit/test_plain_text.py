"""Text that any place can show, and the formats that have marks of their own."""

from __future__ import annotations

import csv
import io
import json
import re
import unicodedata
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.analysis.graph.graph_model import Edge, Graph, Node
from clew.errors import BadTrace, ClewError
from clew.events.columns import Symbol
from clew.plain_text import escape, first_line, plain, plain_code, plain_lines
from clew.views.export.csv_text import cell
from clew.views.graph.view import GraphView
from clew.views.text.style import Style, guarded
from tests.hostile import EVIL, HALF, assert_plain

# Any text, halves of characters too, and often such as marks are made of.
TEXTS = st.text() | st.text("\x1b[31m;<>&\"'#%{}|\\`$=+-@ \n\r\t\u202e\ud800x", max_size=12)
UNSEEN = [EVIL[at] for at in range(len(EVIL)) if not EVIL[at].isprintable()]


@given(TEXTS)
def test_plain_text_is_one_line_of_seen_characters(text: str) -> None:
    shown = plain(text)
    assert_plain(shown, text)
    assert "\n" not in shown
    assert plain(shown) == shown
    seen = [c for c in text if c == plain(c)]
    assert all(unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in seen)
    assert shown == "".join(c if c in seen else escape(c) for c in text)
    assert plain_code(text) == plain(re.sub("[\t\v\f]", " ", text))


@given(TEXTS)
def test_lines_stay_lines(text: str) -> None:
    shown = plain_lines(text)
    assert_plain(shown, text)
    assert shown.count("\n") == text.count("\n")
    assert plain_lines(shown) == shown
    assert first_line(text) == plain_lines(text.partition("\n")[0].removesuffix("\r"))


@pytest.mark.parametrize("character", [*UNSEEN, HALF])
def test_what_is_escaped_is_what_python_writes(character: str) -> None:
    assert escape(character) == ascii(character)[1:-1]
    assert plain(f"fc{character}") == f"fc{escape(character)}"


ORDINARY = (
    "layers.0", "Größe", "中文", "δ × 3 → ½", "🧵", "e\u0301", "a\xa0b", "\u3000", "C:\\new",
    "'\"<&>",
)  # fmt: skip


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_stays(text: str) -> None:
    assert plain(text) == text
    assert plain_lines(f"{text}\n{text}") == f"{text}\n{text}"


@given(TEXTS)
def test_only_own_colours_pass_the_guard(text: str) -> None:
    style = Style(color=True)
    finished = style.finish(f"{style.paint(plain(text) or '-', 'red', 'bold')}\n{text}")
    assert finished.startswith("\x1b[31;1m")
    assert_plain(finished, text, color="\x1b[31mRED" not in text)
    assert_plain(Style().finish(text), text)
    assert "\n" not in style.finish_line(text)


def test_foreign_codes_do_not_pass_the_guard() -> None:
    assert guarded("\x1b[5mx\x1b[38;5;1m\x1b[2J", True) == "\\x1b[5mx\\x1b[38;5;1m\\x1b[2J"
    assert guarded("\x1b[31mx\x1b[0m", True) == "\x1b[31mx\x1b[0m"
    assert guarded("\x1b[31mx\x1b[0m", False) == "\\x1b[31mx\\x1b[0m"


def test_errors_and_symbols_are_plain() -> None:
    assert str(ClewError("a\x1b[5m\nb")) == "a\\x1b[5m\nb"
    assert BadTrace("a\x1b[5m").args == ("a\x1b[5m",)
    assert repr({"dtype": Symbol("f\x1b")}) == "{'dtype': f\\x1b}"


# Marks of formats


def drawn(text: str) -> GraphView:
    """Give a graph in which every text is the same."""
    nodes = (
        Node("e0", "call", text, text, path=text, children=("e1",), count=2),
        Node("e1", "call", text, f"{text}x", path=text, parent="e0", level=1, inputs=(text,),
             outputs=(text,), source=text, error=text),
        Node("e2", "op", text, text, source=text),
        Node("e3", "input", text),
    )  # fmt: skip
    edges = (Edge("e3", "e1", labels=(text, text)), Edge("e1", "e2", "backward", (text,)))
    return GraphView(Graph(text, nodes, edges, part=text))


@given(TEXTS)
def test_svg_is_xml_of_allowed_characters(text: str) -> None:
    svg = drawn(text).svg()
    assert_plain(svg, text)
    assert re.fullmatch("[\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*", svg)
    root = ET.fromstring(svg)
    assert root.attrib["aria-label"].startswith(plain(text))
    titles = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}title")]
    assert not text or any(plain_lines(f"error: {text}") in title for title in titles)
    assert {element.tag.rpartition("}")[2] for element in root.iter()} <= {
        "svg", "style", "g", "rect", "path", "text", "tspan", "title",
    }  # fmt: skip


@pytest.mark.parametrize("netron", [False, True])
@given(text=TEXTS)
def test_dot_is_strings_and_marks_of_its_own(netron: bool, text: str) -> None:
    dot = drawn(text).dot(netron=netron)
    assert_plain(dot, text)
    strings = re.compile(r'"(?:[^"\\]|\\.)*"')
    rest = strings.sub('""', dot)
    assert '"' not in rest.replace('""', "")
    words = set(re.findall(r"\w+", rest))
    assert words <= {
        "digraph", "graph", "node", "edge", "rankdir", "TB", "fontname", "fontsize", "compound",
        "true", "false", "shape", "box", "color", "fontcolor", "label", "subgraph", "labeljust",
        "l", "style", "rounded", "fillcolor", "penwidth", "dashed", "constraint", "record", "9",
        "10", "11", "2", "e0", "e1", "e2", "e3", "cluster_e0",
    }  # fmt: skip
    if not netron:
        said = [s[1:-1].replace('\\"', '"').replace("\\\\", "\\") for s in strings.findall(dot)]
        assert plain_lines(text).replace("\n", "\\n") in said


@given(TEXTS.filter(bool))
def test_mermaid_labels_hold_text_alone(text: str) -> None:
    mermaid = drawn(text).mermaid()
    assert_plain(mermaid, text)
    head, title, end, *lines = mermaid.splitlines()
    assert (head, end) == ("---", "---")
    assert title.startswith('title: "') and "%" not in title  # noqa: PT018
    assert json.loads(title.removeprefix("title: ")).startswith(plain(text))
    for line in lines:
        rest = re.sub(r'"[^"]*"', '""', line)
        assert re.fullmatch(r"[\w ,:#|/()\[\]>.=\-]*(\"\")?[|/()\[\]]* ?\w*", rest), line
        for label in re.findall(r'"([^"]*)"', line):
            bare = re.sub(r"</?b>|<br/>", "", label)
            assert not set(bare) & set("<>&`$\\%")
            assert not re.sub(r"#(?:\d+|quot|lt|gt|amp);", "", bare).count("#")


@given(TEXTS)
def test_no_cell_begins_a_formula(text: str) -> None:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerow(["id", cell(text)])
    assert_plain(file.getvalue(), text)
    shown = next(csv.reader(io.StringIO(file.getvalue(), newline="")))[1]
    assert shown == cell(text)
    assert shown.replace("'", "") == plain_lines(text).replace("'", "")
    try:
        float(plain_lines(text))
    except ValueError:
        # Some spreadsheets divide cells at semicolons and line breaks, quotes or no quotes.
        for piece in re.split("[;\n]", shown):
            assert not re.match(r"[\s\"]*[=+\-@＝＋－＠]", piece)


def test_many_empty_lines_in_a_cell_take_little_time() -> None:
    assert cell("\n" * 200_000 + "=x").endswith("\n'=x")
    assert cell(" " * 200_000 + ";" * 200_000).endswith(";")

"""Text from a trace reaches people and their tools only escaped, whichever way it goes.

Every exit is found by itself: what `docs/api.txt` lists is called, every command is run, every
format written. A new one that gives text raw fails here, one that needs arguments asks for them.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import linecache
import os
import re
import subprocess
import sys
import threading
import traceback
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from inspect import signature
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import clew
from clew.cli.main import COMMANDS, main
from clew.compat import torch_code_tracing, tracy_nn
from clew.views.export.formats import FORMATS
from clew.views.text.style import Style
from tests.hostile import EVIL, HALF, ODD_NAME, assert_plain, hostile

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "tests" / "corpus" / "traces"
# One of each kind of thing a trace may hold.
NAMES = (
    "crash", "workers", "threads", "taps", "unequal_ranks", "nan_op", "nan_weight", "unnamed",
    "compiled",
)  # fmt: skip
# Files of data, which hold what the program said.
OF_DATA = {"hdf5", "parquet", "pt", "zarr"}
OF_JSON = {"chrome", "json", "model_explorer"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Hostile traces on disk."""
    folder = tmp_path_factory.mktemp("hostile")
    return {
        name: Path(hostile(clew.load(CORPUS / f"{name}.clew")).save(folder / f"{name}.clew"))
        for name in NAMES
    }


@pytest.fixture(params=("crash", "workers", "nan_op"))
def folder(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Path:
    return folders[request.param]


def in_memory(name: str) -> clew.Trace:
    """Give a hostile trace as a program has it, where texts need not be of whole characters."""
    return hostile(clew.load(CORPUS / f"{name}.clew"), HALF + EVIL)


def test_the_traces_are_hostile(folders: dict[str, Path]) -> None:
    """Facts stay raw: what is escaped is what is made of them for people."""
    events = [event for path in folders.values() for event in clew.load(path).events]
    for fact in ("name", "module", "address", "thread"):
        assert any("\x1b[5m" in (getattr(event, fact) or "") for event in events), fact
    assert any("\x1b[5m" in event.prefix for event in events)
    assert any("\x1b[5m" in (event.error or "") for event in events)
    sources = [event.source for event in events if event.source is not None]
    for field in ("file", "function", "text"):
        assert any("\x1b[5m" in getattr(source, field) for source in sources), field
    values = [value for event in events for value in event.outputs.values()]
    for fact in ("dtype", "device", "layout", "cls", "name"):
        assert any("\x1b[5m" in (getattr(value, fact) or "") for value in values), fact
    gaps = [gap for path in folders.values() for gap in clew.load(path).coverage]
    assert any("\x1b[5m" in gap.why for gap in gaps)


# What people call


def listed() -> dict[str, dict[str, bool]]:
    """Read what users can write: class -> member -> whether it is called."""
    found: dict[str, dict[str, bool]] = {}
    for line in (ROOT / "docs" / "api.txt").read_text(encoding="utf-8").splitlines():
        member = re.fullmatch(r"([A-Z]\w*)\.(\w+)(\(.*\))?", line)
        if member:
            found.setdefault(member[1], {})[member[2]] = member[3] is not None
    return found


MEMBERS = listed()
# Facts that are words: what is made of others for people to read.
WORDS = {
    "Value.look", "Finding.text", "NonFiniteOrigin.hint", "NonFiniteOrigin.what",
    "GraphView.source", "Crash.note", "GraphView.part",
}  # fmt: skip
# Methods that give data as the program had it, write data, or run a recording.
RAW = {
    "start", "stop", "step", "flush",
    "to_dict", "columns", "array", "tensor", "item", "stack", "by_rank", "by_step", "to_pandas",
    "save", "export", "html", "render", "png",
}  # fmt: skip
STYLES = (Style(), Style(color=True), Style(width=40, bounded=True), Style(unicode=False))


def calls(kind: str, member: str, thing: Any) -> Iterator[Callable[[], Any]]:
    """Give the ways to call a method that needs arguments."""
    if member == "text":
        yield from (lambda style=style: thing.text(style) for style in STYLES)
    elif member == "find":
        yield lambda: thing.find("e")
    elif member == "series":
        yield lambda: thing.series("**")
    elif member == "why_shape":
        events = [event for event in thing.ops if event.outputs]
        for event in events[:3]:
            yield lambda event=event: thing.why_shape(event.address, 0)
        yield lambda: thing.why_shape("**", 0)
    elif member == "at" and kind == "Memory":
        yield lambda: thing.at(0)
    elif member == "by":
        yield from (lambda name=name: thing.by(name) for name in ("kind", "module", "line"))
    elif member == "head":
        yield lambda: thing.head(2)
    elif member == "items_of":
        yield lambda: thing.items_of(thing[0])
    else:
        pytest.fail(f"say in `calls` how {kind}.{member} is called")


MOST = 40


class Crawler:
    """Looks at everything that can be reached from a trace, a few things of each type."""

    def __init__(self) -> None:
        self._left = {"Trace": 2, "Tracer": 1, "TableView": 4}
        self.seen: set[str] = set()

    def look(self, thing: Any, where: str) -> None:
        if isinstance(thing, Exception):
            assert_plain(str(thing), where)
            assert_plain("".join(traceback.format_exception_only(thing)), where)
        kind = type(thing).__name__
        if isinstance(thing, list | tuple | dict):
            for item in list(thing.values() if isinstance(thing, dict) else thing)[:MOST]:
                self.look(item, f"{where}[]")
        if kind not in MEMBERS and kind != "Values":
            return
        if self._left.setdefault(kind, MOST) <= 0:
            return
        self._left[kind] -= 1
        self.seen.add(kind)
        color = kind == "CodeView" and thing._color is True
        assert_plain(str(thing), f"str of {where}", color)
        assert_plain(repr(thing), f"repr of {where}")
        for form, text in getattr(thing, "_repr_mimebundle_", dict)().items():
            # The page in a frame is a file of its own.
            assert_plain(re.sub(r'srcdoc="[^"]*"', "", text), f"{form} of {where}")
        for member, is_method in MEMBERS.get(kind, {}).items():
            self._member(thing, kind, member, is_method, where)

    def _member(self, thing: Any, kind: str, member: str, is_method: bool, at: str) -> None:
        where = f"{at}.{member}"
        if member in RAW:
            return
        if not is_method:
            self._follow(lambda: getattr(thing, member), where, f"{kind}.{member}" in WORDS)
            return
        method = getattr(thing, member)
        parameters = signature(method).parameters.values()
        required = [p for p in parameters if p.default is p.empty and p.kind != p.VAR_KEYWORD]
        for call in calls(kind, member, thing) if required else (method,):
            self._follow(call, where, True)

    def _follow(self, call: Callable[[], Any], where: str, is_words: bool) -> None:
        try:
            found = call()
        except clew.ClewError as error:
            found = error
        if isinstance(found, str):
            if is_words:
                assert_plain(found, where, color=True)
            return
        self.look(found, where)


@pytest.mark.parametrize("name", NAMES)
def test_whatever_is_called_gives_plain_text(name: str, folders: dict[str, Path]) -> None:
    trace = clew.load(folders[name]) if name == "crash" else in_memory(name)
    crawler = Crawler()
    crawler.look(trace.table().head(1000), "t.table()")
    crawler.look(trace, "t")
    crawler.look(list(trace.events), "t.events")
    crawler.look(trace["**"], "t['**']")
    crawler.look(trace.code(color=True), "t.code(color=True)")
    crawler.look(trace.code(succinct=False), "t.code(succinct=False)")
    crawler.look(trace.tree(fold=False), "t.tree(fold=False)")
    crawler.look(trace.graph(ops="all", edges="calls"), "t.graph(ops='all')")
    assert {"Trace", "Event", "Value", "Source", "Selection", "Series", "TreeView", "CodeView",
            "TableView", "GraphView", "Graph", "Node", "Edge"} <= crawler.seen  # fmt: skip


def test_names_make_no_lines_and_keep_to_the_width() -> None:
    """A name with a line break cannot pretend to be a line of its own."""
    style = Style(width=70, bounded=True)
    for name in ("taps", "crash", "threads"):
        odd = in_memory(name)
        short = hostile(clew.load(CORPUS / f"{name}.clew"), "x")
        for view in (
            lambda t: t.tree(fold=False),
            lambda t: t.code(succinct=False),
            lambda t: t.table().head(1000),
        ):
            usual, shown = view(short).text(Style()), view(odd).text(Style())
            assert shown.count("\n") == usual.count("\n")
            assert all(len(line) <= 70 for line in view(odd).text(style).split("\n"))
        assert str(odd.graph(depth=1)).count("\n") == str(short.graph(depth=1)).count("\n")


def test_every_error_quotes_plain_names(folders: dict[str, Path]) -> None:
    trace = clew.load(folders["taps"])
    first = trace.modules[0]
    attempts: list[Callable[[], Any]] = [
        lambda: trace["layr"],
        lambda: trace["layers.0:in.nothing"],
        lambda: trace["**"].one,
        lambda: trace["**"].output,
        lambda: trace["**"].value,
        lambda: trace["op:aten.nothing"],
        lambda: trace["model.py:run.x"],
        lambda: trace[f"{first.module}#7"],
        lambda: trace.find("no such thing"),
        lambda: trace.series("**", mode="eval"),
        lambda: trace.only(phase=EVIL),
        lambda: trace[EVIL],
        lambda: trace.export(EVIL, "x"),
        lambda: trace.graph(prune=EVIL, theme=EVIL),
        lambda: clew.load(f"nowhere{ODD_NAME}"),
        lambda: first.outputs["nothing"],
    ]
    for number, attempt in enumerate(attempts):
        with pytest.raises((clew.ClewError, KeyError)) as caught:
            attempt()
        # The caret of a syntax error stands under the character, which is one place wide.
        assert_plain(str(caught.value), number)


# What commands print


def command_lines(folder: Path, out: Path) -> dict[str, list[list[str]]]:
    """Give ways to run each command, also such that fail."""
    trace = str(folder)
    return {
        "info": [[trace], [trace, "--rows", "500"], [f"{out}/{ODD_NAME}"]],
        "crash": [[trace], [trace, "--rank", "7"], [f"{out}/\x1b[5m"]],
        "health": [[trace], [trace, "--set", "vanishing=0.5"], [trace, "--set", "x\x1b[5m=1"],
                   [trace, "--set", "\x1b[5m"]],
        "why-shape": [[trace, "**", "--dim", "0"], [trace, "op:*#0", "--dim", "0"],
                      [trace, "layr\x1b[5m", "--dim", "1"], [trace, "**", "--dim", "\x1b[5m"]],
        "diff": [[trace, trace], [trace, f"{out}/\x1b[5m"], [trace, trace, "--map", "\x1b[5m"]],
        "ranks": [[trace], [trace, "--rows", "99"], [f"{out}/\x1b[5m"],
                  [trace, "--tol", "\x1b[5m"]],
        "mem": [[trace], [trace, "--rows", "99"], [trace, "--by", "line"],
                [trace, "--by", "\x1b[5m"]],
        "show": [[trace], [trace, "--no-fold"], [trace, "--depth", "9"], [trace, "--rank", "7"]],
        "code": [[trace], [trace, "--all"], [trace, "layr"], [trace, "op:*", "--rows", "30"]],
        "value": [[trace, "**"], [trace, "op:*", "--rows", "3"], [trace, "layr#\x1b[5m"]],
        "graph": [[trace], [trace, "layr"], [trace, "-o", f"{out}/g\x1b[5m.svg"],
                  [trace, "-o", f"{out}/g\x1b[5m.nothing"]],
        "html": [[trace, "-o", f"{out}/\x1b[5m.html"]],
        "export": [[trace, "csv", f"{out}/\x1b[5m.csv"], [trace, "hdf5", f"{out}/x.h5"],
                   [trace, "hdf5", f"{out}/y.h5", "--address", "layr\x1b[5m"],
                   [trace, "csv\x1b[5m", f"{out}/z.csv"]],
        "recover": [[trace], [f"{out}/\x1b[5m"]],
        # Below a file there can be no folder: nothing is compiled.
        "build": [["--help"], ["--to", f"{trace}/manifest.json/\x1b[5m"]],
        "doctor": [[], ["\x1b[5m"], [trace]],
        "run": [["--help"], [f"{out}/\x1b[5m.py"], ["--level", "\x1b[5m"]],
        "determinism": [["--help"], [f"{out}/\x1b[5m.py"], ["--out"]],
        "env": [[], ["\x1b[5m"]],
    }  # fmt: skip


@pytest.mark.parametrize("color", [False, True])
def test_every_command_prints_plain_text(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], color: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("FORCE_COLOR" if color else "NO_COLOR", "1")
    lines = command_lines(folder, tmp_path)
    assert set(lines) == set(COMMANDS), "say in `command_lines` how each command is run"
    for command, several in lines.items():
        for arguments in several:
            with contextlib.suppress(SystemExit):
                main([command, *arguments])
            printed, complained = capsys.readouterr()
            assert printed or complained
            assert_plain(printed, [command, *arguments], color)
            assert_plain(complained, [command, *arguments])
            assert "Traceback" not in complained


@pytest.mark.parametrize("command", COMMANDS)
def test_a_pipe_gets_plain_text(command: str, folders: dict[str, Path], tmp_path: Path) -> None:
    arguments = command_lines(folders["crash"], tmp_path)[command][0]
    done = subprocess.run(
        [sys.executable, "-m", "clew", command, *arguments],
        capture_output=True,
        env={**os.environ, "PYTHONUTF8": "1"},
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    assert_plain(done.stdout.decode("utf-8"), command)
    assert_plain(done.stderr.decode("utf-8"), command)


def test_json_holds_what_the_program_said(
    folders: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["info"], ["show"], ["code"], ["graph"]):
        assert main([command[0], str(folders["crash"]), *command[1:], "--json"]) == 0
        printed = capsys.readouterr().out
        assert printed.isascii()
        assert "\x1b[5m" in "".join(_texts(json.loads(printed)))
    trace = clew.load(folders["crash"])
    assert "\x1b[5m" in "".join(_texts(trace.to_dict()))
    assert "\x1b[5m" in "".join(_texts(trace.table().columns()))


def _texts(data: Any) -> list[str]:
    if isinstance(data, str):
        return [data]
    items = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return [text for item in items for text in _texts(item)]


def test_a_list_of_calls_is_drawn_plain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "calls.txt"
    path.write_text(f"net\nnet.a\x1b[5m\u202e\nnet.{EVIL}\n", encoding="utf-8")
    assert main(["graph", str(path)]) == 0
    assert_plain(capsys.readouterr().out, "clew graph calls.txt")
    assert main(["graph", str(path), "-o", str(tmp_path / "g.svg")]) == 0
    assert_svg((tmp_path / "g.svg").read_text(encoding="utf-8"))


# What files hold


def assert_svg(text: str) -> None:
    """Check that a picture is XML, so holds no character that XML forbids."""
    assert_plain(text, "svg")
    said = "".join(ET.fromstring(text).itertext())
    assert "\\x1b[5m" in said
    assert "<b>" in said


@pytest.mark.parametrize("fmt", FORMATS)
def test_every_format_of_text_is_plain(fmt: str, folders: dict[str, Path], tmp_path: Path) -> None:
    if fmt in OF_DATA:
        pytest.skip("holds what the program said, for programs")
    for name in ("crash", "workers"):
        for trace in (clew.load(folders[name]), in_memory(name)):
            path = tmp_path / f"{name}.{fmt}"
            path.unlink(missing_ok=True)
            trace.export(fmt, path)
            text = path.read_text(encoding="utf-8")
            assert_plain(text, fmt)
            if fmt in OF_JSON:
                assert "\x1b[5m" in "".join(_texts(json.loads(text)))


def test_every_picture_is_plain(folders: dict[str, Path], tmp_path: Path) -> None:
    for trace in (clew.load(folders["crash"]), in_memory("crash")):
        for direction in ("down", "right"):
            view = trace.graph(direction=direction, edges="data", backward=True)
            assert_svg(view.svg())
            for text in (view.dot(), view.dot(netron=True), view.mermaid()):
                assert_plain(text, "graph")
                assert "x1b[5m" in text
            assert_plain(view.mermaid(tmp_path / "g.mmd"), "mermaid")
    pytest.importorskip("resvg_py")
    assert trace.graph().png(tmp_path / "g.png").stat().st_size > 1000


def test_the_page_has_a_plain_title(folders: dict[str, Path], tmp_path: Path) -> None:
    trace = clew.load(folders["crash"])
    path = tmp_path / "page.html"
    trace.html(path, title=f"page{EVIL}")
    head = path.read_text(encoding="utf-8").partition("<style>")[0]
    assert_plain(head, "page")
    assert "\\x1b[5m" in head
    assert "&lt;b&gt;" in head


def test_no_cell_of_a_table_runs(tmp_path: Path) -> None:
    """A text that begins as a formula does stands behind a quote, numbers as they are."""
    honest = clew.load(CORPUS / "crash.clew")
    trace = clew.load(CORPUS / "crash.clew")
    columns = trace._current_run().parts[0][0]
    for table in (columns.ops, columns.errors):
        signs = cycle("=+-@\t\r\n＝")
        table[:] = [f"{next(signs)}{text};\t@{text}" for text in table]
    trace.export("csv", tmp_path / "x.csv")
    honest.export("csv", tmp_path / "honest.csv")
    with open(tmp_path / "x.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    names = {row["name"] for row in rows if row["kind"] == "op"}
    assert {name[:2] for name in names} >= {"'=", "'+", "'-", "'@", "\\t", "\\r", "'＝"}
    assert all(";\\t@" in name or ";'@" in name for name in names)
    for row in rows:
        for text in row.values():
            is_number = re.fullmatch(r"-?[\d.]+(e-?\d+)?|-?inf|nan|", text)
            assert is_number or not re.match(r"\s*[=+\-@＝]", text, re.MULTILINE), text
    with open(tmp_path / "honest.csv", encoding="utf-8", newline="") as file:
        kept = list(csv.DictReader(file))
    table = honest.table().columns()
    for name in ("start", "duration", "min", "max", "nan"):
        assert [row[name] for row in kept] == [
            "" if number is None else str(number) for number in table[name]
        ]
    assert any(float(row["min"]) < 0 for row in kept if row["min"])
    assert [row["name"] for row in kept] == table["name"]


# What is printed as a program runs


class Odd(nn.Module):
    """A module of odd names; what it raises is odd as well."""

    def __init__(self) -> None:
        super().__init__()
        self.add_module(EVIL, nn.Linear(2, 2))

    def forward(self, x: Tensor, word: str) -> Tensor:
        clew.tap(EVIL, x)
        for child in self.children():
            x = child(x)
        if word:
            raise ValueError(EVIL)
        return x


Odd.__qualname__ = Odd.__name__ = f"Odd{ODD_NAME}"


def run_on_a_thread(model: nn.Module, word: str) -> None:
    def body() -> None:
        with contextlib.suppress(ValueError):
            model(torch.ones(1, 2), word)

    thread = threading.Thread(target=body, name=f"thread{EVIL}")
    thread.start()
    thread.join()


def test_the_live_log_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    model = Odd()
    with clew.trace(model, live=True) as t:
        model(torch.ones(1, 2), "")
        run_on_a_thread(model, EVIL)
    printed = capsys.readouterr().out
    assert_plain(printed, "the live log")
    assert "\\x1b[5m" in printed
    assert "ValueError" in printed
    Crawler().look(t, "t")


def test_older_tools_print_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    model = Odd()
    with contextlib.suppress(ValueError), tracy_nn.Tracer(EVIL).trace(model):
        model(torch.ones(1, 2), EVIL)
    with contextlib.suppress(ValueError), torch_code_tracing.TracingMode():
        model(torch.ones(1, 2), EVIL)
    printed = capsys.readouterr().out
    assert "addmm" in printed
    assert_plain(printed.replace("\t", ""), "older tools")


SOURCE = f"""
def watched(x, thing):
    y = x * 2  \t# \x0c {EVIL.replace(chr(10), "").replace(chr(13), "").replace(chr(0), "")}
    other = [thing, {EVIL!r}]
    z = y.reshape(-1)
    raise ValueError({EVIL!r})
"""


class Thing:
    """Describes itself badly."""

    def __repr__(self) -> str:
        return EVIL


def test_a_watch_prints_plain_text(tmp_path: Path) -> None:
    # A file system takes no such name; a program that compiles text may say any.
    scope: dict[str, Any] = {}
    name = f"{tmp_path}/odd{ODD_NAME}.py"
    exec(compile(SOURCE, name, "exec"), scope)
    linecache.cache[name] = (len(SOURCE), None, SOURCE.splitlines(True), name)
    for color in (False, True):
        stream = io.StringIO()
        stream.isatty = lambda color=color: color  # type: ignore[method-assign]
        watched = clew.watch("y", "other", "z", "thing", out=stream, lines=True)(scope["watched"])
        with contextlib.suppress(ValueError):
            watched(torch.ones(2), Thing())
        assert "ValueError" in stream.getvalue()
        assert_plain(stream.getvalue(), "a watch", color)


def test_lines_are_those_that_python_counts() -> None:
    """A form feed or a separator inside a line begins no line of its own."""
    trace = clew.load(CORPUS / "crash.clew")
    columns = trace._current_run().parts[0][0]
    source = next(event.source for event in trace.ops if event.source is not None)
    assert source.text
    text = columns.sources[source.file]
    columns.sources[source.file] = "# \x0c \x85 \u2028 \x1c" + text[text.index("\n") :]
    changed = clew.load(CORPUS / "crash.clew")
    changed._current_run().parts[0][0].sources.update(columns.sources)
    again = next(event.source for event in changed.ops if event.source is not None)
    assert again.text == source.text
    assert source.text in str(changed.code())

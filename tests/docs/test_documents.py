"""The documents stay true: their examples run and print what is shown, their links and `make`
targets exist.

The ```python blocks of a document are run in order as one program. A ```text block that follows
one directly is what it prints; times, which differ from run to run, are compared as `‹time›`.
Commands in a ```sh block are run where a ```text block follows, after those before them; the
program they name is the ```python block that begins with its name.
`CLEW_UPDATE_DOCS=1 make docs` writes what is printed into the documents: read the difference.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import linecache
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import clew

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
# Programs of several ranks are ```py blocks: not run alone, only by the commands that name them.
WITH_COMMANDS = [
    ROOT / "docs" / name for name in ("numbers-in-ci.md", "ranks-disagree.md", "running.md")
]
MODULES = ["clew", *(m.name for m in pkgutil.walk_packages(clew.__path__, "clew."))]

BLOCK = re.compile(
    r"^```(?P<language>\w+)\n(?P<code>.*?)^```\n(?:\n*^```text\n(?P<shown>.*?)^```$)?", re.M | re.S
)
TIME = re.compile(r"\b\d[\d.]* (?:ns|µs|ms|s|min)\b")
# Of files, which differ by a few bytes from run to run.
SIZE = re.compile(r"\b\d[\d.]* (?:B|KiB|MiB)\)")


def document_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    outcome = doctest.testmod(importlib.import_module(name), optionflags=options)
    assert outcome.failed == 0


@pytest.mark.parametrize("document", DOCUMENTS, ids=document_name)
def test_examples_run_and_print_what_is_shown(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    text = document.read_text()
    examples = [match for match in BLOCK.finditer(text) if match["language"] == "python"]
    printed = list(_outputs(document.stem.replace("-", "_").lower() + ".py", examples))
    if os.environ.get("CLEW_UPDATE_DOCS"):
        document.write_text(_with_outputs(text, examples, printed))
        return
    for example, output in zip(examples, printed, strict=True):
        if example["shown"] is not None:
            assert _comparable(output) == _comparable(example["shown"])


@pytest.mark.parametrize("document", WITH_COMMANDS, ids=document_name)
def test_commands_run_and_print_what_is_shown(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = document.read_text()
    blocks = list(BLOCK.finditer(text))
    for block in blocks:
        if block["language"] in ("python", "py") and block["code"].startswith("# "):
            name, _, _ = block["code"][2:].partition("\n")
            Path(name).write_text(block["code"])
    commands = [b for b in blocks if b["language"] == "sh" and b["shown"] is not None]
    printed = [_printed_by(command["code"]) for command in commands]
    if os.environ.get("CLEW_UPDATE_DOCS"):
        document.write_text(_with_outputs(text, commands, printed))
        return
    for command, output in zip(commands, printed, strict=True):
        assert _comparable(output) == _comparable(command["shown"])


def _printed_by(commands: str) -> str:
    """What commands print to both streams, with `clew`, `python`, `pytest` of this environment."""
    shell = """
        python() { "$PYTHON" "$@"; }
        clew() { "$PYTHON" -m clew "$@"; }
        # Alone: other plugins of this environment take a second to load.
        export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
        pytest() { python -m pytest -q -p clew.testing.pytest_plugin "$@"; }
        exec 2>&1
    """
    source = str(Path(clew.__file__).parents[1])
    env = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": source, "NO_COLOR": "1"}
    done = subprocess.run(
        ["bash", "-c", shell + commands], capture_output=True, text=True, env=env, check=False
    )
    return done.stdout.replace(f"{Path.cwd()}{os.sep}", "")


def _outputs(script: str, examples: list[re.Match[str]]) -> Iterator[str]:
    """What each example prints, run in order as one program of that file name."""
    Path(script).write_text("".join(example["code"] for example in examples))
    linecache.checkcache()
    namespace: dict[str, Any] = {"__name__": "__main__"}
    above = 0
    for example in examples:
        printed = io.StringIO()
        # At the lines it has in the file, so that source lines are found.
        code = compile("\n" * above + example["code"], script, "exec")
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
        above += example["code"].count("\n")
        yield printed.getvalue()


def _with_outputs(text: str, examples: list[re.Match[str]], printed: list[str]) -> str:
    """The document with what its examples print put in, from the last to the first."""
    for example, output in reversed(list(zip(examples, printed, strict=True))):
        if example["shown"] is not None:
            shown = "".join(line.rstrip() + "\n" for line in output.strip("\n").splitlines())
            text = text[: example.start("shown")] + shown + text[example.end("shown") :]
    return text


def _comparable(text: str) -> list[str]:
    # Columns are as wide as the times in them.
    text = SIZE.sub("‹size›)", TIME.sub("‹time›", text))
    lines = text.strip("\n").splitlines()
    return [re.sub("  +", "  ", line).rstrip() for line in lines]


@pytest.mark.parametrize("document", DOCUMENTS, ids=document_name)
def test_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", document.read_text())
    local = [link for link in links if "://" not in link and not link.startswith("mailto:")]
    assert [link for link in local if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=document_name)
def test_make_targets_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"(?:`|^)make ([a-z]+)", document.read_text(), re.M))
    assert named - targets == set()

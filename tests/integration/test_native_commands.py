"""`clew build` and `clew doctor`: what they print, where, and their exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

import clew
from clew.cli.main import main
from clew.native import loading, target
from tests.native_sources import needs_compiler, write_sources
from tests.processes import HANG_GUARD


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Small sources, and an empty cache."""
    monkeypatch.setattr(target, "SOURCES", write_sources(tmp_path / "sources"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("CLEW_NATIVE", "CLEW_ENGINE", "CXXFLAGS"):
        monkeypatch.delenv(name, raising=False)
    for once in (loading._load_once, loading._load_tracing_once):
        once.cache_clear()
    yield
    for once in (loading._load_once, loading._load_tracing_once):
        once.cache_clear()


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    loading._load_once.cache_clear()
    code = main(words)
    return code, *capsys.readouterr()


VERSIONS = f"""\
clew       {clew.__version__}
with       python {sys.version.split()[0]}, torch {torch.__version__}, \
numpy {metadata.version("numpy")}, pyarrow {metadata.version("pyarrow")}
"""


@needs_compiler
def test_build_then_doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "build")
    assert code == 0
    key = target.current_target(target.SOURCES).key
    (library,) = (tmp_path / "cache/clew/native" / key).glob("_clew_native.*.so")
    about = f"torch {torch.__version__}, Python {sys.version.split()[0]}, linux "
    assert re.fullmatch(rf"built in \d+ s, for {re.escape(about)}\w+: {library}\n", out)
    steps = err.splitlines()
    assert all(line.startswith("clew build: ") for line in steps)
    assert len(steps) == 5
    code, out, err = run(capsys, "build")
    assert (code, err) == (0, "")
    assert re.fullmatch(rf"already built, for {re.escape(about)}\w+: {library}\n", out)

    assert run(capsys, "doctor") == (
        0,
        f"{VERSIONS}engine     native, from {library}\n"
        "to change  CLEW_ENGINE=python\nprocessor  avx2\n",
        "",
    )
    code, out, _ = run(capsys, "doctor", "--json")
    facts = json.loads(out)
    assert code == 0
    assert (facts["schema"], facts["engine"], facts["state"]) == (1, "native", "loaded")
    assert (facts["library"], facts["processor"]) == (str(library), ["avx2"])


@needs_compiler
def test_build_into_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "an image"
    code, out, _ = run(capsys, "build", "--to", str(folder))
    assert code == 0
    assert out.splitlines()[1] == f"to use it, set CLEW_NATIVE='{folder}'"
    assert run(capsys, "doctor")[0] == 1
    monkeypatch.setenv("CLEW_NATIVE", str(folder))
    assert run(capsys, "doctor")[0] == 0
    code, out, err = run(capsys, "build", "--json")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert (facts["schema"], facts["new"]) == (1, False)
    assert facts["path"].startswith(f"{folder}/")
    assert facts["target"]["torch"] == torch.__version__


def test_doctor_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "cache/clew/native"
    reason = f"it has not been built (there is none in {folder})"
    text = f"engine     python; the native engine is not in use: {reason}\nto change  clew build\n"
    assert run(capsys, "doctor") == (1, VERSIONS + text, "")
    facts = json.loads(run(capsys, "doctor", "--json")[1])
    expected = {
        "engine": "python", "state": "not built", "reason": reason, "change": "clew build",
        "library": None, "processor": None,
    }  # fmt: skip
    assert facts.items() >= expected.items()


def test_doctor_finds_nothing_where_it_is_as_wanted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEW_ENGINE", "python")
    start = "engine     python; the native engine is not in use: "
    text = f"{start}CLEW_ENGINE=python switches it off\nto change  unset CLEW_ENGINE\n"
    assert run(capsys, "doctor") == (0, VERSIONS + text, "")
    monkeypatch.delenv("CLEW_ENGINE")
    monkeypatch.setattr(sys, "platform", "darwin")
    text = f"{start}the native engine is for Linux, and this is darwin\n"
    assert run(capsys, "doctor") == (0, VERSIONS + text, "")
    assert run(capsys, "build") == (
        2,
        "",
        "clew: the native engine is for Linux, and this is darwin: nothing to build. "
        "Clew records without the native engine too, only slower\n",
    )


@needs_compiler
def test_a_failed_build_prints_the_compilers_words(capsys: pytest.CaptureFixture[str]) -> None:
    write_sources(target.SOURCES, answer_cpp='#error "no such \x1b[5mluck"\n')
    code, out, err = run(capsys, "build", "--json")
    assert (code, out) == (2, "")
    lines = err.splitlines()
    assert any("error" in line and "no such" in line for line in lines)
    assert "\x1b" not in err
    assert re.match(r"clew: .* cannot compile answer\.cpp\. Clew records without", lines[-1])


def test_without_a_compiler_one_line_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    code, out, err = run(capsys, "build")
    assert (code, out) == (2, "")
    assert err.startswith("clew: there is no C++ compiler (tried c++, g++, clang++): install one")
    assert err.count("\n") == 1


@needs_compiler
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="watching uses sys.monitoring")
def test_the_library_of_watching_is_built_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = "_clew_tracing"
    module = (target.SOURCES / "module.cpp").read_text().replace("_clew_native", named)
    folder = target.SOURCES / "tracing"
    folder.mkdir()
    (folder / "module.cpp").write_text(module.replace('"answer.h"', '"../answer.h"'))
    (folder / "answer.cpp").write_text('#include "../answer.h"\nint answer() { return 7; }\n')
    root = tmp_path / "cache/clew/native"
    reason = f"it has not been built (there is none in {root})"
    assert f"watch      python, {reason}\n" in run(capsys, "doctor")[1]
    assert run(capsys, "build")[0] == 0
    (library,) = root.glob(f"*/{named}.*.so")
    loading._load_tracing_once.cache_clear()
    assert f"watch      native, from {library}\n" in run(capsys, "doctor")[1]
    found = loading.loaded_tracing()
    assert found.module is not None
    assert found.module.number() == 7
    # Each is built for its own files: an edit of the header concerns both.
    write_sources(target.SOURCES, answer_h="#pragma once\nint  answer();\n")
    loading._load_tracing_once.cache_clear()
    assert loading.loaded_tracing().state == "other target"


@needs_compiler
@pytest.mark.slow
def test_the_real_sources_are_built_and_used(tmp_path: Path) -> None:
    environment = {**os.environ, "CLEW_NATIVE": str(tmp_path / "engine")}

    def clew_command(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "clew", *words],
            capture_output=True,
            text=True,
            env=environment,
            timeout=HANG_GUARD,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert clew_command("build").startswith("built in ")
    assert f"native, from {tmp_path}/engine/" in clew_command("doctor")

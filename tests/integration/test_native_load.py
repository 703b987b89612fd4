"""Loading the native engine: what is loaded, what is not and why, and that nothing raises."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from clew.native import loading, target
from clew.native.building import Built
from clew.native.library import RECORD, write_record
from clew.native.loading import Loaded
from tests.native_sources import build_small, needs_compiler, write_sources
from tests.processes import HANG_GUARD


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The small sources, built once into a cache."""
    return build_small(tmp_path_factory.mktemp("built"))


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CLEW_NATIVE", "CLEW_ENGINE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def library(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library of this test's own, in the user's cache."""
    cache = built.root.parents[1]
    shutil.copytree(cache, tmp_path / "cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(target, "SOURCES", cache.parent / "sources")
    return tmp_path / "cache" / built.path.relative_to(cache)


def load_anew() -> Loaded:
    loading._load_once.cache_clear()
    try:
        return loading.loaded()
    finally:
        loading._load_once.cache_clear()


def assert_not_loaded(state: str, reason: str, remedy: str = "clew build") -> None:
    found = load_anew()
    assert found.module is None
    assert (found.state, found.reason, found.remedy) == (state, reason, remedy)


@needs_compiler
def test_what_was_built_is_loaded_once(library: Path) -> None:
    loading._load_once.cache_clear()
    try:
        module = loading.load()
        assert module is not None
        assert module.number() == 42
        assert loading.load() is module
        assert loading.why_not() == ""
        assert loading.loaded() == Loaded(module, "loaded", library)
    finally:
        loading._load_once.cache_clear()


def test_nothing_was_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "clew" / "native"
    assert_not_loaded("not built", f"it has not been built (there is none in {folder})")
    assert list(tmp_path.iterdir()) == []


def test_the_cache_is_in_the_home_folder_if_nothing_else_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".cache" / "clew" / "native"
    for cache in ("", "not/absolute"):
        monkeypatch.setenv("XDG_CACHE_HOME", cache)
        assert_not_loaded("not built", f"it has not been built (there is none in {folder})")


def test_the_python_engine_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_ENGINE", "python")
    found = loading.wanted()
    assert found.module is None
    said = found.state, found.reason, found.remedy
    assert said == ("disabled", "CLEW_ENGINE=python switches it off", "unset CLEW_ENGINE")


@pytest.mark.parametrize(("system", "said"), [("darwin", "darwin"), ("win32", "win32")])
def test_other_systems_have_the_python_engine(
    monkeypatch: pytest.MonkeyPatch, system: str, said: str
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    assert_not_loaded("unsupported", f"the native engine is for Linux, and this is {said}", "")


@needs_compiler
def test_built_for_another_torch(built: Built, library: Path) -> None:
    folder = library.parent
    older = replace(built.target, torch="2.6.0", torch_git="abc")
    write_record(folder, older, "")
    folder.rename(folder.with_name(older.key))
    now = built.target
    assert_not_loaded(
        "other target",
        f"it was built for torch 2.6.0, not {now.torch}, torch_git abc, not {now.torch_git}",
    )


@needs_compiler
def test_built_by_another_clew(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = write_sources(tmp_path / "changed", alone_cpp="")
    monkeypatch.setattr(target, "SOURCES", changed)
    said = "it was built from the sources of another version of Clew"
    assert_not_loaded("other target", said)
    # Strange folders beside it do not matter.
    for name, text in (("a", "no JSON"), ("b", "[]"), ("c", '{"target": {"torch": 1}}')):
        folder = library.parents[1] / name
        folder.mkdir()
        (folder / RECORD).write_text(text)
    assert_not_loaded("other target", said)


@needs_compiler
@pytest.mark.parametrize("above", range(4))
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_what_others_may_write_is_not_loaded(library: Path, above: int, mode: int) -> None:
    path = [library, *library.parents][above]
    path.chmod(mode)
    reason = f"{path} may be written by other users (its mode is {mode:04o})"
    assert_not_loaded("unsafe", reason, f"chmod go-w {path}")


@needs_compiler
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("above", range(4))
def test_what_belongs_to_another_user_is_not_loaded(library: Path, above: int) -> None:
    path = [library, *library.parents][above]
    os.chown(path, 12345, -1)
    reason = f"{path} belongs to user 12345, and this is user 0"
    assert_not_loaded("unsafe", reason, f"chown 0 {path}")


@needs_compiler
@pytest.mark.parametrize("size", [0, 100, 5000])
def test_a_library_that_was_cut_short_is_not_loaded(library: Path, size: int) -> None:
    os.truncate(library, size)
    reason = f"{library} is not the file that was built: it has changed since"
    assert_not_loaded("damaged", reason)


@needs_compiler
def test_a_library_without_its_record_is_not_loaded(library: Path) -> None:
    record = library.with_name(RECORD)
    record.write_text("{}")
    assert_not_loaded("damaged", f"{library.parent} cannot be read: KeyError('checksum')")
    record.unlink()
    assert_not_loaded("damaged", f"{record} cannot be read: No such file or directory")


@needs_compiler
def test_a_load_that_fails_gives_its_words(built: Built, library: Path) -> None:
    library.write_bytes(b"no library at all")
    write_record(library.parent, built.target, "")
    found = load_anew()
    assert found.module is None
    assert found.state == "failed"
    assert found.reason.startswith(f"{library} cannot be loaded: ")
    assert "file too short" in found.reason or "invalid ELF header" in found.reason
    assert found.remedy == "clew build"


def test_a_failure_of_our_own_does_not_raise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "SOURCES", tmp_path / "gone")
    found = load_anew()
    assert (found.module, found.state) == (None, "failed")
    assert re.match("looking for it failed: .*No such file or directory: .*gone", found.reason)


@needs_compiler
def test_clew_native_names_the_folder(
    built: Built, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.parents[1].rename(tmp_path / "engine")
    assert load_anew().state == "not built"
    monkeypatch.setenv("CLEW_NATIVE", str(tmp_path / "engine"))
    found = load_anew()
    assert found.state == "loaded"
    assert found.path == tmp_path / "engine" / built.target.key / library.name
    # Only that folder and what is in it has to be safe: the rest is the user's choice.
    tmp_path.chmod(0o777)
    assert load_anew().state == "loaded"


# In a program

TRACED = """
import json, os, sys
import torch
import clew
from clew.native import loading

model = torch.nn.Linear(2, 2)
started = []
STARTS = ("subprocess.Popen", "os.system", "os.posix_spawn", "os.exec", "os.fork", "os.forkpty")
sys.addaudithook(lambda event, args: started.append(repr(args)) if event in STARTS else None)
with clew.trace(model, values="stats") as t:
    model(torch.ones(1, 2)).sum().backward()
assert t.ops
# Python's `platform.platform()` starts this one.
started = [each for each in started if "uname" not in each]
print(json.dumps([loading.load() is None, loading.why_not(), started]))
"""


def test_a_trace_never_compiles(tmp_path: Path) -> None:
    cache, compiler = tmp_path / "cache", tmp_path / "compiler"
    cache.mkdir()
    compiler.write_text(f"#!/bin/sh\ntouch {tmp_path}/called\n")
    compiler.chmod(0o755)
    environment = {
        **os.environ, "XDG_CACHE_HOME": str(cache), "CXX": str(compiler), "CLEW_ENGINE": "",
        "CLEW_NATIVE": "",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", TRACED],
        capture_output=True,
        text=True,
        env=environment,
        timeout=HANG_GUARD,
    )
    assert done.returncode == 0, done.stderr
    reason = f"it has not been built (there is none in {cache}/clew/native)"
    assert json.loads(done.stdout) == [True, reason, []]
    assert list(cache.rglob("*")) == []
    assert not (tmp_path / "called").exists()


def test_neither_torch_nor_pyarrow_is_imported_to_ask() -> None:
    program = (
        "import sys, clew.native.loading, clew.native.building, clew.cli.build, clew.cli.doctor\n"
        "print(sorted({'torch', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr

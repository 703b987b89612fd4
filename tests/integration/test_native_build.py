"""Building the native engine: what is compiled, where it comes, and what is said when it fails."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clew.errors import BuildError
from clew.native import compiling, loading, target
from clew.native.building import Built, build
from clew.native.library import library_root, usable_library, write_record
from tests.native_sources import build_small, needs_compiler, write_sources
from tests.processes import HANG_GUARD

pytestmark = needs_compiler


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small sources, and an empty cache."""
    folder = write_sources(tmp_path / "sources")
    monkeypatch.setattr(target, "SOURCES", folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("CLEW_NATIVE", "CLEW_ENGINE", "CXXFLAGS"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def root(sources: Path, tmp_path: Path) -> Path:
    """Where libraries come: there is none yet."""
    return tmp_path / "cache" / "clew" / "native"


@pytest.fixture(scope="module")
def first_build(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build_small(tmp_path_factory.mktemp("first"))


@pytest.fixture
def library(root: Path, first_build: Built) -> Path:
    """A library of this test's own, as a build has left it."""
    shutil.copytree(first_build.root, root)
    root.parent.chmod(0o700)
    return root / first_build.path.relative_to(first_build.root)


def files_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def steps_of_build() -> tuple[int, list[str]]:
    """Build; what the library answers, and what was said of each source: `alone.cpp: compiled`."""
    lines: list[str] = []
    built = build(tell=lines.append)
    steps = sorted(line.partition(",")[0] for line in lines if ".cpp: " in line)
    return number_of(built.path), steps


def number_of(library: Path) -> int:
    number: int = loading.open_library(library).number()
    return number


@pytest.mark.parametrize("umask", [0o022, 0])
def test_a_build_comes_into_the_users_cache(root: Path, umask: int) -> None:
    lines: list[str] = []
    before = os.umask(umask)
    try:
        built = build(tell=lines.append)
    finally:
        os.umask(before)
    assert built.new
    assert built.root == root
    assert built.path.parent == root / built.target.key
    assert number_of(built.path) == 42
    assert files_of(root) == sorted([built.target.key, "objects"])
    folders = (root.parent, root, root / "objects", built.path.parent)
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}
    assert {stat.S_IMODE(file.stat().st_mode) for file in built.path.parent.iterdir()} == {0o600}
    assert usable_library(library_root(), built.target) == built.path
    assert lines[0].startswith(f"building for torch {built.target.torch}, Python ")
    assert lines[-1] == "linked; loading it in a process of its own"


def test_a_library_that_works_is_not_built_again(library: Path) -> None:
    again = build(tell=pytest.fail)
    assert not again.new
    assert again.path == library


@pytest.mark.parametrize("damage", ["cut", "mode", "unloadable"])
def test_a_library_that_does_not_work_is_built_again(
    root: Path, library: Path, first_build: Built, damage: str
) -> None:
    if damage == "cut":
        os.truncate(library, 1000)
    elif damage == "mode":
        library.parent.chmod(0o777)
    else:
        library.write_bytes(b"no library")
        write_record(library.parent, first_build.target, "")
    again = build()
    assert again.new
    assert usable_library(library_root(), again.target) == again.path == library
    assert number_of(library) == 42
    assert files_of(root) == sorted([first_build.target.key, "objects"])


def test_an_edit_compiles_what_it_changes(root: Path, library: Path, sources: Path) -> None:
    write_sources(sources, answer_cpp='#include "answer.h"\nint answer() { return 43; }\n')
    number, steps = steps_of_build()
    assert number == 43
    assert steps == ["alone.cpp: unchanged", "answer.cpp: compiled", "module.cpp: unchanged"]
    # Of a header, those that include it.
    write_sources(sources, answer_h="#pragma once\n// Another.\nint answer();\n")
    number, steps = steps_of_build()
    assert number == 42
    assert steps == ["alone.cpp: unchanged", "answer.cpp: compiled", "module.cpp: compiled"]
    assert len(files_of(root)) == 4


def test_a_source_that_is_edited_during_the_build(
    root: Path, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was compiled is neither put in place nor taken for what it was to be later."""
    editing = tmp_path / "editing"
    edit = f"printf 'int answer() {{ return 7; }}\\n' > {sources / 'answer.cpp'}"
    editing.write_text(f'#!/bin/sh\ncase "$*" in *answer.cpp*) {edit};; esac\nexec c++ "$@"\n')
    editing.chmod(0o755)
    monkeypatch.setenv("CXX", str(editing))
    with pytest.raises(BuildError, match=r"cannot compile answer\.cpp") as failed:
        build()
    assert compiling.CHANGED in failed.value.output
    monkeypatch.delenv("CXX")
    write_sources(sources)
    assert number_of(build().path) == 42


def test_a_changed_source_has_another_key(sources: Path) -> None:
    keys = [target.current_target(sources).key]
    for changed in ({"answer_h": "#pragma once\nint answer(); \n"}, {"alone_cpp": ""}):
        keys.append(target.current_target(write_sources(sources, **changed)).key)
    (sources / "alone.cpp").rename(sources / "renamed.cpp")
    keys.append(target.current_target(sources).key)
    assert len(set(keys)) == 4


def test_torch_is_found_where_it_says_it_is() -> None:
    extension = pytest.importorskip("torch.utils.cpp_extension", reason="needs setuptools")
    ours = list(map(str, compiling.include_folders(target.current_target(target.SOURCES))))
    assert set(extension.include_paths()) <= set(ours)
    assert any(Path(folder, "xxhash.h").exists() for folder in ours)
    assert any(Path(folder, "arrow/vendored/xxhash/xxhash.h").exists() for folder in ours)


def test_a_build_into_a_folder_leaves_nothing_but_the_library(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "image" / "engine"
    built = build(folder)
    assert built.root == folder
    assert files_of(folder) == [built.target.key]
    assert files_of(built.path.parent) == sorted([built.path.name, "build.json"])
    # Other users run what is in an image.
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert stat.S_IMODE(built.path.parent.stat().st_mode) == 0o755
    assert stat.S_IMODE(built.path.stat().st_mode) == 0o644
    # Where CLEW_NATIVE points is also where it would be built.
    monkeypatch.setenv("CLEW_NATIVE", str(folder))
    again = build(tell=pytest.fail)
    assert (again.new, again.path) == (False, built.path)
    assert not root.exists()


def test_a_folder_that_others_may_write_is_refused(root: Path, tmp_path: Path) -> None:
    open_to_all = tmp_path / "open to all"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(BuildError) as caught:
        build(open_to_all)
    assert str(caught.value) == (
        f"{open_to_all} may be written by other users (its mode is 0777). "
        f"Run: chmod go-w '{open_to_all}'"
    )
    assert files_of(open_to_all) == []


# Failures


def test_no_compiler(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError) as caught:
        build()
    assert str(caught.value) == (
        "there is no C++ compiler (tried c++, g++, clang++): install one (Debian, Ubuntu: "
        "apt install g++; Fedora: dnf install gcc-c++; conda: conda install cxx-compiler) or name "
        "one with CXX. Clew records without the native engine too, only slower"
    )
    monkeypatch.setenv("CXX", "/nowhere/g++ -m64")
    with pytest.raises(BuildError, match="CXX=/nowhere/g\\+\\+ -m64 is no command here"):
        build()
    assert not root.exists()


def test_cxx_may_have_arguments_and_cxxflags_hold(
    root: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = compiling.find_compiler().command[0]
    monkeypatch.setenv("CXX", f"env {command}")
    monkeypatch.setenv("CXXFLAGS", "-DANSWER=44 -std=c++17")
    write_sources(
        sources,
        answer_cpp='#include "answer.h"\n'
        "int answer() { return __cplusplus > 201703L ? ANSWER : 0; }\n",
    )
    assert number_of(build().path) == 44


def test_the_compilers_own_words_are_there(root: Path, sources: Path) -> None:
    write_sources(sources, answer_cpp='#error "no such luck"\n', alone_cpp="int f( {\n")
    with pytest.raises(BuildError, match="cannot compile alone.cpp, answer.cpp") as caught:
        build()
    assert "no such luck" in caught.value.output
    assert str(sources / "alone.cpp") in caught.value.output
    assert str(caught.value).endswith("Clew records without the native engine too, only slower")
    # The file that was fine is not compiled again.
    assert files_of(root) == ["objects"]
    assert [name.partition("-")[0] for name in files_of(root / "objects")] == ["module"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("int answer();", "undefined symbol"),
        (
            "#include <cstdlib>\nint ended = (std::abort(), 0);\nint answer() { return ended; }",
            f"ended by signal {signal.SIGABRT.value}",
        ),
    ],
)
def test_a_library_that_cannot_be_loaded_is_not_put_in_place(
    root: Path, sources: Path, answer: str, words: str
) -> None:
    write_sources(sources, answer_cpp=answer + "\n")
    with pytest.raises(BuildError, match="what was built cannot be loaded") as caught:
        build()
    assert words in caught.value.output
    assert files_of(root) == ["objects"]


def test_an_object_that_cannot_be_linked(root: Path, sources: Path) -> None:
    write_sources(sources, alone_cpp="int answer() { return 1; }\n")
    with pytest.raises(BuildError, match="cannot link the native engine") as caught:
        build()
    assert "multiple definition" in caught.value.output


# Several processes, and killed ones

PROGRAM = """
import sys, time
from pathlib import Path
from clew.native import target
from clew.native.building import build
import torch
target.SOURCES = Path(sys.argv[1])
me, other = map(Path, sys.argv[2:])
me.touch()
while not other.exists():
    time.sleep(0.001)
print(build().path)
"""


def start(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def test_two_processes_build_at_once(root: Path, sources: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    processes = [start(sources, first, second), start(sources, second, first)]
    ended = [process.communicate(timeout=HANG_GUARD) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], ended
    assert ended[0] == ended[1]
    now = target.current_target(sources)
    assert ended[0] == (f"{usable_library(library_root(), now)}\n", "")
    assert files_of(root) == sorted([now.key, "objects"])
    assert len(files_of(root / "objects")) == 3


def test_a_killed_build_leaves_nothing_that_counts(
    root: Path, sources: Path, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    slow = tmp_path / "slow"
    command = compiling.find_compiler().command[0]
    # Ends when the test does, should that fail before the kill.
    slow.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec {command} --version\n'
        f"touch {started}\nwhile [ -e {started} ]; do sleep 0.05; done\n"
    )
    slow.chmod(0o755)
    ready = tmp_path / "ready"
    process = start(sources, ready, ready, CXX=str(slow))
    try:
        while not started.exists():
            assert process.poll() is None
            time.sleep(0.01)
    finally:
        process.kill()
        process.communicate()
        started.unlink(missing_ok=True)
    assert [path.name[:7] for path in root.iterdir() if path.name != "objects"] == [".build-"]
    # What it left does not matter to the next build, which deletes it a day later.
    for path in (*root.glob(".build-*"), *root.glob("objects/.build-*")):
        os.utime(path, (0, 0))
    assert number_of(build().path) == 42
    assert not [*root.glob(".build-*"), *root.glob("objects/.build-*")]

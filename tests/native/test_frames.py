"""The native engine finds the frames that Python finds, on every Python there is here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clew.native.target import SOURCES
from tests.native_sources import needs_compiler

HERE = Path(__file__).parent
# Where pyenv puts other versions; the one that runs the tests is always tried.
PYENV = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
OTHERS = [
    path
    for version in ("3.10", "3.11", "3.12", "3.13")
    for path in sorted(PYENV.glob(f"{version}.*/bin/python"))
]
PYTHONS = {Path(sys.executable): "running"} | {path: path.parts[-3] for path in OTHERS}
FACTS = """
import sys, sysconfig
print(sysconfig.get_path("include"), sysconfig.get_config_var("EXT_SUFFIX"), *sys.version_info[:2])
"""
pythons = pytest.mark.parametrize("python", PYTHONS, ids=PYTHONS.values())
pytestmark = needs_compiler


def build(python: Path, folder: Path, *flags: str) -> tuple[int, int]:
    """Compile the walker for a Python into a folder; return the version of that Python."""
    asked = subprocess.run([python, "-c", FACTS], capture_output=True, text=True, check=True)
    include, suffix, *version = asked.stdout.split()
    if not Path(include, "Python.h").exists():
        pytest.skip(f"{python} has no headers")
    compiler = shutil.which("c++") or shutil.which("g++") or "clang++"
    words = [compiler, "-std=c++20", "-O2", "-DNDEBUG", "-Wall", "-Wextra", "-Werror", "-fPIC"]
    words += ["-shared", *flags, "-isystem", include, f"-I{SOURCES}", str(HERE / "walker.cpp")]
    built = subprocess.run([*words, "-o", folder / f"walker{suffix}"], capture_output=True)
    assert not built.returncode, built.stderr.decode()
    return int(version[0]), int(version[1])


def programs(python: Path, folder: Path) -> str:
    """Run the programs and return what they print."""
    command = [python, "-I", HERE / "frame_programs.py", folder]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout


@pythons
def test_frames_are_those_of_python(python: Path, tmp_path: Path) -> None:
    build(python, tmp_path)
    printed = programs(python, tmp_path)
    assert printed.count("same:") == 14
    assert int(printed.split()[-1]) > 10_000


@pythons
def test_frames_by_the_public_functions(python: Path, tmp_path: Path) -> None:
    """What versions use whose frames are not known."""
    if build(python, tmp_path, "-DCLEW_PUBLIC_FRAMES") < (3, 11):
        pytest.skip("frames of 3.10 are objects, there is no other way")
    assert programs(python, tmp_path).count("same:") == 14

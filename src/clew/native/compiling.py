"""Compile the C++ files of a library and link them, with the user's compiler.

In: a folder of sources, a `BuildTarget`, and a folder for objects. Out: a library, or a
`BuildError` with what the compiler printed. Files that include torch's headers, which take most of
the time to read, are compiled as one; each other by itself. Objects are kept under names made of
all that went into them, so that only what an edit concerns is compiled again.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from clew.errors import BuildError
from clew.native.target import COMPILE_FLAGS, BuildTarget, digest, texts_of

# What a message ends with: a failed build is no reason to stop.
WITHOUT = "Clew records without the native engine too, only slower"
# How names of folders begin that are being filled; `building` deletes what killed builds leave.
ASIDE = ".build-"

_COMPILERS = ("c++", "g++", "clang++")
_INSTALL = (
    "install one (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++; "
    "conda: conda install cxx-compiler) or name one with CXX"
)


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler: how it is called, and the first line of `--version`."""

    command: tuple[str, ...]
    version: str

    def __str__(self) -> str:
        return self.version or shlex.join(self.command)


def find_compiler() -> Compiler:
    """Return the compiler that CXX names, else the first of the usual ones; raise without one."""
    named = shlex.split(os.environ.get("CXX", ""))
    # CXXFLAGS come first: where they disagree with what the engine needs, the latter holds.
    flags = shlex.split(os.environ.get("CXXFLAGS", ""))
    for command in [named] if named else [[name] for name in _COMPILERS]:
        if shutil.which(command[0]):
            version = _run([*command, "--version"]).stdout.partition("\n")[0].strip()
            return Compiler((*command, *flags), version)
    if named:
        raise BuildError(f"CXX={shlex.join(named)} is no command here: {_INSTALL}. {WITHOUT}")
    tried = ", ".join(_COMPILERS)
    raise BuildError(f"there is no C++ compiler (tried {tried}): {_INSTALL}. {WITHOUT}")


CHANGED = "the sources were changed while they were compiled: run clew build again"
_TORCH = re.compile(rb"^\s*#\s*include\s*<(ATen|c10|torch)/", re.MULTILINE)


def compile_sources(
    compiler: Compiler,
    sources: Path,
    target: BuildTarget,
    objects: Path,
    tell: Callable[[str], None],
) -> list[Path]:
    """Compile what has no object yet, as much at once as there are processors."""
    words = [
        *compiler.command,
        *COMPILE_FLAGS,
        *([f"-D_GLIBCXX_USE_CXX11_ABI={int(target.cxx11_abi)}"] if target.torch else []),
        *(word for folder in include_folders(target) for word in ("-isystem", str(folder))),
    ]
    # Headers of Python and torch are told apart by their versions, without reading them.
    about = digest(compiler.version, target.torch, target.torch_git, target.python, *words)
    failed: dict[str, str] = {}

    def compile_unit(files: list[Path]) -> Path:
        texts = [text for file in files for text in texts_of(file)]
        name = files[0].name if len(files) == 1 else f"{len(files)} files that use torch"
        stem = files[0].stem if len(files) == 1 else "torch"
        made = objects / f"{stem}-{digest(about, *texts)[:20]}.o"
        if made.exists():
            os.utime(made)
            tell(f"{name}: unchanged")
            return made
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix=ASIDE, dir=objects) as aside:
            partial, unit = Path(aside, made.name), files[0]
            if len(files) > 1:
                unit = Path(aside, "unit.cpp")
                unit.write_text("".join(f'#include "{file}"\n' for file in files))
            done = _run([*words, "-c", str(unit), "-o", str(partial)])
            if done.returncode:
                failed[name] = done.stderr
            elif texts != [text for file in files for text in texts_of(file)]:
                failed[name] = f"{CHANGED}\n"
            else:
                os.replace(partial, made)
        tell(f"{name}: {'failed' if done.returncode else 'compiled'}, {_since(began)}")
        return made

    units = _units(sorted(sources.glob("*.cpp")))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        made = list(pool.map(compile_unit, units))
    if failed:
        what = f"{compiler} cannot compile {', '.join(sorted(failed))}. {WITHOUT}"
        raise BuildError(what, "\n".join(failed.values()))
    return sorted(made)


def link(compiler: Compiler, objects: Sequence[Path], target: BuildTarget, library: Path) -> None:
    """Link objects into a library that finds torch in the process that loads it."""
    words = [*compiler.command, *map(str, objects)]
    if target.torch:
        words.append(f"-L{_folder_of('torch') / 'lib'}")
    done = _run([*words, *target.link_flags, "-o", str(library)])
    if done.returncode:
        raise BuildError(f"{compiler} cannot link the native engine. {WITHOUT}", done.stderr)


def include_folders(target: BuildTarget) -> list[Path]:
    """Return the folders of headers: Python's, torch's, and pyarrow's, which has xxhash.h."""
    python = Path(sysconfig.get_path("include"))
    if not (python / "Python.h").exists():
        raise BuildError(
            f"Python.h is not in {python}: install the headers of Python (Debian, Ubuntu: "
            f"apt install python3-dev; Fedora: dnf install python3-devel). {WITHOUT}"
        )
    if not target.torch:
        return [python]
    # What `torch.utils.cpp_extension.include_paths` returns, which needs setuptools.
    headers = _folder_of("torch") / "include"
    arrow = _folder_of("pyarrow") / "include"
    xxhash = arrow / "arrow" / "vendored" / "xxhash"
    return [python, headers, headers / "torch" / "csrc" / "api" / "include", arrow, xxhash]


def _folder_of(package: str) -> Path:
    """Return the folder of a package, without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise BuildError(f"there is no {package} here: run pip install {package}. {WITHOUT}")
    return Path(spec.origin).parent


def _units(files: list[Path]) -> list[list[Path]]:
    """Return which files are compiled together, the longest first.

    Those that use torch are one: most of the time goes into reading its headers.
    """
    with_torch = [file for file in files if any(_TORCH.search(text) for text in texts_of(file))]
    others = [[file] for file in files if file not in with_torch]
    return [with_torch, *others] if with_torch else others


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, errors="replace")


def _since(began: float) -> str:
    return f"{time.monotonic() - began:.1f} s"

"""What a library of C++ is built for: torch, Python, machine, sources.

In: the running interpreter, its torch, and the C++ files beside this one. Out: a `BuildTarget`,
whose key names the folder of the library that fits. There are two libraries: the native engine, and
one that makes `clew.watch` fast before Python 3.12, for programs without torch too. Nothing is
compiled or loaded here.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
import sysconfig
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).with_name("sources")
# The folder in it with the files of the library that needs no torch.
TRACING = "tracing"

# Without NDEBUG torch's RecordFunction has another layout, and the process dies.
COMPILE_FLAGS = ("-std=c++20", "-O3", "-DNDEBUG", "-fPIC", "-fvisibility=hidden")
# The library is loaded after torch, whose libraries are then found by their names. It has no path
# to them, so it can never load a second torch.
LINK_FLAGS = ("-shared", "-ltorch_python", "-ltorch", "-ltorch_cpu", "-lc10")
TRACING_LINK_FLAGS = ("-shared",)

_KEY_LENGTH = 20


@dataclass(frozen=True, slots=True)
class BuildTarget:
    """Everything that decides whether a library can be used; equal targets can share one.

    `torch` is empty for the library that needs none.
    """

    torch: str
    torch_git: str
    cxx11_abi: bool
    python: str
    soabi: str
    system: str
    machine: str
    libc: str
    sources: str

    @property
    def key(self) -> str:
        """Name the folder of the library that fits."""
        return digest(json.dumps(self.to_dict(), sort_keys=True))[:_KEY_LENGTH]

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        torch = f"torch {self.torch}, " if self.torch else ""
        return f"{torch}Python {self.python}, {self.system} {self.machine}"

    @property
    def module(self) -> str:
        """Name the module that the library is."""
        return "_clew_native" if self.torch else "_clew_tracing"

    @property
    def link_flags(self) -> tuple[str, ...]:
        return LINK_FLAGS if self.torch else TRACING_LINK_FLAGS


def current_target(sources: Path) -> BuildTarget:
    """Return the target of the native engine in this process; raises ImportError without torch."""
    # Building and loading need torch, asking for the folder of libraries does not.
    import torch

    files = sorted(path for path in sources.iterdir() if path.is_file())
    parts = [part for path in files for part in (path.name, path.read_bytes())]
    return _target(
        str(torch.__version__),
        str(torch.version.git_version),
        bool(torch.compiled_with_cxx11_abi()),
        digest(*COMPILE_FLAGS, *LINK_FLAGS, *parts),
    )


def tracing_target(sources: Path) -> BuildTarget | None:
    """Return the target of the library that needs no torch; None where Python needs none."""
    folder = sources / TRACING
    if sys.version_info >= (3, 12) or not folder.is_dir():
        return None
    texts = [text for file in sorted(folder.glob("*.cpp")) for text in texts_of(file)]
    return _target("", "", False, digest(*COMPILE_FLAGS, *TRACING_LINK_FLAGS, *texts))


def _target(torch: str, torch_git: str, cxx11_abi: bool, sources: str) -> BuildTarget:
    return BuildTarget(
        torch=torch,
        torch_git=torch_git,
        cxx11_abi=cxx11_abi,
        # To the last digit: libraries read frames, whose layout is not part of Python's ABI.
        python=platform.python_version(),
        soabi=str(sysconfig.get_config_var("SOABI")),
        system=sys.platform,
        machine=platform.machine(),
        libc=_libc(),
        sources=sources,
    )


def unsupported() -> str:
    """Say why this system has no native engine; empty where it has one."""
    if sys.platform != "linux":
        return f"the native engine is for Linux, and this is {sys.platform}"
    if sys.implementation.name != "cpython":
        return f"the native engine is for CPython, and this is {sys.implementation.name}"
    return ""


def digest(*texts: str | bytes) -> str:
    """Return a digest of texts, in hexadecimal; where one ends and the next begins counts."""
    found = hashlib.sha256()
    for text in texts:
        data = text.encode() if isinstance(text, str) else text
        found.update(len(data).to_bytes(8, "little") + data)
    return found.hexdigest()


def texts_of(file: Path) -> list[bytes]:
    """Return the contents of a source and of every header of ours it includes, at any depth."""
    found: dict[Path, bytes] = {}
    waiting = [file]
    while waiting:
        path = waiting.pop()
        if path not in found and path.is_file():
            found[path] = path.read_bytes()
            named = re.findall(rb'^\s*#\s*include\s*"([^"]+)"', found[path], re.MULTILINE)
            waiting += [path.parent / os.fsdecode(name) for name in named]
    return [part for path in sorted(found) for part in (path.name.encode(), found[path])]


def _libc() -> str:
    """Return the version of the C library: homes are shared by machines that differ in it."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, OSError, ValueError):
        return ""

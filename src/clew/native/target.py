"""What a library of the native engine is built for: torch, Python, machine, sources.

In: the running interpreter, its torch, and the C++ files beside this one. Out: a `BuildTarget`,
whose key names the folder of the library that fits. Nothing is compiled or loaded here.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import sysconfig
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).with_name("sources")

# Without NDEBUG torch's RecordFunction has another layout, and the process dies.
COMPILE_FLAGS = ("-std=c++20", "-O2", "-DNDEBUG", "-fPIC", "-fvisibility=hidden")
# The library is loaded after torch, whose libraries are then found by their names. It has no path
# to them, so it can never load a second torch.
LINK_FLAGS = ("-shared", "-ltorch_python", "-ltorch", "-ltorch_cpu", "-lc10")

_KEY_LENGTH = 20


@dataclass(frozen=True, slots=True)
class BuildTarget:
    """Everything that decides whether a library can be used; equal targets can share one."""

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
        return f"torch {self.torch}, Python {self.python}, {self.system} {self.machine}"


def current_target(sources: Path) -> BuildTarget:
    """Return the target of this process; raises ImportError without torch."""
    # Building and loading need torch, asking for the folder of libraries does not.
    import torch

    return BuildTarget(
        torch=str(torch.__version__),
        torch_git=str(torch.version.git_version),
        cxx11_abi=bool(torch.compiled_with_cxx11_abi()),
        # To the last digit: the engine reads frames, whose layout is not part of Python's ABI.
        python=platform.python_version(),
        soabi=str(sysconfig.get_config_var("SOABI")),
        system=sys.platform,
        machine=platform.machine(),
        libc=_libc(),
        sources=_digest_of_sources(sources),
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


def _digest_of_sources(folder: Path) -> str:
    files = sorted(path for path in folder.iterdir() if path.is_file())
    parts = [part for path in files for part in (path.name, path.read_bytes())]
    return digest(*COMPILE_FLAGS, *LINK_FLAGS, *parts)


def _libc() -> str:
    """Return the version of the C library: homes are shared by machines that differ in it."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, OSError, ValueError):
        return ""

"""Start a program as Python itself would, with recording switched on from inside it.

Input: the words that name a program, and options. Output: the program's exit code. The program is
run by a Python of its own: this process becomes it, so that `__main__`, arguments, streams,
signals and tracebacks are what they are without Clew.
"""

from __future__ import annotations

import difflib
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from clew.errors import ClewError
from clew.launch.options import RunOptions

# The folder for PYTHONPATH: `sitecustomize.py` in it begins to record.
STARTUP = str(Path(__file__).parent / "startup")


def folder_of(program: Sequence[str]) -> str:
    """Return the folder of a program, where its defaults are looked for; ClewError if none is."""
    if not program:
        raise ClewError(
            "clew run needs a program: clew run script.py, or clew run -m package.module"
        )
    if program[0].startswith("-"):
        if program[0] == "-m" and len(program) == 1:
            raise ClewError("-m needs the name of a module: clew run -m package.module")
        return os.curdir
    script = Path(program[0])
    if not script.exists():
        raise ClewError(f"cannot run {script}: there is no such file{_like(script)}")
    if script.is_dir() and not (script / "__main__.py").exists():
        raise ClewError(
            f"cannot run {script}: it is a folder without __main__.py; name a script in it, or a "
            "package with -m"
        )
    return os.path.dirname(os.path.realpath(script))


def _like(script: Path) -> str:
    """Return the scripts beside a missing one that are spelled nearly so, as part of a sentence."""
    try:
        beside = [name for name in os.listdir(script.parent) if name.endswith(".py")]
    except OSError:
        return ""
    near = difflib.get_close_matches(script.name, beside, 1)
    return f"; did you mean {script.parent / near[0]}?" if near else ""


def start(
    program: Sequence[str],
    options: RunOptions,
    replace_process: bool,
    output: TextIO | None = None,
) -> int:
    """Run a program, recorded; return its exit code, or never if it replaces this process.

    What it prints goes to `output`, if that is given, such as the error stream.
    """
    if sys.flags.ignore_environment or sys.flags.no_site:
        raise ClewError(
            "clew run reaches the program through PYTHONPATH, which Python ignores with -E, -I and "
            "-S: leave them out, or open a clew.trace in the program"
        )
    command = [sys.executable, *_flags(), *program]
    environment = _environment(options)
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    if replace_process and os.name == "posix":
        os.execve(sys.executable, command, environment)
    code = subprocess.call(command, env=environment, stdout=output)
    # As a shell says it, where a signal has ended the program.
    return 128 - code if code < 0 else code


def _environment(options: RunOptions) -> dict[str, str]:
    path = os.environ.get("PYTHONPATH", "")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([STARTUP, path] if path else [STARTUP]),
        "CLEW_RUN": shlex.join(options.words()),
    }


def _flags() -> list[str]:
    """Return the flags that Python was given, such as `-u -X dev`: the program gets them too."""
    before = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]
    if before and before[-1] == sys.argv[0]:
        return before[:-1]  # the script `clew`
    if len(before) > 1 and before[-2].startswith("-") and before[-2].endswith("m"):
        flags = before[-2][:-1]  # `-m clew`, or `-um clew`
        return [*before[:-2], flags] if flags != "-" else before[:-2]
    return []

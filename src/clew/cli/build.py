"""`clew build`: compile the native engine for the torch and Python that run the command.

Also the library that makes `clew.watch` fast before Python 3.12, which needs no torch.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import Any

from clew.cli.output import emit
from clew.cli.reading import Commands, add_plain_command
from clew.errors import BuildError
from clew.native.building import Built, build, build_tracing, has_torch
from clew.plain_text import plain, plain_lines


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    more = (
        "Recording is several times faster with it; before Python 3.12 clew.watch too, which needs "
        "no torch. Needs a C++ compiler: the one that CXX names, "
        "else c++, g++ or clang++. Done once for each torch and Python; clew.trace never compiles."
    )
    parser = add_plain_command(commands, "build", run, more)
    what = "build into this folder, which CLEW_NATIVE=DIR then names (for images)"
    parser.add_argument("--to", metavar="DIR", help=what)


def run(args: argparse.Namespace) -> int:
    """Build, telling each step on the error stream."""
    try:
        tracing = build_tracing(args.to, tell=_tell)
        built = build(args.to, tell=_tell) if tracing is None or has_torch() else tracing
    except BuildError as error:
        # The compiler's words keep their lines; the reason follows as the last line.
        sys.stderr.write(plain_lines(error.output))
        raise
    emit(args, lambda: _facts(built), lambda: _text(built, args.to))
    return 0


def _tell(line: str) -> None:
    sys.stderr.write(f"clew build: {plain(line)}\n")


def _facts(built: Built) -> dict[str, Any]:
    return {
        "path": str(built.path),
        "new": built.new,
        "seconds": round(built.seconds, 3),
        "target": built.target.to_dict(),
    }


def _text(built: Built, to: str | None) -> str:
    done = f"built in {built.seconds:.0f} s" if built.new else "already built"
    lines = [f"{done}, for {built.target}: {built.path}"]
    if to is not None:
        lines.append(f"to use it, set CLEW_NATIVE={shlex.quote(str(built.root))}")
    return "\n".join(lines)

"""The `clew` command line: finds the command, runs it, turns errors into one line and a code.

Exit codes: 0 fine, 1 the command found something (each command's help says what), 2 wrong usage
or input that cannot be read. To add a command: a module here with `add_parser(commands)` and
`run(args) -> int`, and its name in `COMMANDS`. Modules are imported for `clew --help`, so they
reach for anything heavy through `clew.load` or inside `run`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import clew
from clew.cli.output import complain, one_line
from clew.plain_text import plain, plain_lines

COMMANDS = ("info", "show", "code", "value", "graph", "html", "export", "recover")

_FINE, _BROKEN, _INTERRUPTED = 0, 2, 130


class _Parser(argparse.ArgumentParser):
    """A parser whose error messages escape what was typed, which may be the name of any file."""

    def error(self, message: str) -> NoReturn:
        super().error(plain(message))


def parser(names: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    """Make the parser of the command line, for all or some commands."""
    top = _Parser(
        prog="clew",
        description="Read a recorded trace: what flowed through a PyTorch program.",
        epilog="Exit codes: 0 fine, 1 found something, 2 wrong usage or unreadable input.",
    )
    top.add_argument("--version", action="version", version=f"clew {clew.__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    for name in names:
        importlib.import_module(f"clew.cli.{name}").add_parser(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    # A name that the terminal's encoding lacks must not end the command.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    words = sys.argv[1:] if argv is None else argv
    args = parser(words[:1] if words[:1] and words[0] in COMMANDS else COMMANDS).parse_args(words)
    try:
        code = int(args.run(args))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the output, `head` say, has closed it. Python would complain again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FINE
    except KeyboardInterrupt:
        return _INTERRUPTED
    except (clew.ClewError, OSError) as broken:
        complain(one_line(broken))
        return _BROKEN
    except Exception:
        # A bug in Clew. Python would exit with 1, which means that something was found.
        sys.stderr.write(plain_lines(traceback.format_exc()))
        return _BROKEN
    return code


if __name__ == "__main__":
    sys.exit(main())

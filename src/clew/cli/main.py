"""The `clew` command line: finds the command, runs it, turns errors into one line and a code.

Exit codes: 0 fine, 1 the command found something (each command's help says what), 2 wrong usage
or input that cannot be read. To add a command: a module here with `add_parser(commands)` and
`run(args) -> int`, and its name in `COMMANDS`. Modules are imported for `clew --help`, so they
reach for anything heavy through `clew.load` or inside `run`. If `run` returns a function, that is
called last, outside of everything here, and returns the code.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import clew
from clew.cli.output import complain, one_line
from clew.plain_text import plain, plain_lines

COMMANDS = (
    "run", "info", "crash", "health", "show", "code", "value", "why-shape", "mem", "diff",
    "determinism", "ranks", "graph", "html", "export", "recover", "build", "doctor", "env",
)  # fmt: skip

_FINE, _BROKEN, _INTERRUPTED = 0, 2, 130

_FIRST_STEPS = """\
Clew records what flows through a PyTorch program, and answers questions about it.

  clew run train.py            record a program as it is, into .clew/train.clew
  clew info .clew/train.clew   say what was found: a crash, NaN, what was not seen
  clew show .clew/train.clew   show what ran, as a tree
  clew html .clew/train.clew   write a page to look at it

clew --help lists all commands.
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose error messages escape what was typed, which may be the name of any file."""

    def error(self, message: str) -> NoReturn:
        super().error(plain(message))

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the words; of an option that there is not, say which comes nearest."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            command = getattr(found, "parser", self)
            options = [name for action in command._actions for name in action.option_strings]
            near = "".join(_meant(word.partition("=")[0], options) for word in unknown[:1])
            command.error(f"unrecognized arguments: {' '.join(unknown)}{near}")
        return found


def _meant(word: str, names: Sequence[str]) -> str:
    """Return the name that a mistyped word is nearest to, as the end of a sentence."""
    near = difflib.get_close_matches(word, names, 1)
    return f"; did you mean {near[0]}?" if near else ""


def parser(names: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    """Make the parser of the command line, for all or some commands."""
    top = _Parser(
        prog="clew",
        description="Record what flows through a PyTorch program, and read what was recorded.",
        epilog="Exit codes: 0 fine, 1 found something, 2 wrong usage or unreadable input.",
    )
    top.add_argument("--version", action="version", version=f"clew {clew.__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    for name in names:
        importlib.import_module(f"clew.cli.{name.replace('-', '_')}").add_parser(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    # A name that the terminal's encoding lacks must not end the command.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    words = list(sys.argv[1:] if argv is None else argv)
    if not words:
        sys.stdout.write(_FIRST_STEPS)
        return _FINE
    args = _parsed(words)
    # Whether the process is there for this command alone.
    args.is_process = argv is None
    try:
        code = args.run(args)
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
    return code() if callable(code) else int(code)


def _parsed(words: list[str]) -> argparse.Namespace:
    """Parse the words; what follows the name of a program is for the program, whatever it is."""
    name = words[0]
    program: list[str] = []
    if name in ("run", "determinism"):
        from clew.launch.options import split_program  # which only these commands need

        own, program = split_program(words[1:], ("--rows",))
        words = [name, *own]
    top = parser([name] if name in COMMANDS else COMMANDS)
    if name not in COMMANDS and not name.startswith("-"):
        top.error(f"there is no command {name!r}{_meant(name, COMMANDS)}")
    args = top.parse_args(words)
    args.program = program
    return args


if __name__ == "__main__":
    sys.exit(main())

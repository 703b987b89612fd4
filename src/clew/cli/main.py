"""The `clew` command line: finds the command, runs it, turns errors into one line and a code.

Exit codes: 0 fine, 1 the command found something (each command's help says what), 2 wrong usage
or input that cannot be read. To add a command: a module here with `add_parser(commands)` and
`run(args) -> int`, and a line in `commands.py`. Only the module of the command that was given is
imported, none for `clew --help`. If `run` returns a function, that is called last, outside of
everything here, and returns the code. A command that runs a program also has `split_words(words)`,
which parts its own words from those that are the program's.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any, NoReturn

import clew
from clew.cli.commands import COMMANDS
from clew.cli.output import complain, one_line
from clew.plain_text import plain, plain_lines

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


def _meant(word: str, names: Iterable[str]) -> str:
    """Return the name that a mistyped word is nearest to, as the end of a sentence."""
    near = difflib.get_close_matches(word, list(names), 1)
    return f"; did you mean {near[0]}?" if near else ""


def parser(names: Iterable[str] = COMMANDS) -> argparse.ArgumentParser:
    """Make the parser of the command line, for all or some commands, whose modules it imports."""
    top = _top()
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    for name in names:
        _module(name).add_parser(commands)
    return top


def _overview() -> argparse.ArgumentParser:
    """Make the parser of `clew --help`, which knows what each command is for and no more."""
    top = _top()
    commands = top.add_subparsers(metavar="COMMAND")
    for name, what in COMMANDS.items():
        commands.add_parser(name, help=what)
    return top


def _top() -> argparse.ArgumentParser:
    top = _Parser(
        prog="clew",
        description="Record what flows through a PyTorch program, and read what was recorded.",
        epilog="Exit codes: 0 fine, 1 found something, 2 wrong usage or unreadable input.",
    )
    top.add_argument("--version", action="version", version=f"clew {clew.__version__}")
    return top


def _module(command: str) -> ModuleType:
    return importlib.import_module(f"clew.cli.{command.replace('-', '_')}")


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
    name, *own = words
    if name not in COMMANDS:
        _refuse(name)
    split = getattr(_module(name), "split_words", None)
    own, program = (own, []) if split is None else split(own)
    args: argparse.Namespace = parser([name]).parse_args([name, *own])
    args.program = program
    return args


def _refuse(word: str) -> NoReturn:
    """Print the help or version if the word asks for it; else complain that it is no command."""
    top = _overview()
    if word.startswith("-"):
        top.parse_args([word])
        top.error("a command comes first, such as `clew info TRACE`")
    top.error(f"there is no command {word!r}{_meant(word, COMMANDS)}")


if __name__ == "__main__":
    sys.exit(main())

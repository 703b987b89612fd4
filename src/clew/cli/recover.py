"""`clew recover`: seal what a killed process left open."""

from __future__ import annotations

import argparse

from clew import store
from clew.cli.output import emit, within
from clew.cli.reading import Commands, add_command, positive
from clew.plain_text import plain


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    more = "A trace is readable without it; other tools read only sealed files."
    parser = add_command(commands, "recover", run, more)
    parser.add_argument("--rows", type=positive, metavar="N", help="at most so many lines")


def run(args: argparse.Namespace) -> int:
    """Seal, and say what was done."""
    done = store.recover(args.trace)
    lines = within(list(map(plain, done)), args.rows, "--json")
    emit(
        args,
        lambda: {"path": args.trace, "done": done},
        lambda: "\n".join(lines) or f"{args.trace}: every file is sealed, nothing to do",
    )
    return 0

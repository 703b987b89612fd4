"""`clew code`: source lines with the ops they ran."""

from __future__ import annotations

import argparse

from clew import views
from clew.cli.output import emit, within
from clew.cli.reading import Commands, add_command, add_ops, add_rank, open_trace, positive


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    more = "Shows every rank, those that read the same once, unless --rank says otherwise."
    parser = add_command(commands, "code", run, more)
    parser.add_argument("address", metavar="ADDRESS", nargs="?", help="only what ran in here")
    parser.add_argument("--all", action="store_true", help="every op, nothing abridged")
    add_ops(parser)
    parser.add_argument("--rows", type=positive, metavar="N", help="at most so many lines")
    add_rank(parser)


def run(args: argparse.Namespace) -> int:
    """Print the code."""
    code = open_trace(args).code(args.address, succinct=not args.all, ops=args.ops)

    def text() -> str:
        lines = code.text(views.style_for(shell=True)).splitlines()
        return "\n".join(within(lines, args.rows, f"--rows {len(lines)}"))

    emit(args, code.to_dict, text)
    return 0

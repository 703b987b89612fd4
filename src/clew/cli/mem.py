"""`clew mem`: where the memory of tensors went: the peak, what was alive then, what grows."""

from __future__ import annotations

import argparse

from clew.cli.output import emit
from clew.cli.reading import Commands, add_command, add_rank, open_trace, positive

_ROWS = 6
_GROUPINGS = ("kind", "module", "line")


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    more = "Exits with 1 if memory grows from step to step."
    parser = add_command(commands, "mem", run, more)
    parser.add_argument("--by", choices=_GROUPINGS, help="only the table by kind, module or line")
    parser.add_argument(
        "--rows",
        type=positive,
        metavar="N",
        default=_ROWS,
        help=f"at most so many rows in each table ({_ROWS})",
    )
    add_rank(parser)


def run(args: argparse.Namespace) -> int:
    """Print where the memory went; say by the exit code whether it grows."""
    memory = open_trace(args).memory()
    emit(
        args,
        lambda: memory.to_dict(args.rows, args.by),
        lambda: memory.text(args.rows, args.by, "--rows N shows more"),
    )
    return 0 if memory.growth is None else 1

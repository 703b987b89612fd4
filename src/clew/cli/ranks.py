"""`clew ranks`: which rank disagrees, and where first."""

from __future__ import annotations

import argparse

import clew
from clew.cli.output import emit
from clew.cli.reading import Commands, add_command, positive

_ROWS = 12


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    more = (
        "Parameters, updates and what collectives give must be the same on all ranks; what a rank "
        "computes from its own batches may differ. Exits with 0 if the ranks agree, with 1 if they "
        "differ."
    )
    parser = add_command(commands, "ranks", run, more)
    parser.add_argument(
        "--tol", type=float, metavar="X", help="the relative error that counts as equal"
    )
    parser.add_argument(
        "--rows", type=positive, metavar="N", default=_ROWS,
        help=f"at most so many placements and differences ({_ROWS})",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Print the comparison."""
    found = clew.ranks(args.trace, tol=args.tol)
    most = max(len(found.placements), len(found.differences))
    emit(args, found.to_dict, lambda: found.text(args.rows, f"--rows {most} shows all"))
    return 0 if found.equal else 1

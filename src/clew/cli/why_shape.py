"""`clew why-shape`: where a dimension of a tensor comes from, op by op and line by line."""

from __future__ import annotations

import argparse

from clew.cli.output import emit
from clew.cli.reading import Commands, add_command, add_rank, open_trace, positive

_ROWS = 40


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    more = "The chain leads from the tensor back to inputs, parameters and numbers given to ops."
    parser = add_command(commands, "why-shape", run, more)
    parser.add_argument("address", metavar="ADDRESS", help="such as encoder.layers.0:in")
    parser.add_argument(
        "--dim", type=int, metavar="N", required=True, help="the dimension; -1 is the last"
    )
    parser.add_argument(
        "--rows", type=positive, metavar="N", default=_ROWS, help=f"at most so many links ({_ROWS})"
    )
    add_rank(parser)


def run(args: argparse.Namespace) -> int:
    """Print the chain."""
    chain = open_trace(args).why_shape(args.address, args.dim)
    emit(args, chain.to_dict, lambda: chain.text(args.rows, f"--rows {len(chain.links)} shows all"))
    return 0

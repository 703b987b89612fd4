"""`clew show`: the tree of module calls, repeats folded."""

from __future__ import annotations

import argparse

from clew import views
from clew.cli.output import emit
from clew.cli.reading import Commands, add_command, add_ops, add_rank, open_trace, positive


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    more = "Ranks that ran the same are shown as one."
    parser = add_command(commands, "show", run, more)
    parser.add_argument("--depth", type=positive, metavar="N", help="modules down to this depth")
    parser.add_argument("--rows", type=positive, metavar="N", help="at most so many lines")
    add_ops(parser)
    parser.add_argument("--no-fold", action="store_true", help="show every repeat of a layer")
    add_rank(parser)


def run(args: argparse.Namespace) -> int:
    """Print the tree."""
    tree = open_trace(args).tree(
        depth=args.depth, fold=not args.no_fold, rows=args.rows, ops=args.ops
    )
    emit(args, tree.to_dict, lambda: tree.text(views.style_for(shell=True)))
    return 0

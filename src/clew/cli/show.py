"""`clew show`: the tree of module calls, repeats folded."""

from __future__ import annotations

import argparse
import re
from typing import Any

from clew.cli.output import emit
from clew.cli.reading import add_command, add_rank, open_trace, positive

# The views name what a Python prompt would say; here it is an option.
_IN_PYTHON = (
    (re.compile(r"t\.tree\(depth=(\d+)\) shows all"), r"--depth \1 shows all"),
    (re.compile(r"t\.coverage lists them"), "`clew info` lists them"),
    (re.compile(r"; see t\.crash$", re.MULTILINE), "; see `clew info`"),
)


def add_parser(commands: Any) -> None:
    """Add the command to the command line."""
    more = "Shows the first rank unless --rank says otherwise."
    parser = add_command(commands, "show", run, "show what ran as a tree of module calls", more)
    parser.add_argument("--depth", type=positive, metavar="N", help="modules down to this depth")
    parser.add_argument("--rows", type=positive, metavar="N", help="at most so many lines")
    parser.add_argument("--no-fold", action="store_true", help="show every repeat of a layer")
    add_rank(parser)


def run(args: argparse.Namespace) -> int:
    """Print the tree."""
    tree = open_trace(args).tree(depth=args.depth, fold=not args.no_fold, rows=args.rows)
    emit(args, tree.to_dict, lambda: _for_the_shell(str(tree), args.rows is not None))
    return 0


def _for_the_shell(text: str, bounded: bool) -> str:
    for python, option in _IN_PYTHON:
        text = python.sub(option, text)
    return (
        re.sub(r"(--depth \d+) shows all", r"\1 without --rows shows all", text)
        if bounded
        else text
    )

"""`clew diff`: the first place where two runs part."""

from __future__ import annotations

import argparse

import clew
from clew.cli.exist_option import add_exist
from clew.cli.output import emit
from clew.cli.reading import Commands, add_plain_command, positive

_ROWS = 20


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    more = "Exits with 0 if they agree up to noise, with 1 if they differ."
    parser = add_plain_command(commands, "diff", run, more)
    parser.add_argument("a", metavar="A", help="the trace of the reference")
    parser.add_argument("b", metavar="B", help="the trace to compare with it")
    parser.add_argument(
        "--map", action="append", default=[], type=_renamed, metavar="A=B",
        help="modules of B by their names in A, such as 'model.layers.*=transformer.h.*'",
    )  # fmt: skip
    parser.add_argument(
        "--tol", type=float, metavar="X", help="the relative error that counts as rounding"
    )
    parser.add_argument("--html", metavar="FILE", help="write both runs side by side to a page too")
    add_exist(parser)
    parser.add_argument(
        "--noise", nargs="+", metavar="A2", default=[],
        help="repeats of A: what they differ by counts as rounding",
    )  # fmt: skip
    parser.add_argument(
        "--rows", type=positive, metavar="N", default=_ROWS, help=f"at most so many calls ({_ROWS})"
    )


def run(args: argparse.Namespace) -> int:
    """Print the comparison."""
    if args.noise and args.tol is not None:
        raise clew.ClewError("--tol and --noise both say what counts as rounding: give one")
    tolerance = clew.noise_of(args.a, *args.noise) if args.noise else args.tol
    found = clew.diff(args.a, args.b, map=dict(args.map), tol=tolerance)
    title = f"{_stem(args.a)} and {_stem(args.b)}"
    page = [str(found.html(args.html, title=title, exist=args.exist))] if args.html else []
    more = f"--rows {len(found.table)} shows all"
    emit(args, found.to_dict, lambda: "\n".join([found.text(args.rows, more), *page]))
    return 0 if found.equal else 1


def _stem(trace: str) -> str:
    return trace.rstrip("/").rpartition("/")[2].removesuffix(".clew")


def _renamed(text: str) -> tuple[str, str]:
    ours, equals, theirs = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} has no =; write the names as A=B")
    return ours, theirs

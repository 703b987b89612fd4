"""What the reading commands share: the TRACE argument, `--rank`, `--json`, and opening it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import clew

if TYPE_CHECKING:
    from clew.traces import Trace


def add_command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int], what: str, more: str = ""
) -> argparse.ArgumentParser:
    """A command with the trace to read and `--json`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=what, description=f"{what[0].upper()}{what[1:]}. {more}".rstrip()
    )
    parser.add_argument(
        "trace", metavar="TRACE", help="the folder of a recorded trace, run.clew, or its URL"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(run=run)
    return parser


def add_rank(parser: argparse.ArgumentParser) -> None:
    """`--rank`, for commands that can look at one rank alone."""
    parser.add_argument("--rank", type=int, metavar="N", help="look at this rank only")


def positive(text: str) -> int:
    """A count of rows, a depth: 1 or more."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 up")
    return number


def open_trace(args: argparse.Namespace) -> Trace:
    """The trace the command was given, one rank of it if `--rank` says so; never an empty one."""
    trace = clew.load(args.trace)
    rank = getattr(args, "rank", None)
    if rank is not None:
        trace = trace.only(rank=rank)
    if not len(trace):
        raise clew.ClewError(f"nothing was recorded in {args.trace}; `clew info` says more")
    return trace

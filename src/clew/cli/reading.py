"""Shared by the commands: `--json`, the TRACE argument, `--rank`, and opening the trace."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import clew
from clew.cli.commands import COMMANDS

if TYPE_CHECKING:
    from clew.traces import Trace

# Where commands are added to the command line: what `add_subparsers` gives.
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int],
    more: str = "",
) -> argparse.ArgumentParser:
    """Add a command with the trace to read and `--json`."""
    parser = add_plain_command(commands, name, run, more)
    parser.add_argument(
        "trace", metavar="TRACE", help="the folder of a recorded trace, run.clew, or its URL"
    )
    return parser


def add_plain_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int | Callable[[], int]],
    more: str = "",
) -> argparse.ArgumentParser:
    """Add a command that reads no trace, with `--json`."""
    what = COMMANDS[name]
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=what, description=f"{what[0].upper()}{what[1:]}. {more}".rstrip()
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(run=run, parser=parser)
    return parser


def add_rank(parser: argparse.ArgumentParser) -> None:
    """Add `--rank`, for commands that can read one rank only."""
    parser.add_argument("--rank", type=int, metavar="N", help="look at this rank only")


def add_ops(parser: argparse.ArgumentParser) -> None:
    """Add `--ops`, for commands that fold ops into what ran them."""
    help_text = "every op by its own name, not what ran it, such as linear"
    parser.add_argument("--ops", choices=["aten"], help=help_text)


def positive(text: str) -> int:
    """Parse a count of rows or a depth: 1 or more."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 up")
    return number


def open_trace(args: argparse.Namespace) -> Trace:
    """Open the trace the command was given, or one rank with `--rank`; raise if it is empty."""
    trace = clew.load(args.trace)
    rank = getattr(args, "rank", None)
    if rank is not None:
        trace = trace.only(rank=rank)
    if not len(trace):
        raise clew.ClewError(f"nothing was recorded in {args.trace}; `clew info` says more")
    return trace

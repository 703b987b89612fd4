"""`clew crash`: the exception that ended the program, and the note about it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from clew.cli.output import emit
from clew.cli.reading import Commands, add_command, add_rank, open_trace
from clew.plain_text import plain_lines

if TYPE_CHECKING:
    from clew.run.event import Crash


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    more = "Exits with 1 if the program crashed, with 0 if it did not."
    add_rank(add_command(commands, "crash", run, more))


def run(args: argparse.Namespace) -> int:
    """Print the exception and its note."""
    trace = open_trace(args)
    crash = trace.crash
    several = len(trace.ranks) > 1
    emit(
        args,
        lambda: {"crash": None if crash is None else crash.to_dict()},
        lambda: "no crash" if crash is None else _text(crash, several),
    )
    return 0 if crash is None else 1


def _text(crash: Crash, several: bool) -> str:
    rank = f"rank {crash.event.rank}: " if several and crash.event is not None else ""
    return plain_lines(f"{rank}{crash.exception}\n{crash.note}")

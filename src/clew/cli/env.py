"""`clew env`: print the folder that makes Python record, where a launch cannot be edited."""

from __future__ import annotations

import argparse

from clew.cli.output import emit
from clew.cli.reading import Commands, add_plain_command
from clew.launch.program import STARTUP


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    more = (
        "For programs that something else starts: PYTHONPATH=$(clew env) CLEW_RUN='--values stats' "
        "python script.py. CLEW_RUN has the options of clew run. Nothing is installed."
    )
    add_plain_command(commands, "env", run, more)


def run(args: argparse.Namespace) -> int:
    """Print the folder."""
    emit(args, lambda: {"path": STARTUP}, lambda: STARTUP)
    return 0

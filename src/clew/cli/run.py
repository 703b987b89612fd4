"""`clew run`: record a program that was not edited."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace

from clew.cli.output import complain
from clew.cli.reading import Commands, add_plain_command
from clew.launch.defaults import defaults_for
from clew.launch.options import add_options, options_of, split_program
from clew.launch.output_folder import check_output
from clew.launch.program import folder_of, start
from clew.request.switches import is_disabled


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    more = (
        "Everything after the program's name is its own. The exit code is the program's; 2 if it "
        "could not be started. Defaults come from [tool.clew] of the nearest pyproject.toml. With "
        "--json the line at the end is JSON."
    )
    parser = add_plain_command(commands, "run", run, more)
    parser.usage = "clew run [options] (script.py | -m package.module) [arguments of the program]"
    add_options(parser)


def split_words(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the words that are for this command, and those that name the program."""
    return split_program(words)


def run(args: argparse.Namespace) -> int | Callable[[], int]:
    """Check everything; return what starts the program."""
    folder = folder_of(args.program)
    options = replace(options_of(vars(args), defaults_for(folder)), complete=True)
    # They say what is wrong before the program runs.
    options.request(out=options.out)
    check_output(options.out)
    if is_disabled():
        complain("CLEW_DISABLE is set: nothing is recorded")
    return lambda: start(args.program, options, args.is_process)

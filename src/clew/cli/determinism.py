"""`clew determinism`: run a program twice, and say where the second run differs from the first."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile

from clew.analysis.diff.reruns import diff_reruns
from clew.cli.output import emit
from clew.cli.reading import Commands, add_plain_command, positive
from clew.errors import ClewError
from clew.launch.defaults import defaults_for
from clew.launch.options import RunOptions, options_of, split_program
from clew.launch.program import folder_of, start
from clew.request.switches import is_disabled
from clew.traces import load

_ROWS = 20


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    more = (
        "Everything after the program's name is its own; what it prints goes to the error stream. "
        "Exits with 0 if both runs agree bit for bit, with 1 if they differ, with 2 if the program "
        "fails."
    )
    parser = add_plain_command(commands, "determinism", run, more)
    parser.usage = "clew determinism [options] (script.py | -m package.module) [arguments]"
    parser.add_argument("--out", metavar="FOLDER", help="keep both traces, in this folder")
    parser.add_argument(
        "--rows", type=positive, metavar="N", default=_ROWS, help=f"at most so many calls ({_ROWS})"
    )


def split_words(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the words that are for this command, and those that name the program."""
    return split_program(words, ("--rows",))


def run(args: argparse.Namespace) -> int:
    """Run the program twice and print the comparison."""
    options = options_of({"values": "stats", "all": True}, defaults_for(folder_of(args.program)))
    if is_disabled():
        raise ClewError("clew determinism records runs, and CLEW_DISABLE is set: unset it")
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.out or temporary
        os.makedirs(folder, exist_ok=True)
        paths = [_recorded(args.program, options, folder, number) for number in (1, 2)]
        found = diff_reruns(*(load(path)._current_run() for path in paths))
        more = f"--rows {len(found.table)} shows all"
        emit(args, found.to_dict, lambda: found.text(args.rows, more))
    return 0 if found.equal else 1


def _recorded(program: list[str], options: RunOptions, folder: str, number: int) -> str:
    """Run the program once; return the path of its trace."""
    path = os.path.join(os.path.abspath(folder), f"run-{number}.clew")
    options = options_of({"out": path, "complete": True}, options)
    code = start(program, options, replace_process=False, output=sys.stderr)
    if code:
        raise ClewError(f"the program failed in run {number}, with the exit code {code}")
    if not os.path.exists(path):
        raise ClewError("nothing was recorded: the program never imported torch")
    return path

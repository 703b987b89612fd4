"""`clew html`: the trace and a viewer for it in one HTML file."""

from __future__ import annotations

import argparse
from pathlib import Path

from clew.cli.exist_option import add_exist
from clew.cli.output import emit
from clew.cli.reading import Commands, add_command, add_rank, open_trace, positive
from clew.store.storage import is_url


def add_parser(commands: Commands) -> None:
    """Add the command to the command line."""
    more = "It opens from disk, offline, in any browser. Exits with 1 if something did not fit."
    parser = add_command(commands, "html", run, more)
    parser.add_argument("-o", "--out", metavar="FILE", help="the file to write (TRACE.html)")
    parser.add_argument("--title", help="what the page is called")
    parser.add_argument("--events", type=positive, metavar="N", help="at most so many events")
    parser.add_argument(
        "--redact", action="store_true", help="leave out sources, paths and facts of the machine"
    )
    add_exist(parser)
    add_rank(parser)


def run(args: argparse.Namespace) -> int:
    """Write the page, and print its path."""
    trace = open_trace(args)
    out = args.out or _beside(args.trace)
    options = {} if args.events is None else {"events": args.events}
    report = trace.html(out, title=args.title, redact=args.redact, exist=args.exist, **options)
    emit(args, report.to_dict, lambda: str(report))
    return 1 if report.left_out else 0


def _beside(trace: str) -> str:
    """Return the path of the page: beside a local trace, in the current folder for a remote one."""
    path = Path(trace.rstrip("/").rpartition("/")[2] if is_url(trace) else trace)
    return str(path.with_suffix(".html"))

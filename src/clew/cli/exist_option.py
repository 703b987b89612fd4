"""Shared by the commands that write a file: `--exist`."""

from __future__ import annotations

import argparse

from clew.request.exist import EXIST


def add_exist(parser: argparse.ArgumentParser) -> None:
    """Add `--exist`, for commands that write something."""
    what = (
        "if there is one: replace it, if it is of the same kind (the default), "
        "keep it under a name with a number, or stop with an error"
    )
    parser.add_argument("--exist", choices=EXIST, default="replace", help=what)

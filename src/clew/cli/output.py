"""Output of every command: text for people, or the same as strict JSON with `--json`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from clew import views
from clew.errors import AddressSyntaxError
from clew.events.model import SCHEMA
from clew.plain_text import plain, plain_lines
from clew.views.strict_json import as_json


def emit(
    args: argparse.Namespace, data: Callable[[], dict[str, Any]], text: Callable[[], str]
) -> None:
    """Print the data with `--json`, else the text; only the one that is printed is made.

    The first key of the data is the version of its schema, which all commands share. Control codes
    in the text are escaped, except those of a view's colours.
    """
    shown = as_json({"schema": SCHEMA, **data()}, indent=2) if args.json else _guarded(text())
    sys.stdout.write(shown.rstrip("\n") + "\n")


def _guarded(text: str) -> str:
    if "\x1b" not in text:
        return plain_lines(text)
    return views.guarded(text, views.style_for().color)


def complain(text: str) -> None:
    """Print a line about what went wrong."""
    sys.stderr.write(f"clew: {plain(text)}\n")


def within(lines: list[str], rows: int | None, how: str) -> list[str]:
    """Return at most so many lines; the last says how many were left out and how to see them."""
    if rows is None or len(lines) <= rows:
        return lines
    kept = max(rows - 1, 0)
    return [*lines[:kept], f"... {len(lines) - kept:,} more lines left out; {how} shows all"]


def one_line(error: BaseException) -> str:
    """Write an error as a single line."""
    if isinstance(error, AddressSyntaxError):
        text = f"cannot read the address {error.text!r}: {error.what}; {error.instead}"
    else:
        text = str(error) or type(error).__name__
    return " ".join(text.split())

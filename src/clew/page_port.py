"""Connects `Diff.html` with `views`, which knows how to write the page of a comparison.

`traces` registers the function that writes, as it knows both; `Diff` only calls `write_page`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clew.errors import ClewError

if TYPE_CHECKING:
    from clew.views.html.report import Report

# Rows that a page holds unless more are asked for.
PAGE_ROWS = 100_000

_WRITERS: list[Callable[..., Report]] = []


def writes_pages(writer: Callable[..., Report]) -> None:
    """Register the function that writes the page of a comparison."""
    _WRITERS[:] = [writer]


def write_page(diff: object, path: str | os.PathLike[str], **options: Any) -> Report:
    """Write the page of a `Diff`; raise ClewError where nothing can."""
    if not _WRITERS:
        raise ClewError("no view of comparisons is loaded; make the Diff with clew.diff")
    return _WRITERS[0](diff, path, **options)

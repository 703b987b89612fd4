"""The register of programs: each is built anew for every run, outside what is observed.

A program is a function that makes its models and inputs and gives what runs, with the model whose
names are used, if there is one. It may use whatever torch has; it must do the same each time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Prepared:
    """What runs, and gives everything that is to be compared; the model it belongs to."""

    run: Callable[[], Any]
    model: nn.Module | None = None


PROGRAMS: dict[str, Callable[[], Prepared]] = {}


def program(build: Callable[[], Prepared]) -> Callable[[], Prepared]:
    """Enter a program under the name of its function."""
    assert build.__name__ not in PROGRAMS, f"two programs are called {build.__name__}"
    PROGRAMS[build.__name__] = build
    return build

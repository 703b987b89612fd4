"""Record programs to compare them.

Input: something to call. Output: its trace, with the statistics that a comparison needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from clew.errors import ClewError
from clew.request.switches import is_disabled
from clew.run.run import Run
from clew.session import trace
from clew.traces import Trace

# What is kept of each value: enough to tell values apart and to match them.
VALUES = "fingerprint"


def recorded(
    call: Callable[[], object], model: object = None, values: str = VALUES
) -> tuple[Trace, Any]:
    """Record a call; return the trace, and what the call returned."""
    named = model if isinstance(model, nn.Module) else None
    with trace(named, values=values) as found:
        result = call()
    return found, result


def run_of(call: Callable[[], object], model: object = None) -> Run:
    """Record a call; return the run."""
    return recorded(call, model)[0]._current_run()


def check_enabled(what: str) -> None:
    """Raise ClewError where nothing can be recorded."""
    if is_disabled():
        raise ClewError(f"{what} records runs, and CLEW_DISABLE=1 switches that off: unset it")

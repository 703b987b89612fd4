"""What tests of the native engine share: the mark that skips them, and what to ask of a trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import clew
from clew.native import loading

needs_engine = pytest.mark.skipif(
    loading.load() is None, reason=f"the native engine cannot be used: {loading.why_not()}"
)


def native_trace(model: Any = None, **settings: Any) -> Any:
    """Trace with the native engine, whatever the environment says."""
    return clew.trace(model, engine="native", **settings)


def faults(trace: Any) -> list[str]:
    """Return what failed in Clew itself."""
    return [gap.why for gap in trace.coverage if "Clew failed" in gap.why]


def op_names(trace: Any) -> list[str]:
    return [op.name for op in trace.ops]


def read_all(trace: Any) -> None:
    """Look at every op and module call, and print them."""
    for event in [*trace.ops, *trace.modules]:
        str(event)
        str([event.inputs, event.outputs, event.arguments])
    str(trace)
    trace.code()
    assert trace.env["engine"] == "native"


def plain(value: Any) -> Any:
    """Return tensors as their class, dtype and bits, in lists and dicts as they were."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, torch.Tensor):
        data = value.detach().resolve_conj().resolve_neg().reshape(-1).as_subclass(torch.Tensor)
        facts = type(value).__name__, str(value.dtype), list(value.shape)
        return *facts, data.contiguous().view(torch.uint8).tolist()
    return value


def outcome(run: Callable[[], Any]) -> Any:
    """Return what a program returns, from the same seed each time."""
    torch.manual_seed(0)
    return plain(run())


def resident_bytes() -> int:
    """Return how much memory this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

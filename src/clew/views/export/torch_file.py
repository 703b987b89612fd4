"""`.pt`: the values a trace kept, as tensors, for `torch.load(path, weights_only=True)`.

A dict from address to the list of its tensors, in the order of `Trace.series`; with
`labels=True` from address to a dict of `values`, `steps`, `ranks` and `calls`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clew import store
from clew.errors import ClewError
from clew.optional_packages import optional_package
from clew.run.run import Run
from clew.views.export.formats import Contents
from clew.views.export.kept_values import KeptValue, kept_series


def write(
    run: Run,
    target: Path,
    *,
    addresses: Sequence[str] | None = None,
    labels: bool = False,
) -> Contents:
    """Write the kept values with torch.save."""
    optional_package("torch", "the .pt export")
    left_out: list[str] = []
    read: dict[int, object] = {}
    found: dict[str, object] = {}
    written = 0
    for address, values in kept_series(run, addresses).items():
        pairs = _tensors(address, values, read, left_out)
        if not pairs:
            continue
        written += len(pairs)
        tensors = [tensor for tensor, _ in pairs]
        found[address] = tensors
        if labels:
            found[address] = {
                "values": tensors,
                "steps": [value.step for _, value in pairs],
                "ranks": [value.rank for _, value in pairs],
                "calls": [value.call for _, value in pairs],
            }
    store.save_tensors(found, target)
    return Contents(written, "value", len(found), tuple(left_out))


def _tensors(
    address: str, values: list[KeptValue], read: dict[int, object], left_out: list[str]
) -> list[tuple[object, KeptValue]]:
    """Return the tensors that can be read; a value of several addresses is one tensor in each."""
    found = []
    for value in values:
        try:
            if value.number not in read:
                read[value.number] = value.tensor()
            found.append((read[value.number], value))
        except ClewError as unreadable:
            left_out.append(f"{address}, rank {value.rank}, call {value.call}: {unreadable}")
    return found

"""Values whose data a trace kept, by address: what the HDF5, Zarr and .pt exports hold.

Input: a run. Output: address → values in the order of `Trace.series`, with rank, step and call of
each. Data is read when it is used. Knows nothing of files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from clew.address import Address, compile_pattern, parse
from clew.analysis.selection import address_of
from clew.analysis.series import Entry, entries
from clew.errors import BadTrace, NotRecorded
from clew.events.columns import IN, OUT
from clew.events.vocabulary import COMPOSITE, GATHERED, LABELLED, MODULE, OP, RECOMPUTE
from clew.run.event import Event
from clew.run.run import Run
from clew.store.format.payload_numpy import decode, described_array
from clew.store.format.payload_parts import Parts

# Tiers of addresses. The first two are always exported; another address only if it has a value that
# no address before it has. So no data is lost, and little is written twice.
_RESULTS, _PARAMETERS, _INPUTS, _OP_RESULTS, _OP_INPUTS = range(5)
# The rank of a value that was made from values of several ranks.
SEVERAL_RANKS = -1


@dataclass(frozen=True, slots=True)
class KeptValue:
    """One value whose data was kept, and where it occurred; a parameter's `call` is its version."""

    run: Run
    number: int
    rank: int
    step: int
    call: int
    module: str | None

    @property
    def dtype(self) -> str:
        """Return the dtype it was recorded with."""
        return self.run.value(self.number).dtype

    def described(self) -> tuple[np.dtype[Any] | None, tuple[int, ...]]:
        """Return the dtype and shape that the data has in NumPy, without reading it.

        The dtype is None for a sparse or quantised tensor, which is several arrays.
        """
        payload = self.run.columns.kept[self.number].payload
        assert payload is not None
        return described_array(payload)

    def parts(self) -> Parts:
        """Return the arrays that a sparse or quantised tensor is made of."""
        parts: Parts = decode(self.run.columns.kept[self.number].payload, "parts")
        return parts

    def array(self) -> np.ndarray[Any, Any]:
        """Return the data as NumPy, bf16 and fp8 as exact float32."""
        return self.run.value(self.number).array()

    def tensor(self) -> Any:
        """Return the data as a torch tensor."""
        return self.run.value(self.number).tensor()


KeptSeries = dict[str, list[KeptValue]]


def kept_series(run: Run, addresses: Sequence[str] | None) -> KeptSeries:
    """Return every value whose data was kept, or those that some addresses name, by address."""
    if isinstance(addresses, str):
        addresses = [addresses]
    found = _everything(run) if addresses is None else _selected(run, addresses)
    if not found:
        recorded = run.environment.get("values")
        of = "" if addresses is None else " of " + ", ".join(map(repr, addresses))
        raise NotRecorded(
            f"no data{of} was kept (the trace was recorded with values={recorded!r}), so there is "
            "nothing to export; record it with clew.trace(values='full'), or name it in "
            "clew.trace(capture=[...]). parquet, json, csv and chrome need no data"
        )
    return found


def _everything(run: Run) -> KeptSeries:
    tiers: list[KeptSeries] = [{}, {}, {}, {}, {}]
    for tier, address, value in _uses(run):
        tiers[tier].setdefault(address, []).append(value)
    found: KeptSeries = {}
    covered: set[int] = set()
    for tier, series in enumerate(tiers):
        for address, values in series.items():
            keys = {value.number for value in values}
            if tier <= _PARAMETERS or not keys <= covered:
                # A parameter that was captured by its name has more versions than ops read.
                told = {value.rank for value in found.get(address, ())}
                rest = [value for value in values if value.rank not in told]
                found[address] = found.get(address, []) + rest
                covered |= keys
    # If callbacks or a gather made results of the values, those are the series.
    for address in _made(run):
        found |= _series_of(run, address)
    return found


def _made(run: Run) -> list[str]:
    """Return the addresses whose values callbacks or a gather have replaced by results."""
    found: dict[str, None] = {}
    c = run.columns
    for subject in np.unique(c.subject[np.isin(c.kind, LABELLED)]).tolist():
        label = c.labels[subject]
        if label.stage is not None:
            found[f"{label.stem}:{label.role}" if label.role else label.stem] = None
    return list(found)


def _uses(run: Run) -> Iterator[tuple[int, str, KeptValue]]:
    """Yield every occurrence of a kept value in an event, with its tier and address."""
    with_data = _with_data(run)
    if not with_data:
        return
    passed_over = _passed_over(run)
    named: set[int] = set()
    versions: Counter[tuple[str, int]] = Counter()
    for row in range(len(run)):
        if row in passed_over:
            continue
        found = [(role, path, n) for role, path, n in _tensors(run, row) if n in with_data]
        if not found:
            continue
        event = run.event(row)
        is_op = run.columns.kind[row] == OP
        for role, path, number in found:
            tier, address = _place(run, event, is_op, role, path, number)
            value = _kept(run, number, event)
            if tier == _PARAMETERS:
                # One version of a parameter is one value, however many ops read it.
                if number in named:
                    continue
                named.add(number)
                value = replace(value, call=versions[address, value.rank], module=None)
                versions[address, value.rank] += 1
            yield tier, address, value


def _with_data(run: Run) -> set[int]:
    kept = run.columns.kept

    def has_data(number: int) -> bool:
        try:
            return kept[number].payload is not None
        except BadTrace:
            # The data was kept and is damaged: reading it raises an error that says so.
            return True

    return {number for number in kept if has_data(number)}


def _passed_over(run: Run) -> set[int]:
    """Return the events that no address stands for.

    These are recomputed calls, wrappers of calls, composites, whose ops give the same values, and
    gathered values, which belong to a series.
    """
    c = run.columns
    rows = [int(row) for row in run.rows(MODULE)]
    modules = {row: c.modules[int(c.subject[row])] for row in rows}
    own = {m.path for m in modules.values() if not m.wrapper}
    return {*run.rows(GATHERED).tolist(), *run.rows(COMPOSITE).tolist()} | {
        row
        for row, module in modules.items()
        if run.phase[row] == RECOMPUTE or (module.wrapper and module.path in own)
    }


def _tensors(run: Run, row: int) -> list[tuple[str, str, int]]:
    """Return role, path and number of every tensor of an event, also of an inferred result."""
    found = [(leaf.role, leaf.path, number) for leaf, number in run.leaf_values(row)]
    if run.columns.end[row] < 0 and not any(role == OUT for role, _, _ in found):
        found += [(OUT, path, value.number) for path, value in run.values_of(row, OUT).items()]
    return found


def _place(
    run: Run, event: Event, is_op: bool, role: str, path: str, number: int
) -> tuple[int, str]:
    name = int(run.columns.value_name[number])
    if role == IN and name >= 0:
        return _PARAMETERS, f"{run.columns.value_names[name]}:param"
    address = address_of(event, role, path)
    if role == IN:
        return (_OP_INPUTS if is_op else _INPUTS), address
    return (_OP_RESULTS if is_op else _RESULTS), address


def _selected(run: Run, addresses: Sequence[str]) -> KeptSeries:
    found: KeptSeries = {}
    for text in addresses:
        read = _parameters(run, parse(text))
        try:
            series = _series_of(run, text)
        except NotRecorded:
            if not read:
                raise
            series = {}
        for address, values in {**read, **series}.items():
            known = set(found.get(address, ()))
            found[address] = found.get(address, []) + [v for v in values if v not in known]
    return found


def _series_of(run: Run, text: str) -> KeptSeries:
    """Return the kept values of `Trace.series`, by the address of each."""
    with_data = _with_data(run)
    series = [e for e in entries(run, text) if e.value.number in with_data]
    found: KeptSeries = {}
    for entry, address in zip(series, _addresses(series, text), strict=True):
        value = _kept(run, entry.value.number, entry.event)
        rank = SEVERAL_RANKS if entry.rank is None else entry.rank
        found.setdefault(address, []).append(replace(value, rank=rank))
    return found


def _addresses(series: list[Entry], text: str) -> list[str]:
    """Return the address of each value of a series."""
    side = IN if parse(text).role == IN else OUT
    found = [address_of(entry.event, side, entry.path) for entry in series]
    copied = {a for a, entry in zip(found, series, strict=True) if entry.event.kind == "gathered"}
    if len(copied) == 1 and len(set(found)) == 2:
        # Copies of the only input of a call do not say which one it was: `fc:in`, not `fc:in.0`.
        return list(copied) * len(found)
    return found


def _parameters(run: Run, wanted: Address) -> KeptSeries:
    """Return the versions of parameters that ops read, as far as an address names them."""
    found: KeptSeries = {}
    if wanted.role != "param" or wanted.kind != "path":
        return found
    is_wanted = compile_pattern(wanted.path)
    for tier, address, value in _uses(run):
        version = wanted.call in (None, value.call) and wanted.rank in (None, value.rank)
        if tier == _PARAMETERS and version and is_wanted(address.removesuffix(":param")):
            found.setdefault(address, []).append(value)
    return found


def _kept(run: Run, number: int, event: Event) -> KeptValue:
    return KeptValue(run, number, event.rank, event.step, event.call, event.module)

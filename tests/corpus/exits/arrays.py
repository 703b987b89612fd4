"""Exits that hold the data of kept values: HDF5 and Zarr."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
import zarr

from clew.errors import NotRecorded
from tests.corpus.exits.case import Case, Seen, look, reads


@dataclass(frozen=True)
class Stored:
    """One value of an HDF5 or Zarr file: where it came from, and what its array says."""

    address: str
    step: int
    rank: int
    call: int
    module: str | None
    look: str
    data: bytes


@reads("hdf5")
def hdf5_file(case: Case) -> Seen:
    try:
        path = case.exported("hdf5")
    except NotRecorded:
        return Seen({})
    with h5py.File(path) as file:
        groups = [
            (group, {n: [t.decode() for t in group[n][...]] for n in _TEXTS if n in group})
            for group in file.values()
        ]
        return _from_arrays(case, [value for group in groups for value in _stored(*group)])


@reads("zarr")
def zarr_folder(case: Case) -> Seen:
    try:
        path = case.exported("zarr")
    except NotRecorded:
        return Seen({})
    groups = [
        (group, {n: list(group.attrs[n]) for n in _TEXTS if n in group.attrs})
        for _, group in zarr.open_group(str(path), mode="r").groups()
    ]
    return _from_arrays(case, [value for group in groups for value in _stored(*group)])


_TEXTS = ("modules", "dtypes")


def _stored(group: Any, texts: dict[str, list[str]]) -> list[Stored]:
    """Give the values of one address."""
    steps, ranks, calls = (group[name][...].tolist() for name in ("steps", "ranks", "calls"))
    modules = texts.get("modules", [None] * len(steps))
    arrays = _arrays(group, len(steps), texts)
    address = str(group.attrs["address"])
    return [
        Stored(address, step, rank, call, module, look(dtype, array.shape), _bytes(array))
        for step, rank, call, module, (dtype, array) in zip(
            steps, ranks, calls, modules, arrays, strict=True
        )
    ]


def _arrays(group: Any, count: int, texts: dict[str, list[str]]) -> list[tuple[str, Any]]:
    """Give the recorded dtype and the data of each value, without what fills up ragged ones."""
    values = group["values"]
    if group.attrs.get("ragged") == "apart":
        apart = [values[str(number)] for number in range(count)]
        return [
            (item.attrs["clew_dtype"], _joined(item) if "form" in item.attrs else item[...])
            for item in apart
        ]
    dtypes = texts.get("dtypes", [values.attrs["clew_dtype"]] * count)
    arrays = list(values[...])
    if "lengths" in group:
        for number, lengths in enumerate(group["lengths"][...].tolist()):
            ndim = int(group["ndims"][number])
            part = arrays[number][tuple(slice(length) for length in lengths)]
            arrays[number] = part.reshape(lengths[len(lengths) - ndim :])
    return list(zip(dtypes, map(np.asarray, arrays), strict=True))


def _joined(parts: Any) -> Any:
    """Give a sparse value, which is stored as its parts, with its zeros."""
    assert parts.attrs["form"] == "sparse_coo"
    dense = np.zeros(tuple(parts.attrs["shape"]), dtype=parts["values"].dtype)
    np.add.at(dense, tuple(parts["indices"][...]), parts["values"][...])
    return dense


def _bytes(array: Any) -> bytes:
    """Give the numbers of an array, whatever the width they are stored in."""
    return bytes(np.asarray(array).astype(np.complex128).tobytes())


def _from_arrays(case: Case, stored: list[Stored]) -> Seen:
    """Find the event that each value says it came from; what has none, or is lost, is said."""
    events: dict[int, dict[str, Any]] = {}
    kept = _kept_data(case)
    for value in stored:
        row = next((row for row in _rows_of(case, value) if _is_of(case, kept, row, value)), None)
        if row is None:
            events[-1 - len(events)] = {"address": value}
            continue
        facts = case.objects.events[row]
        found = {"step": value.step, "address": facts["address"], "looks": facts["looks"]}
        if value.rank >= 0:
            found["rank"] = value.rank
        if not value.address.endswith(":param"):
            found["call"] = value.call
        if value.module:
            found["module"] = value.module
        events.setdefault(row, {}).update(found)
    there = {(value.look, value.data) for value in stored}
    for row, values in kept.items() if not case.is_gathered else ():
        for lost in set(values) - there:
            events[-1 - len(events)] = {"address": f"row {row}: {lost[0]} was not exported"}
    return Seen(events)


def _kept_data(case: Case) -> dict[int, list[tuple[str, bytes]]]:
    """Give the looks and the data of the numbers that were kept, for each event that has some."""
    found: dict[int, list[tuple[str, bytes]]] = {}
    for event in case.trace.events:
        for value in (*event.inputs.values(), *event.outputs.values()):
            try:
                array = value.array()
            except NotRecorded:
                continue
            if array.dtype.kind in "biufc":
                key = look(value.dtype, value.shape), _bytes(array)
                found.setdefault(event.row, []).append(key)
    return found


def _rows_of(case: Case, value: Stored) -> list[int]:
    """Give the events that have the address of a value, or that read it if it is a parameter."""
    stem = re.sub(r":(in|out)(\..*)?$", "", value.address)
    found = []
    for row, facts in case.objects.events.items():
        mine = re.sub(r"#\d+(?=(:[^#]*)?$)", "", facts["address"])
        # Of a gradient or a state that is several tensors each has a path.
        is_part = ":" in mine and value.address.startswith(f"{mine}.")
        if facts["call"] == value.call and (mine in (value.address, stem) or is_part):
            found.append(row)
    if not found and value.address.endswith(":param"):
        name = value.address.removesuffix(":param")
        return [e.row for e in case.trace.events if name in {v.name for v in e.inputs.values()}]
    return found


def _is_of(case: Case, kept: dict[int, Any], row: int, value: Stored) -> bool:
    """Tell whether an event is of the rank and step of a value, and has its data."""
    facts = case.objects.events[row]
    of_rank = value.rank in (facts["rank"], -1)
    has_data = (value.look, value.data) in kept.get(row, ())
    return of_rank and facts["step"] == value.step and has_data

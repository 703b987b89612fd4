"""A trace on disk, read: whole or still growing, sealed or left behind by a kill.

In comes a folder, out come readers, one per rank. Only the manifest is touched on opening; rows
are read when first asked for, payloads one by one. Whatever is damaged is left out and said.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from clew.errors import BadTrace
from clew.events.columns import COLUMN_NAMES, SCHEMA_VERSION, Columns, Ints
from clew.events.digest import checksum
from clew.events.model import Gap
from clew.events.records import KINDS, Kept, Payload
from clew.store.compact import Part
from clew.store.memory import in_order
from clew.store.reader import Reader
from clew.store.rows import (
    load_gap,
    load_meta,
    load_module,
    load_parameter,
    load_place,
    load_template,
)
from clew.store.schema import FORMAT, SCHEMAS, STAT_NAMES
from clew.store.shards import read_range

_LOADERS: dict[str, Callable[[str], Any]] = {
    "op": json.loads, "note": json.loads, "error": json.loads, "value_name": json.loads,
    "thread": json.loads, "meta": load_meta, "template": load_template, "place": load_place,
    "module": load_module, "parameter": load_parameter, "gap": load_gap,
}  # fmt: skip


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a trace, checked."""
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadTrace(
            f"{folder} is not a trace: it has no manifest.json; give the folder that "
            "clew.trace(out=...) or Trace.save() wrote"
        ) from None
    except (OSError, ValueError) as broken:
        raise BadTrace(f"{path} cannot be read: {broken}") from broken
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise BadTrace(f"{path} is not the manifest of a trace")
    version = manifest.get("version")
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise BadTrace(
            f"{folder} has format version {version!r}, this Clew reads up to {SCHEMA_VERSION}; "
            "upgrade Clew"
        )
    return manifest


def open_folder(folder: Path) -> list[Reader]:
    """A reader for each rank of a trace."""
    read_manifest(folder)
    ranks = sorted(p for p in folder.glob("rank=*") if p.is_dir())
    if not ranks:
        raise BadTrace(f"{folder} holds no rank=* folder: nothing was recorded into it")
    return [Reader(read_rank(rank)) for rank in ranks]


def read_rank(folder: Path) -> Columns:
    """The columns of one rank's files."""
    damage: list[Gap] = []
    # Events first: what they point at was written before them, so it is there by now.
    events = _table(folder, "events", damage)
    values = _table(folder, "values", damage)
    tables = _tables(_table(folder, "tables", damage), damage)
    try:
        return _columns(folder, events, values, tables, damage)
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, pa.ArrowException) as bad:
        raise BadTrace(f"{folder} is damaged: {type(bad).__name__}: {bad}") from bad


def _parts(folder: Path, table: str) -> Iterator[Path]:
    """The parts of a table in order, a live one only where no sealed one replaces it."""
    stems = {p.stem: p for p in sorted(folder.glob(f"{table}-*.arrows"))}
    stems.update({p.stem: p for p in folder.glob(f"{table}-*.parquet")})
    for stem in sorted(stems):
        yield stems[stem]


def _table(folder: Path, table: str, damage: list[Gap]) -> pa.Table:
    schema = SCHEMAS[table]
    found = []
    for path in _parts(folder, table):
        try:
            part = _read_live(path, damage) if path.suffix == ".arrows" else pq.read_table(path)
            found.append(part.select(schema.names).cast(schema))
        except (pa.ArrowException, OSError, ValueError, KeyError) as broken:
            damage.append(
                Gap("events", path.name, f"this part cannot be read ({broken})",
                    "the other parts are shown")
            )  # fmt: skip
    return pa.concat_tables(found) if found else schema.empty_table()


def _read_live(path: Path, damage: list[Gap]) -> pa.Table:
    """The batches of a stream up to where it ends or breaks off."""
    batches = []
    with open(path, "rb") as file:
        try:
            with pa.ipc.open_stream(file) as stream:
                schema = stream.schema
                for batch in stream:
                    batch.validate()
                    batches.append(batch)
        except (pa.ArrowException, OSError, EOFError) as end:
            if not batches:
                raise
            if "Expected to be able to read" in str(end) or "corrupt" in str(end).lower():
                damage.append(
                    Gap("the last events", path.name, f"the file breaks off ({end})",
                        "everything before is shown")
                )  # fmt: skip
    return pa.Table.from_batches(batches, schema=schema)


def _tables(table: pa.Table, damage: list[Gap]) -> dict[str, Any]:
    rows: dict[str, dict[int, Any]] = {name: {} for name in _LOADERS}
    sources: dict[str, str] = {}
    environment: dict[str, Any] = {}
    for name, number, text in zip(
        table["table"].to_pylist(), table["number"].to_pylist(), table["row"].to_pylist(),
        strict=True,
    ):  # fmt: skip
        try:
            if name == "source":
                file, source = json.loads(text)
                sources[str(file)] = str(source)
            elif name == "environment":
                environment = dict(json.loads(text))
            else:
                rows[name][number] = _LOADERS[name](text)
        except (ValueError, KeyError, TypeError, IndexError) as broken:
            damage.append(Gap("a table row", f"{name} {number}", str(broken), "it is left out"))
    return {
        "rows": {name: [found[n] for n in sorted(found)] for name, found in rows.items()},
        "sources": sources,
        "environment": environment,
    }


def _columns(
    folder: Path, events: pa.Table, values: pa.Table, tables: dict[str, Any], damage: list[Gap]
) -> Columns:
    rows = tables["rows"]
    columns = {name: np.zeros(0, dtype=np.int64) for name in COLUMN_NAMES}
    events = _newest(events)
    for name in ("id", "start", "subject", "place", "number", "template"):
        columns[name] = _ints(events[name])
    columns["parent"] = _ints(events["parent"])
    columns["end"] = _ints(events["end"])
    columns["step"] = np.zeros(len(events), dtype=np.int64)
    kinds = {name: index for index, name in enumerate(KINDS)}
    columns["kind"] = np.array([kinds[k] for k in events["kind"].to_pylist()], dtype=np.int64)
    errors = events["error"].to_pylist()
    numbers = {text: index for index, text in enumerate(dict.fromkeys(e for e in errors if e))}
    columns["error"] = np.array([numbers[e] if e else -1 for e in errors], dtype=np.int64)
    refs = events["values"].combine_chunks()
    lengths = np.array([0 if r is None else len(r) for r in refs.to_pylist()], dtype=np.int64)
    columns["first_ref"] = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])[:-1]
    columns["refs"] = _ints(refs.flatten())
    facts = values.filter(pa.compute.greater_equal(values["meta"], 0))
    _check_numbers(_ints(facts["value"]))
    for name in ("version", "storage", "meta", "grad", "producer", "value_name"):
        columns[name] = _ints(facts[name])
    _check_bounds(columns, rows)
    return Columns(
        **in_order([Part(columns, {})]),
        ops=rows["op"],
        modules=rows["module"],
        notes=rows["note"],
        places=rows["place"],
        templates=rows["template"],
        metas=rows["meta"],
        errors=list(numbers),
        value_names=rows["value_name"],
        parameters=rows["parameter"],
        threads=rows["thread"],
        sources=tables["sources"],
        kept=KeptOnDisk(folder, values),
        gaps=[*rows["gap"], *damage],
        environment={"clock": 0, **tables["environment"]},
        rank=int(folder.name.partition("=")[2]),
    )


def _newest(events: pa.Table) -> pa.Table:
    """Each event once: a call written while open comes again when it ends."""
    ids = _ints(events["id"])
    reversed_ids = ids[::-1]
    _, last = np.unique(reversed_ids, return_index=True)
    keep = np.sort(len(ids) - 1 - last)
    return events if len(keep) == len(ids) else events.take(pa.array(keep))


def _ints(column: Any) -> Ints:
    filled = pa.compute.fill_null(column, -1)
    array: Ints = np.asarray(filled.to_numpy(zero_copy_only=False) if isinstance(filled, pa.Array)
                             else filled.to_numpy(), dtype=np.int64)  # fmt: skip
    return array


def _check_numbers(numbers: Ints) -> None:
    if not np.array_equal(numbers, np.arange(len(numbers))):
        raise ValueError("values are missing")


def _check_bounds(columns: dict[str, Ints], rows: dict[str, list[Any]]) -> None:
    """Every number points at a row that is there, so that reading cannot go astray."""
    values = len(columns["meta"])
    limits = {
        "template": len(rows["template"]), "place": len(rows["place"]), "refs": values,
        "meta": len(rows["meta"]),
    }  # fmt: skip
    for name, limit in limits.items():
        column = columns[name]
        if len(column) and not (int(column.min()) >= 0 and int(column.max()) < limit):
            raise ValueError(f"{name} points outside its table")
    if len(columns["value_name"]) and int(columns["value_name"].max()) >= len(rows["value_name"]):
        raise ValueError("value_name points outside its table")
    subjects = {0: len(rows["module"]), 1: len(rows["op"]), 2: len(rows["note"])}
    for kind, limit in subjects.items():
        mine = columns["subject"][columns["kind"] == kind]
        if len(mine) and not (int(mine.min()) >= 0 and int(mine.max()) < limit):
            raise ValueError("subject points outside its table")
    for number, place in enumerate(rows["place"]):
        if not -1 <= place.parent < number or not 0 <= place.phase < 5 or place.thread < 0:
            raise ValueError(f"place {number} is out of order")
    needed = np.array([len(t.tensors) for t in rows["template"]], dtype=np.int64)
    have = np.diff(np.append(columns["first_ref"], len(columns["refs"])))
    if len(have) and not np.array_equal(needed[columns["template"]], have):
        raise ValueError("events and their tensors do not fit together")


class KeptOnDisk(Mapping[int, Kept]):
    """What was kept of values, read when asked for."""

    def __init__(self, folder: Path, values: pa.Table) -> None:
        self._folder = folder
        self._values = values
        has = pa.compute.or_(
            pa.compute.is_valid(values["count"]), pa.compute.is_valid(values["length"])
        )
        rows: Any = np.flatnonzero(np.asarray(has.to_numpy(), dtype=bool)) if len(values) else []
        numbers = _ints(values["value"])
        self._rows = {int(numbers[row]): int(row) for row in rows}

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows)

    def __getitem__(self, number: int) -> Kept:
        row = self._values.slice(self._rows[number], 1).to_pylist()[0]
        stats = None
        if row["count"] is not None:
            stats = {name: row[name] for name in STAT_NAMES if row[name] is not None}
        return Kept(stats, None if row["length"] is None else self._payload(number, row))

    def _payload(self, number: int, row: dict[str, Any]) -> Payload:
        data = row["data"]
        if data is None:
            data = read_range(self._folder, row["shard"], row["offset"], row["length"])
        if data is None or checksum(data) != row["checksum"]:
            raise BadTrace(
                f"the data of value {number} in {self._folder} is damaged or missing; "
                "its facts and statistics are still readable"
            )
        return Payload(row["data_dtype"], tuple(row["data_shape"]), data)

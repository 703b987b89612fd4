"""Exits that are tables of events: the folder by DuckDB, pandas, columns, CSV, Parquet."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import duckdb

from clew.events.model import Gap
from tests.corpus.exits.case import Case, Numbers, Seen, call_number, counts, plain, reads


@reads("duckdb")
def folder(case: Case) -> Seen:
    """Ask DuckDB, with the rank of the column: of its own accord it takes the folder's."""
    events = {}
    values = _stored_values(case)
    for process, row in _query(case, "events", "*"):
        held = [values[process, number] for number in row["values"]]
        taken = len(row["inputs"])
        events[case.processes[process, row["id"]]] = {
            **_table_facts(row),
            "looks": (row["inputs"], row["outputs"]),
            # Arguments come before results.
            "values": (held[:taken], held[taken:]),
        }
    kinds = [row["kind"] for _, row in _query(case, "events", "kind")]
    gaps = [row["row"] for _, row in _query(case, "tables", "row", "\"table\" = 'gap'")]
    coverage = [str(Gap(*json.loads(gap))) for gap in dict.fromkeys(gaps)]
    return Seen(events, {"counts": counts(kinds), "coverage": coverage})


def _stored_values(case: Case) -> dict[tuple[int, int], Numbers]:
    """Give the statistics of values by rank and number; what comes again is what was kept."""
    found: dict[tuple[int, int], Numbers] = {}
    for process, row in _query(case, "values", 'value, "min", "max", nan, "inf", "count"'):
        taken = None
        if row["count"] is not None:
            taken = plain(row["min"]), plain(row["max"]), row["nan"], row["inf"]
        number = process, row["value"]
        found[number] = taken or found.get(number)
    return found


def _query(case: Case, table: str, columns: str, where: str = "true") -> list[Any]:
    """Give the rows of a table of the folder, each with the rank that recorded it."""
    files = f"{case.path}/rank=*/{table}-*.parquet"
    found = duckdb.sql(
        f"SELECT {columns}, filename FROM read_parquet('{files}', hive_partitioning=false, "
        f"filename=true) WHERE {where} ORDER BY filename, file_row_number"
    )
    names = found.columns
    rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    return [(int(Path(row["filename"]).parent.name.partition("=")[2]), row) for row in rows]


def _table_facts(row: dict[str, Any]) -> dict[str, Any]:
    """Give the facts of a row of the event table, whoever has read it."""
    texts = {n: _given(row[n]) for n in ("module", "address", "phase", "file")}
    counted = row["nan"] is not None and not math.isnan(row["nan"])
    return {
        "module": texts["module"],
        "address": texts["address"],
        "phase": texts["phase"],
        "line": None if texts["file"] is None else (texts["file"], int(row["line"])),
        "step": int(row["step"]),
        "call": call_number(row["call"]),
        "rank": int(row["rank"]),
        "results": (plain(row["min"]), plain(row["max"]), int(row["nan"]), int(row["inf"]))
        if counted
        else None,
    }


def _given(text: Any) -> str | None:
    """Give a text, None for what stands for none, such as the NaN of pandas."""
    return text if isinstance(text, str) else None


def _from_columns(columns: dict[str, list[Any]]) -> Seen:
    """Read columns whose rows are those of the run."""
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    events = {number: _table_facts(row) for number, row in enumerate(rows)}
    return Seen(events, {"counts": counts(columns["kind"])})


@reads("pandas")
def data_frame(case: Case) -> Seen:
    frame = case.trace.to_pandas()
    return _from_columns({name: frame[name].tolist() for name in frame})


@reads("table")
def table(case: Case) -> Seen:
    return _from_columns(case.trace.table().columns())


@reads("csv")
def csv_file(case: Case) -> Seen:
    """Read the file, in which an empty cell is the root as well as no module at all."""
    with open(case.exported("csv"), encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    columns: dict[str, list[Any]] = {
        name: list(column) for name, column in zip(header, zip(*rows, strict=True), strict=True)
    }
    for name in ("line", "step", "call", "rank", "min", "max", "nan", "inf"):
        columns[name] = [None if text == "" else float(text) for text in columns[name]]
    columns["file"] = [text or None for text in columns["file"]]
    seen = _from_columns(columns)
    for facts in seen.events.values():
        if not facts["module"]:
            del facts["module"]
    return seen


@reads("parquet")
def parquet_file(case: Case) -> Seen:
    found = duckdb.sql(f"SELECT * FROM read_parquet('{case.exported('parquet')}')")
    names = found.columns
    rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    seen = _from_columns({name: [row[name] for row in rows] for name in names})
    for number, row in enumerate(rows):
        seen.events[number]["looks"] = row["inputs"], row["outputs"]
    return seen

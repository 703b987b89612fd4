"""Traces that no program wrote: small files that stand for huge things.

Each function of `ATTACKS` takes the folder of an honest trace and turns it into a hostile one. The
files are valid Parquet and Arrow: what is wrong with them is what they say.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from clew.store.format.live_stream import LiveFile
from clew.store.format.schema import SCHEMAS

Attack = Callable[[Path], None]
ATTACKS: dict[str, Attack] = {}
HONEST = Path(__file__).parent / "corpus" / "traces" / "steps.clew"


def attack(make: Attack) -> Attack:
    """List an attack by its name."""
    ATTACKS[make.__name__] = make
    return make


def make(name: str, folder: Path) -> Path:
    """Write the trace of an attack into a folder; the trace."""
    path = folder / f"{name}.clew"
    shutil.copytree(HONEST, path)
    ATTACKS[name](path)
    return path


def part(trace: Path, table: str, number: int = 0, rank: int = 0) -> Path:
    """The sealed part of a table."""
    return trace / f"rank={rank:05d}" / f"{table}-{number:05d}.parquet"


def read(trace: Path, table: str) -> list[dict[str, Any]]:
    """The rows of an honest trace's table."""
    return pq.ParquetFile(part(trace, table)).read().to_pylist()


def write(trace: Path, table: str, rows: pa.Table | list[dict[str, Any]], **options: Any) -> None:
    """Write a table's only part anew."""
    if isinstance(rows, list):
        rows = pa.Table.from_pylist(rows, schema=SCHEMAS[table])
    options = {"compression": "zstd", "store_schema": False} | options
    pq.write_table(rows, part(trace, table), **options)
    part(trace, table).with_name(f".{table}-00000.footer").unlink(missing_ok=True)


def repeated(table: str, row: dict[str, Any], count: int, **columns: Any) -> pa.Table:
    """One row many times, with some columns of their own."""
    arrays = []
    for field in SCHEMAS[table]:
        column = columns.get(field.name, [row.get(field.name)])
        if not isinstance(column, pa.DictionaryArray):
            column = pa.array(column, field.type)
        if field.name not in columns:
            column = column.take(pa.array(np.zeros(count, dtype=np.int64)))
        arrays.append(column)
    return pa.table(arrays, names=SCHEMAS[table].names)


def shared(text: str, count: int) -> pa.DictionaryArray:
    """A column in which all rows have one text."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, dtype=np.int32)), [text])


def an_op(trace: Path) -> dict[str, Any]:
    """An op of an honest trace, outside any call."""
    row = next(row for row in read(trace, "events") if row["kind"] == "op")
    return row | {"parent": None, "owner": None}


def many_ops(trace: Path, count: int, **columns: Any) -> None:
    """As many ops as wanted, each with an id and a time of its own."""
    ids = np.arange(count)
    columns = {"id": ids, "start": ids * 7919 % 99991 + ids * 10**4} | columns
    write(trace, "events", repeated("events", an_op(trace), count, **columns))


def add_rows(trace: Path, table: str, rows: list[Any], start: int | None = None) -> int:
    """Add rows to a numbered table; the number of the first."""
    held = read(trace, "tables")
    if start is None:
        start = 1 + max((r["number"] for r in held if r["table"] == table), default=-1)
    held += [
        {"table": table, "number": start + n, "row": json.dumps(row)} for n, row in enumerate(rows)
    ]
    write(trace, "tables", held)
    return start


def change(trace: Path, table: str, **columns: Any) -> None:
    """Give every row of a table other columns: a value, or a function of the row."""
    rows = read(trace, table)
    for row in rows:
        for name, new in columns.items():
            row[name] = new(row) if callable(new) else new
    write(trace, table, rows)


# Rows without end


def _run_length(trace: Path, table: str, count: int, row: dict[str, Any]) -> None:
    """Many equal rows, as runs of one value in one row group."""
    schema = SCHEMAS[table]
    with pq.ParquetWriter(
        part(trace, table), schema, compression="zstd", store_schema=False,
        write_statistics=False, data_page_size=1 << 30,
    ) as writer:  # fmt: skip
        rows = repeated(table, row, 100_000).cast(schema)
        for _ in range(count // 100_000):
            writer.write_table(rows, row_group_size=100_000)
    part(trace, table).with_name(f".{table}-00000.footer").unlink(missing_ok=True)


@attack
def events_run_length(trace: Path) -> None:
    _run_length(trace, "events", 500_000, an_op(trace))


@attack
def values_run_length(trace: Path) -> None:
    _run_length(trace, "values", 500_000, read(trace, "values")[2])


@attack
def tables_run_length(trace: Path) -> None:
    _run_length(trace, "tables", 2_000_000, {"table": "mode", "number": 0, "row": '[0,"train"]'})


@attack
def tables_other_run_length(trace: Path) -> None:
    """Rows of no table at all."""
    _run_length(trace, "tables", 2_000_000, {"table": "", "number": 0, "row": ""})


@attack
def dense_events(trace: Path) -> None:
    """Events whose ids count up, packed as differences: next to no bytes a row."""
    count = 500_000
    row = an_op(trace) | {"address": "", "start": 0, "end": 1}
    table = repeated("events", row, count, id=np.arange(count))
    write(
        trace, "events", table, use_dictionary=[n for n in table.column_names if n != "id"],
        column_encoding={"id": "DELTA_BINARY_PACKED"}, write_statistics=False,
    )  # fmt: skip


@attack
def dense_values(trace: Path) -> None:
    count = 500_000
    row = read(trace, "values")[2]
    table = repeated("values", row, count, value=np.arange(count))
    write(
        trace, "values", table, use_dictionary=[n for n in table.column_names if n != "value"],
        column_encoding={"value": "DELTA_BINARY_PACKED"}, write_statistics=False,
    )  # fmt: skip


@attack
def dense_tables(trace: Path) -> None:
    count = 500_000
    table = repeated("tables", {"table": "op", "number": 0, "row": '"x"'}, count,
                     number=np.arange(count))  # fmt: skip
    write(
        trace, "tables", table, use_dictionary=["table", "row"],
        column_encoding={"number": "DELTA_BINARY_PACKED"}, write_statistics=False,
    )  # fmt: skip


@attack
def many_parts(trace: Path) -> None:
    """Thousands of small parts, each with a run of equal rows."""
    write(trace, "events", repeated("events", an_op(trace), 50_000))
    for number in range(1, 60):
        shutil.copyfile(part(trace, "events"), part(trace, "events", number))


@attack
def many_row_groups(trace: Path) -> None:
    write(trace, "tables", read(trace, "tables") * 4, row_group_size=1)


@attack
def many_ranks(trace: Path) -> None:
    for rank in range(1, 300):
        (trace / f"rank={rank:05d}").mkdir()


@attack
def many_small_ranks(trace: Path) -> None:
    """Ranks that say little, with a thread of a high number."""
    add_rows(trace, "place", [[-1, "a.py", "f", 1, 1, 0, 0, False, 0, 65535]])
    number = len([r for r in read(trace, "tables") if r["table"] == "place"]) - 1
    many_ops(trace, 1, place=[number])
    (part(trace, "values")).unlink()
    for rank in range(1, 60):
        shutil.copytree(trace / "rank=00000", trace / f"rank={rank:05d}")


# Numbers without end


def _id(trace: Path, number: int) -> None:
    rows = read(trace, "events")
    rows[-1]["id"] = number
    write(trace, "events", rows)


@attack
def event_id_billion(trace: Path) -> None:
    _id(trace, 10**9)


@attack
def event_id_huge(trace: Path) -> None:
    _id(trace, 2**62)


@attack
def event_id_largest(trace: Path) -> None:
    _id(trace, 2**63 - 1)


@attack
def value_numbers_huge(trace: Path) -> None:
    rows = read(trace, "values")
    for number, row in enumerate(rows):
        row["value"] = [number * 10**6, 2**62 + number, -number][number % 3]
    write(trace, "values", rows)


@attack
def value_numbers_sparse(trace: Path) -> None:
    """A million more than there is."""
    row = read(trace, "values")[2]
    write(trace, "values", repeated("values", row, 2, value=[0, 1_000_000]))
    for rank in range(1, 30):
        shutil.copytree(trace / "rank=00000", trace / f"rank={rank:05d}")


@attack
def row_numbers_sparse(trace: Path) -> None:
    for rank in range(1, 30):
        shutil.copytree(trace / "rank=00000", trace / f"rank={rank:05d}")
        for table in ("op", "place", "template", "meta", "label", "note", "value_name", "thread"):
            row = {"table": table, "number": 65_000, "row": '"x"'}
            rows = pa.Table.from_pylist([row], schema=SCHEMAS["tables"])
            pq.write_table(rows, part(trace, "tables", 1, rank), store_schema=False)


@attack
def row_numbers_huge(trace: Path) -> None:
    change(trace, "tables", number=lambda row: row["number"] * 2**40)


@attack
def negative_numbers(trace: Path) -> None:
    change(trace, "events", **{
        name: -(2**60) for name in
        ("parent", "call", "step", "line", "start", "end", "forward", "owner", "source", "subject",
         "place", "number", "template") if name != "line"
    })  # fmt: skip


@attack
def huge_numbers(trace: Path) -> None:
    change(trace, "events", **dict.fromkeys(
        ("call", "step", "start", "end", "forward", "owner", "source", "number"), 2**63 - 1
    ))  # fmt: skip


@attack
def huge_steps(trace: Path) -> None:
    change(trace, "events", step=lambda row: 2**62 - row["id"],
           subject=lambda row: 2**62 if row["kind"] == "step" else row["subject"])  # fmt: skip
    add_rows(trace, "mode", [[2**62, "train"], [-5, "eval"], [2**63 - 1, "train"]])


@attack
def huge_lines(trace: Path) -> None:
    rows = read(trace, "tables")
    for row in rows:
        if row["table"] == "place":
            place = json.loads(row["row"])
            place[3:7] = [2**62] * 4
            row["row"] = json.dumps(place)
    write(trace, "tables", rows)


@attack
def huge_ranks_of_labels(trace: Path) -> None:
    label = ["gathered", "x", "x", None, None, None, None, None, 2**62]
    from clew.events.vocabulary import KINDS, LABELLED

    label[0] = LABELLED[-1]
    number = add_rows(trace, "label", [[kind, *label[1:]] for kind in LABELLED])
    rows = read(trace, "events")
    for n, row in enumerate(rows):
        row["kind"] = KINDS[LABELLED[n % len(LABELLED)]]
        row["subject"] = number + n % len(LABELLED)
    write(trace, "events", rows)


@attack
def times_apart(trace: Path) -> None:
    """Two ranks whose clocks are as far apart as numbers go."""
    shutil.copytree(trace / "rank=00000", trace / "rank=00001")
    rows = read(trace, "tables")
    for row in rows:
        if row["table"] == "environment":
            row["row"] = json.dumps(json.loads(row["row"]) | {"time": 4e18, "clock": -(2**61)})
    write(trace, "tables", rows)


@attack
def world_size_huge(trace: Path) -> None:
    manifest = json.loads((trace / "manifest.json").read_text())
    (trace / "manifest.json").write_text(json.dumps(manifest | {"world_size": 1_000_000}))


# Text that unfolds


@attack
def long_names(trace: Path) -> None:
    number = add_rows(trace, "op", ["n" * 3900])
    many_ops(trace, 60_000, subject=np.full(60_000, number))


@attack
def long_module_paths(trace: Path) -> None:
    """Paths of modules, as derived."""
    many_ops(trace, 60_000, module=shared("m." * 1900, 60_000))


@attack
def long_files(trace: Path) -> None:
    number = add_rows(trace, "place", [[-1, "f" * 10**6, "g" * 10**6, 1, 1, 0, 0, False, 0, 0]])
    many_ops(trace, 60_000, place=np.full(60_000, number), source=np.full(60_000, number))


@attack
def long_errors(trace: Path) -> None:
    many_ops(trace, 60_000, error=shared("e" * 10**5, 60_000))


@attack
def long_thread_names(trace: Path) -> None:
    add_rows(trace, "thread", ["t" * 10**6], start=0)
    many_ops(trace, 60_000)


@attack
def long_prefixes(trace: Path) -> None:
    many_ops(trace, 60_000, prefix=shared("p" * 3900, 60_000))


@attack
def many_dimensions(trace: Path) -> None:
    shape = [3] * 20_000
    number = add_rows(trace, "meta", [["float32", shape, shape, "cpu", "strided", "T", None, None]])
    change(trace, "values", meta=number)
    many_ops(trace, 30_000)


@attack
def text_in_pages(trace: Path) -> None:
    """One text of 50 MB, which compresses to nothing."""
    held = read(trace, "tables")
    held.append({"table": "source", "number": 99, "row": json.dumps(["a.py", "x" * (50 << 20)])})
    write(trace, "tables", held)


@attack
def huge_environment(trace: Path) -> None:
    held = read(trace, "tables")
    text = '{"a":[' + "[]," * 6_000_000 + "0]}"
    held.append({"table": "environment", "number": 1, "row": text})
    write(trace, "tables", held)


# What is shared by many


@attack
def wide_templates(trace: Path) -> None:
    leaves = [["in", str(n), ["value", 1]] for n in range(30_000)]
    op = an_op(trace)
    rows = read(trace, "tables")
    own = next(r for r in rows if r["table"] == "template" and r["number"] == op["template"])
    number = add_rows(trace, "template", [leaves + json.loads(own["row"])])
    many_ops(trace, 3_000, template=np.full(3_000, number))


@attack
def wide_calls(trace: Path) -> None:
    """Events of many tensors, all of them the same."""
    tensors = 500
    leaves = [["in", str(n), ["tensor"]] for n in range(tensors)]
    number = add_rows(trace, "template", [leaves])
    count = 20_000
    lists = pa.ListArray.from_arrays(
        np.arange(count + 1, dtype=np.int32) * tensors, np.zeros(count * tensors, dtype=np.int64)
    )
    many_ops(trace, count, template=np.full(count, number), values=lists)


@attack
def deep_stacks(trace: Path) -> None:
    deep = [[n - 1, "a.py", "f", 1, 1, 0, 0, False, 0, 0] for n in range(60_000)]
    rows = [row for row in read(trace, "tables") if row["table"] != "place"]
    rows += [{"table": "place", "number": n, "row": json.dumps(row)} for n, row in enumerate(deep)]
    write(trace, "tables", rows)
    many_ops(trace, 30_000, place=np.full(30_000, len(deep) - 1), source=np.full(30_000, 0))


@attack
def deep_calls(trace: Path) -> None:
    """Calls nested deeper than any program calls."""
    count = 20_000
    row = next(row for row in read(trace, "events") if row["kind"] == "module")
    ids = np.arange(count)
    write(
        trace, "events",
        repeated("events", row, count, id=ids, parent=ids - 1, start=ids * 10, end=10**7 - ids,
                 owner=ids),
    )  # fmt: skip


@attack
def deep_and_wide_calls(trace: Path) -> None:
    """Calls nested 10,000 deep, with many ops at the bottom."""
    deep, count = 10_000, 60_000
    row = next(row for row in read(trace, "events") if row["kind"] == "module")
    ids = np.arange(count)
    op = an_op(trace)
    inner = [op[n] for n in ("subject", "template", "values")]
    outer = [row[n] for n in ("subject", "template", "values")]
    columns = {
        name: [outer[at]] * deep + [inner[at]] * (count - deep)
        for at, name in enumerate(("subject", "template", "values"))
    }
    write(
        trace, "events",
        repeated("events", row, count, id=ids, parent=np.minimum(ids - 1, deep - 1),
                 kind=["module"] * deep + ["op"] * (count - deep), start=ids * 10,
                 end=10**7 - ids, owner=np.minimum(ids, deep - 1), **columns),
    )  # fmt: skip


@attack
def many_threads(trace: Path) -> None:
    places = [[-1, "a.py", "f", 1, 1, 0, 0, False, 0, n] for n in range(20_000)]
    number = add_rows(trace, "place", places)
    many_ops(trace, 20_000, place=number + np.arange(20_000))


@attack
def same_ids(trace: Path) -> None:
    many_ops(trace, 200_000, id=np.zeros(200_000, dtype=np.int64))


@attack
def values_in_a_ring(trace: Path) -> None:
    """Data that is another value's, in a circle."""
    rows = read(trace, "values")
    for row in rows:
        row |= {"data_of": (row["value"] + 1) % len(rows), "length": 8, "data_dtype": "numpy:V0",
                "data_shape": [2**40], "checksum": 0}  # fmt: skip
    write(trace, "values", rows)


@attack
def some_statistics_missing(trace: Path) -> None:
    change(trace, "values", nan=None, inf=None, std=None, zeros=None)


@attack
def statistics_alone(trace: Path) -> None:
    change(trace, "values", min=None, max=None, mean=None, norm=None, count=2**62, nan=2**62)


@attack
def lists_run_length(trace: Path) -> None:
    """One event with a list of ten million values, all the same."""
    count = 10_000_000
    lists = pa.ListArray.from_arrays(
        np.array([0, count], dtype=np.int32), np.zeros(count, dtype=np.int64)
    )
    write(trace, "events", repeated("events", an_op(trace), 1, values=lists))


@attack
def shapes_run_length(trace: Path) -> None:
    count = 10_000_000
    lists = pa.ListArray.from_arrays(
        np.array([0, count], dtype=np.int32), np.zeros(count, dtype=np.int64)
    )
    row = read(trace, "values")[2] | {"length": 0, "data_dtype": "float32"}
    write(trace, "values", repeated("values", row, 1, data_shape=lists))


# Live parts


@attack
def live_damage(trace: Path) -> None:
    """A stream with a torn message after each whole one."""
    path = part(trace, "tables").with_suffix(".arrows")
    live = LiveFile(path, SCHEMAS["tables"])
    row = {"table": "op", "number": 0, "row": '"x"'}
    batch = pa.RecordBatch.from_pylist([row], schema=SCHEMAS["tables"])
    live.write(batch)
    live.close()
    whole = path.read_bytes()
    begin = len(SCHEMAS["tables"].serialize())
    message = whole[begin:]
    torn = b"\xff\xff\xff\xff\xff\xff\xff\x00" * 4
    path.write_bytes(whole[:begin] + (torn + message) * 2_000)
    part(trace, "tables").unlink()


@attack
def live_marks(trace: Path) -> None:
    """A stream of nothing but beginnings of messages that would be large."""
    path = part(trace, "tables").with_suffix(".arrows")
    LiveFile(path, SCHEMAS["tables"]).close()
    begin = path.read_bytes()
    path.write_bytes(begin + b"\x00" * 8 + b"\xff\xff\xff\xff\x00\x00\x0f\x00" * 100_000)
    part(trace, "tables").unlink()

"""The columns of one rank, read from the parts of its tables.

Input: the folder of a rank. Output: its `Columns`, how many events it declares at its end, and what
could not be read. Whatever the files hold, every number in the columns refers to an existing row,
and the size of the columns is in proportion to the bytes of the files.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clew.events.columns import Columns, Derived, Ints
from clew.events.model import Gap
from clew.events.vocabulary import KINDS
from clew.store.format.arrow import as_utf8
from clew.store.format.checksums import CHECKSUMS
from clew.store.format.json_rows import LONGEST_NAME, from_json, load_facts, load_source
from clew.store.format.manifest import Format
from clew.store.format.schema import SCHEMAS
from clew.store.format.shards import Shards
from clew.store.format.table_list import TABLES
from clew.store.format.upgrade import upgraded_row
from clew.store.read.allowance import Allowance
from clew.store.read.payloads import KEPT_COLUMNS, KeptOnDisk
from clew.store.read.repair import Repair
from clew.store.read.table_parts import (
    Query,
    first_part,
    missing_parts,
    read_query,
    size_of_parts,
)
from clew.store.read.unfolded import check_unfolded
from clew.stream.ring import fallen_out

_NUMBERS = [
    "id", "parent", "start", "end", "subject", "place", "number", "template", "generator", "draw",
]  # fmt: skip
_DERIVED = ["step", "call", "owner", "forward", "source"]
_EVENT_COLUMNS = ["kind", *_NUMBERS, "error", "values", *_DERIVED, "module", "prefix"]
_FACTS = ["value", "version", "storage", "meta", "grad", "producer", "value_name", "nbytes"]
_TABLE_COLUMNS = ["table", "number", "row"]
# How often to read a rank that drops its oldest parts meanwhile.
_MOST_TRIES = 20
# Nanoseconds small enough that sums and differences do not overflow.
_LATEST = 1 << 61

# Columns of a table by name, removed one by one so that each is in memory only once.
_Held = dict[str, pa.ChunkedArray]


def read_rank(
    folder: Path, form: Format, shards: Shards, check: Callable[[], None]
) -> tuple[Columns, int | None, list[Gap]]:
    """Read a rank: its columns, how many events it ended with if it did, what is damaged.

    If a ring drops parts meanwhile, the rank is read again.
    """
    for _ in range(_MOST_TRIES):
        first = first_part(folder, "events")
        found = _read_rank(folder, form, shards, check)
        if first_part(folder, "events") == first:
            break
    return found


def _read_rank(
    folder: Path, form: Format, shards: Shards, check: Callable[[], None]
) -> tuple[Columns, int | None, list[Gap]]:
    gaps: list[Gap] = []
    firsts = {name: first_part(folder, name) for name in SCHEMAS}
    # Events first: what they refer to was written before them, so it is there by now.
    allowance = Allowance(size_of_parts(folder))
    query = partial(Query, folded=True, allowance=allowance)
    events = _held(read_query(folder, query("events", _EVENT_COLUMNS), gaps)[0])
    facts = query("values", [*_FACTS, "freed", *KEPT_COLUMNS])
    values, stretches = read_query(folder, facts, gaps)
    table = read_query(folder, query("tables", _TABLE_COLUMNS), gaps)[0]
    where = f"{folder.parent.name}/{folder.name}"
    tables = _tables(table, form.version, where, gaps)
    fallen = _Fallen(tables["fallen"])
    for name, first in firsts.items():
        gaps += missing_parts(folder, name, first - fallen.parts.get(name, 0))
    repair = Repair(tables, where)
    columns, errors, derived = _events(events, values, repair)
    kept = KeptOnDisk(
        folder, ints(values["value"]), repair.value_rows, values, stretches,
        CHECKSUMS[form.checksum], shards, check, gaps,
    )  # fmt: skip
    gaps += [*repair.gaps, *kept.gaps()]
    fields: dict[str, Any] = {**columns}
    fields |= {TABLES[name].attribute: rows for name, rows in repair.rows.items()}
    found = Columns(
        **fields,
        errors=errors,
        sources=tables["source"],
        kept=kept,
        modes=dict(sorted(tables["mode"].values())),
        attributes=[row for _, row in sorted(tables["attribute"].items())],
        gaps=[*(gap for _, gap in sorted(tables["gap"].items())), *fallen.gaps(where)],
        damage=gaps,
        environment=_environment(tables["environment"]),
        rank=int(folder.name.partition("=")[2]),
        derived=derived,
    )
    check_unfolded(found, size_of_parts(folder))
    return found, tables["end"].get("events"), gaps


class _Fallen:
    """What a ring dropped: the number of events, and the parts before some numbers."""

    def __init__(self, facts: dict[str, object]) -> None:
        self.events = _count(facts.get("events"))
        self._last = _count(facts.get("last"))
        parts = facts.get("parts")
        counts = [_count(one) for one in parts] if type(parts) is list else []
        self.parts = dict(zip(("events", "values"), counts, strict=False))

    def gaps(self, where: str) -> list[Gap]:
        """Return a gap for the dropped beginning."""
        return [fallen_out(self.events, self._last, where)] if self.events else []


def _count(fact: object) -> int:
    return fact if type(fact) is int and 0 <= fact < _LATEST else 0


def _tables(
    table: pa.Table, version: int, where: str, gaps: list[Gap]
) -> dict[str, dict[Any, Any]]:
    """Return the rows of every table by name and number."""
    rows: dict[str, dict[Any, Any]] = {name: {} for name in TABLES}
    rows |= {"source": {}, "environment": {}, "end": {}, "writer": {}, "fallen": {}}
    damaged = 0
    names, texts = _coded(table["table"]), _coded(table["row"])
    numbers = ints(table["number"])
    for name, number, text in zip(
        names[0].tolist(), numbers.tolist(), texts[0].tolist(), strict=True
    ):
        kind = names[1][name]
        try:
            if kind == "source":
                file, source = load_source(from_json(texts[1][text]))
                rows[kind][file] = source
            elif kind in ("environment", "end", "writer", "fallen"):
                rows[kind] = load_facts(from_json(texts[1][text]))
            elif kind in TABLES:
                row = upgraded_row(kind, from_json(texts[1][text]), version)
                rows[kind][number] = TABLES[kind].load(row)
        except (ValueError, TypeError, KeyError, IndexError, OverflowError):
            damaged += 1
    if damaged:
        what = f"{damaged} rows of tables"
        gaps.append(Gap(what, where, "they are damaged", "the rest is shown"))
    rows["end"] = {name: n for name, n in rows["end"].items() if type(n) is int}
    return rows


def _environment(facts: dict[str, object]) -> dict[str, object]:
    """Return the environment with checked types for the facts that code relies on."""
    checked: dict[str, Any] = {
        "clock": _number(facts.get("clock"), int, _LATEST),
        "time": float(_number(facts.get("time"), float, _LATEST / 1e9)),
    }
    for name in ("crash", "name", "level", "values"):
        text = facts.get(name)
        checked[name] = text if text is None or type(text) is str else str(text)[:1000]
    return {**facts, **checked}


def _number(fact: Any, kind: type, most: float) -> Any:
    return fact if type(fact) in (int, kind) and abs(fact) < most else 0


def _events(
    events: _Held, values: pa.Table, repair: Repair
) -> tuple[dict[str, Ints], list[str], Derived | None]:
    kinds, names = _coded(events.pop("kind"))
    numbers = {name: number for number, name in enumerate(KINDS)}
    kind = np.array([numbers.get(name, -1) for name in names], dtype=np.int64)[kinds]
    newest = _newest(ints(events["id"]), kind)
    columns = {name: _taken(ints(events.pop(name)), newest) for name in _NUMBERS}
    columns["kind"] = _taken(kind, newest)
    errors, texts = _coded(events.pop("error"))
    columns["error"] = _taken(errors, newest)
    lists = events.pop("values")
    lists = (lists if newest is None else lists.take(pa.array(newest))).combine_chunks()
    count = ints(pc.fill_null(pc.list_value_length(lists), 0))
    columns["ref_count"] = count
    columns["first_ref"] = np.cumsum(count) - count
    refs = ints(lists.flatten())
    del lists
    facts = ints(values["meta"]) >= 0
    whole = repair.values({name: ints(values[name])[facts] for name in _FACTS}, refs)
    whole["freed"] = repair.late(ints(values["value"]), ints(values["freed"]), len(whole["meta"]))
    columns["refs"] = repair.refs(refs)
    repair.events(columns)
    del columns["ref_count"]
    for name in ("start", "end"):
        columns[name] = np.clip(columns[name], -1, _LATEST)
    derived = _derived(events, newest, repair)
    return {**columns, **whole}, [text or "?" for text in texts[:-1]], derived


def _derived(events: _Held, newest: Ints | None, repair: Repair) -> Derived | None:
    """Return the facts that the writer derived; None if there are none, or they are not valid."""
    if events["prefix"].null_count or not len(events["prefix"]):
        return None
    module, paths = _coded(events.pop("module"))
    prefix, names = _coded(events.pop("prefix"))
    if any(len(name or "") > LONGEST_NAME for name in (*names, *paths)):
        return None
    # The empty name means none.
    numbers = np.cumsum([bool(name) for name in names]) - 1
    prefixes = np.where([bool(name) for name in names], numbers, -1)
    arrays = {name: _taken(ints(events.pop(name)), newest) for name in _DERIVED}
    arrays["source"] = repair.place_rows(arrays["source"])
    # Arrow's text is UTF-8; a name that is not valid UTF-8 is stored escaped.
    escaped = {as_utf8(module.path): module.path for module in repair.rows["module"]}
    return Derived(
        **arrays,
        module=_taken(module, newest),
        prefix=_taken(prefixes[prefix], newest),
        paths=[escaped.get(path or "", path or "") for path in paths[:-1]],
        prefixes=[name for name in names if name],
    )


def _newest(ids: Ints, kind: Ints) -> Ints | None:
    """Return the newest row of each event, in order; None if all rows are.

    A call written while it was open comes again when it ends.
    """
    usable = np.flatnonzero((ids >= 0) & (kind >= 0))
    if len(usable) == len(ids) and (np.diff(ids) > 0).all():
        return None
    _, last = np.unique(ids[usable][::-1], return_index=True)
    newest: Ints = usable[len(usable) - 1 - last]
    return newest


def _taken(column: Ints, rows: Ints | None) -> Ints:
    return column if rows is None else column[rows]


def _held(table: pa.Table) -> _Held:
    return dict(zip(table.column_names, table.columns, strict=True))


def _coded(column: pa.ChunkedArray) -> tuple[Ints, list[Any]]:
    """Return dictionary-encoded text as numbers into a list of texts; None, the last, is for -1."""
    whole = column.combine_chunks()
    return ints(whole.indices), [*whole.dictionary.to_pylist(), None]


def ints(column: Any) -> Ints:
    """Return a column as NumPy, -1 for null."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if column.null_count:
        column = pc.fill_null(column, -1)
    return np.array(column.to_numpy(zero_copy_only=False), dtype=np.int64)

"""A trace on disk, read: whole or still growing, sealed or left behind by a kill.

In comes a folder, out come the columns of each rank. Only the manifest and the names of the rank
folders are touched on opening; rows are read when first asked for, payloads one by one. Whatever
is damaged is left out and said.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clew.errors import BadTrace
from clew.events.columns import Columns, Derived, Ints
from clew.events.model import Gap
from clew.events.records import KINDS, STEP
from clew.store.format.arrow import as_utf8
from clew.store.format.checksums import CHECKSUMS
from clew.store.format.json_rows import LONGEST_NAME, from_json, load_facts, load_source
from clew.store.format.manifest import Format, RunCheck, format_of, read_manifest
from clew.store.format.shards import Shards, StoredShards
from clew.store.format.tables import TABLES
from clew.store.format.upgrade import upgraded_row
from clew.store.read.payloads import KEPT_COLUMNS, KeptOnDisk
from clew.store.read.repair import Repair
from clew.store.read.table_parts import read_table
from clew.store.storage import LocalStorage, Storage
from clew.store.write.build_columns import Part
from clew.store.write.memory_sink import in_order

_MOST_RANKS = 1_000_000
_RANK = re.compile(r"rank=(\d{1,9})")
PART = re.compile(r"(events|values|tables)-\d{5,9}\.(parquet|arrows)")
_NUMBERS = ["id", "parent", "start", "end", "subject", "place", "number", "template"]
_DERIVED = ["step", "call", "owner", "forward", "source"]
_EVENT_COLUMNS = [*_NUMBERS, "kind", "error", "values", *_DERIVED, "module", "prefix"]
_FACTS = ["value", "version", "storage", "meta", "grad", "producer", "value_name"]
_TABLE_COLUMNS = ["table", "number", "row"]


@dataclass(frozen=True, slots=True)
class Ending:
    """How a rank's files end: how many events there are, once it was closed, and what of them
    could not be read."""

    events: int | None
    damage: list[Gap]


# The columns of each rank, read when they are first asked for, and what of the whole is missing.
Opened: TypeAlias = tuple[dict[int, Callable[[], Columns]], list[Gap]]


def open_trace(storage: Storage) -> Opened:
    """Open a trace: each rank is read when it is first asked for."""
    manifest = read_manifest(storage)
    ranks, links = rank_names(storage), _linked(storage)
    if not ranks:
        why = str(links[0]) if links else "nothing was recorded into it"
        raise BadTrace(f"{storage} holds no rank=* folder: {why}")
    form, check = format_of(manifest), RunCheck(storage, manifest.get("run"))
    reads: dict[int, Callable[[], Columns]] = {
        rank: partial(_read_rank, storage, name, form, len(ranks) == 1, check)
        for rank, name in ranks.items()
    }
    return reads, [*links, *missing_ranks(manifest, list(ranks))]


def rank_names(storage: Storage) -> dict[int, str]:
    """Name the folders of a trace's ranks, in order."""
    try:
        found = {name: _RANK.fullmatch(name) for name in storage.folders()}
    except OSError as refused:
        raise BadTrace(f"{storage} cannot be read: {refused}") from refused
    return dict(sorted((int(match[1]), name) for name, match in found.items() if match))


def rank_folders(folder: Path) -> dict[int, Path]:
    """Give the folders of a local trace's ranks, in order."""
    return {rank: folder / name for rank, name in rank_names(LocalStorage(folder)).items()}


def rank_links(storage: Storage) -> list[str]:
    """Name the rank folders that are links, which nobody follows."""
    return [name for name in storage.links() if _RANK.fullmatch(name)]


def _linked(storage: Storage) -> list[Gap]:
    return [
        Gap(name, storage.name, "it is a link, and links are not followed out of a trace",
            "copy the folder it leads to into the trace")
        for name in rank_links(storage)
    ]  # fmt: skip


def missing_ranks(manifest: dict[str, Any], there: list[int]) -> list[Gap]:
    """Give a gap for ranks that the run had and the trace does not."""
    size = manifest.get("world_size")
    # A manifest from a stranger may say anything.
    if type(size) is not int or not len(there) < size <= _MOST_RANKS:
        return []
    missing = sorted(set(range(size)) - set(there))
    listed = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
    what = f"rank {listed}" if len(missing) == 1 else f"ranks {listed}"
    return [
        Gap(what, "", f"the run had {size} ranks, and these have no folder here",
            "copy their rank=* folders into the trace; the others are shown")
    ]  # fmt: skip


def _read_rank(storage: Storage, name: str, form: Format, alone: bool, check: RunCheck) -> Columns:
    """Read the columns of a rank, with a gap where it stopped if it was not closed."""
    folder = fetch_tables(storage, name)
    check()
    columns, end = read_files(folder, form, StoredShards(storage, name), check)
    # Nothing of another run came in between.
    check()
    if alone and not len(columns.id) and end.damage:
        listed = "; ".join(map(str, end.damage[:5]))
        raise BadTrace(f"nothing in {folder} can be read: {listed}")
    columns.gaps += _missing(columns, end)
    return columns


def fetch_tables(storage: Storage, name: str) -> Path:
    """Give a local folder with the tables of a rank."""
    try:
        return storage.local(name, PART)
    except OSError as failed:
        raise BadTrace(f"{storage}/{name} cannot be read: {failed}") from failed


def read_files(
    folder: Path,
    form: Format | None = None,
    shards: Shards | None = None,
    check: Callable[[], None] = lambda: None,
) -> tuple[Columns, Ending]:
    """Read the columns of one rank's files, and what they say about their end.

    Without `form` they are this Clew's own. The data of values is read from `shards`, from the
    folder itself if there are none; where that fails, `check` may say why.
    """
    if shards is None:
        shards = StoredShards(LocalStorage(folder.parent), folder.name)
    try:
        return _read(folder, form or Format(), shards, check)
    except Exception as broken:
        # Bytes of strangers: whatever was not foreseen is the trace's fault, and said as such.
        raise BadTrace(f"{folder} is damaged: {type(broken).__name__}: {broken}") from broken


def not_closed(columns: Columns, remedy: str) -> Gap:
    """Where a rank stopped that was not closed."""
    return Gap(
        "the end of the run",
        f"rank {columns.rank}",
        "the trace was not closed: its process was killed, or still runs; "
        f"the last that is there is {_last(columns)}",
        remedy,
    )


def _missing(columns: Columns, end: Ending) -> list[Gap]:
    """What the end of a rank is short of, if it is."""
    if end.events is None:
        return [not_closed(columns, "load it again later, or seal it with `clew recover`")]
    lost = end.events - len(columns.id)
    if lost <= 0:
        return []
    why = f"files are cut short or missing; the last that is there is {_last(columns)}"
    return [Gap(f"{lost} events", f"rank {columns.rank}", why, "the others are shown")]


def _last(columns: Columns) -> str:
    if not len(columns.id):
        return "nothing"
    begun = columns.subject[columns.kind == STEP]
    return f"event {int(columns.id[-1])} of step {int(begun[-1]) if len(begun) else 0}"


def _read(
    folder: Path, form: Format, shards: Shards, check: Callable[[], None]
) -> tuple[Columns, Ending]:
    gaps: list[Gap] = []
    # Events first: what they point at was written before them, so it is there by now.
    events, _ = read_table(folder, "events", _EVENT_COLUMNS, gaps)
    values, stretches = read_table(folder, "values", [*_FACTS, *KEPT_COLUMNS], gaps)
    table, _ = read_table(folder, "tables", _TABLE_COLUMNS, gaps)
    where = f"{folder.parent.name}/{folder.name}"
    tables = _tables(table, form.version, where, gaps)
    repair = Repair(tables, where)
    numbers = _ints(values["value"])
    is_fact = _ints(values["meta"]) >= 0
    facts = {name: _ints(values[name])[is_fact] for name in _FACTS}
    whole = repair.values(facts.pop("value"), facts)
    columns, errors, derived = _events(events, repair, whole)
    kept = KeptOnDisk(folder, numbers, values, stretches, CHECKSUMS[form.checksum], shards, check)
    damage = [*gaps, *repair.gaps, *kept.gaps()]
    repair.name_threads()
    fields: dict[str, Any] = {**in_order([Part(columns, {})])}
    fields |= {TABLES[name].attribute: rows for name, rows in repair.rows.items()}
    return Columns(
        **fields,
        errors=errors,
        sources=tables["source"],
        kept=kept,
        modes=dict(sorted(tables["mode"].values())),
        gaps=[*(gap for _, gap in sorted(tables["gap"].items())), *damage],
        environment=_environment(tables["environment"]),
        rank=int(folder.name.partition("=")[2]),
        derived=derived,
    ), Ending(tables["end"].get("events"), damage)


def _tables(
    table: pa.Table, version: int, where: str, gaps: list[Gap]
) -> dict[str, dict[Any, Any]]:
    """Give the rows of every table by name and number."""
    rows: dict[str, dict[Any, Any]] = {name: {} for name in TABLES}
    rows |= {"source": {}, "environment": {}, "end": {}, "writer": {}}
    damaged = 0
    for name, number, text in zip(*(table[c].to_pylist() for c in _TABLE_COLUMNS), strict=True):
        try:
            if name == "source":
                file, source = load_source(from_json(text))
                rows[name][file] = source
            elif name in ("environment", "end", "writer"):
                rows[name] = load_facts(from_json(text))
            elif name in TABLES:
                row = upgraded_row(name, from_json(text), version)
                rows[name][int(number)] = TABLES[name].load(row)
        except (ValueError, TypeError, KeyError, IndexError, OverflowError):
            damaged += 1
    if damaged:
        what = f"{damaged} rows of tables"
        gaps.append(Gap(what, where, "they are damaged", "the rest is shown"))
    rows["end"] = {name: n for name, n in rows["end"].items() if type(n) is int}
    return rows


def _environment(facts: dict[str, Any]) -> dict[str, Any]:
    """The environment with the facts that are counted on being what they should be."""
    checked: dict[str, Any] = {
        "clock": _number(facts.get("clock"), int),
        "time": float(_number(facts.get("time"), float)),
    }
    for name in ("crash", "name", "level", "values"):
        text = facts.get(name)
        checked[name] = text if text is None or type(text) is str else str(text)[:1000]
    return {**facts, **checked}


def _number(fact: Any, kind: type) -> Any:
    return fact if type(fact) in (int, kind) and abs(fact) < 1 << 62 else 0


def _events(
    events: pa.Table, repair: Repair, values: dict[str, Ints]
) -> tuple[dict[str, Ints], list[str], Derived | None]:
    kind = _ints(pc.index_in(events["kind"], value_set=pa.array(KINDS)))
    events, kind = _newest(events, kind)
    columns = {name: _ints(events[name]) for name in _NUMBERS}
    columns["kind"] = kind
    errors = events["error"].combine_chunks().dictionary_encode()
    columns["error"] = _ints(errors.indices)
    refs = events["values"].combine_chunks()
    count = _ints(pc.fill_null(pc.list_value_length(refs), 0))
    columns["ref_count"] = count
    columns["first_ref"] = np.cumsum(count) - count
    columns["refs"] = repair.refs(_ints(refs.flatten()), values)
    repair.events(columns, len(values["meta"]))
    del columns["ref_count"]
    for name in ("start", "end"):
        columns[name] = np.clip(columns[name], -1, 1 << 62)
    texts = [text or "?" for text in errors.dictionary.to_pylist()]
    return {**columns, **values}, texts, _derived(events, repair)


def _derived(events: pa.Table, repair: Repair) -> Derived | None:
    """Give what the writer derived; None if it did not, or if it cannot be believed."""
    if events["prefix"].null_count or not len(events):
        return None
    modules = events["module"].combine_chunks().dictionary_encode()
    prefixes = events["prefix"].combine_chunks().dictionary_encode()
    names, paths = prefixes.dictionary.to_pylist(), modules.dictionary.to_pylist()
    if any(len(name) > LONGEST_NAME for name in (*names, *paths)):
        return None
    # The empty name stands for none.
    numbers = np.cumsum([name != "" for name in names]) - 1
    prefix = np.where(np.array(names) == "", -1, numbers)[_ints(prefixes.indices)]
    arrays = {name: _ints(events[name]) for name in _DERIVED}
    arrays["source"][arrays["source"] >= len(repair.rows["place"])] = -1
    # Arrow's text is UTF-8; a name that is not has its escaped form there.
    escaped = {as_utf8(module.path): module.path for module in repair.rows["module"]}
    return Derived(
        **arrays,
        module=_ints(modules.indices),
        prefix=prefix,
        paths=[escaped.get(path, path) for path in paths],
        prefixes=[name for name in names if name],
    )


def _newest(events: pa.Table, kind: Ints) -> tuple[pa.Table, Ints]:
    """Each event once, in order: a call written while open comes again when it ends."""
    ids = _ints(events["id"])
    usable = np.flatnonzero((ids >= 0) & (kind >= 0))
    _, last = np.unique(ids[usable][::-1], return_index=True)
    keep = usable[len(usable) - 1 - last]
    if np.array_equal(keep, np.arange(len(ids))):
        return events, kind
    return events.take(pa.array(keep)), kind[keep]


def _ints(column: Any) -> Ints:
    """A column as NumPy, -1 where there is nothing."""
    filled = pc.fill_null(column, -1)
    if isinstance(filled, pa.ChunkedArray):
        filled = filled.combine_chunks()
    return np.array(filled.to_numpy(zero_copy_only=False), dtype=np.int64)

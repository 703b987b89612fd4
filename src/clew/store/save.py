"""Places for traces: claim a folder for a new run, write a whole trace into it."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

from clew.errors import ClewError
from clew.events.columns import COLUMN_NAMES, SCHEMA_VERSION, Columns
from clew.store.compact import Part, Tables
from clew.store.disk import Surroundings, TraceFiles
from clew.store.schema import FORMAT, rank_folder


def claim(path: Path, rank: int, exist: str) -> Path:
    """The folder for one rank of a run: never one that holds another run.

    With `exist="new"` a taken path gets a number, `run-2.clew`; with `"replace"` the old run's
    files of this rank are removed first.
    """
    if path.exists() and not path.is_dir():
        raise ClewError(f"{path} is a file; give a folder for the trace, such as {path.name}.clew")
    candidate, number = path, 1
    while True:
        folder = candidate / rank_folder(rank)
        if folder.exists() and exist == "replace":
            shutil.rmtree(folder)
        try:
            candidate.mkdir(parents=True, exist_ok=True)
            if not folder.exists():
                return folder
        except OSError as refused:
            raise ClewError(f"cannot write a trace to {candidate}: {refused}") from refused
        number += 1
        candidate = path.with_name(f"{path.stem}-{number}{path.suffix}")


def write_manifest(folder: Path, environment: dict[str, Any], world_size: int) -> None:
    """The manifest of a run, written by whichever rank is first."""
    path = folder / "manifest.json"
    if path.exists():
        return
    manifest = {
        "format": FORMAT,
        "version": SCHEMA_VERSION,
        "run": uuid.uuid4().hex,
        "world_size": world_size,
        "environment": environment,
    }
    aside = folder / f".manifest-{uuid.uuid4().hex}.json"
    aside.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    os.replace(aside, path)


def save(columns: list[Columns], path: Path, exist: str) -> Path:
    """Write traces of one or more ranks into a folder of their own; the folder."""
    folder = path
    for rank in columns:
        target = claim(path, rank.rank, exist)
        folder = target.parent
        write_manifest(folder, rank.environment, len(columns))
        _write(target, rank)
    return folder


def _write(target: Path, columns: Columns) -> None:
    tables = Tables()
    tables.ops.rows = columns.ops
    tables.notes.rows = columns.notes
    tables.errors.rows = columns.errors
    tables.metas.rows = columns.metas
    tables.templates.rows = columns.templates
    tables.value_names.rows = columns.value_names
    around = Surroundings(
        columns.places,
        columns.modules,
        columns.parameters,
        columns.threads,
        columns.gaps,
        columns.sources.get,
        columns.environment,
    )
    part = Part({name: getattr(columns, name) for name in COLUMN_NAMES}, dict(columns.kept))
    files = TraceFiles(target, columns.rank, tables)
    files.write(part, None, around)
    files.seal()

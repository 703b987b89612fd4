"""The public `Trace`: one object over reader, analysis and views.

It holds no logic of its own; each method asks the room that knows. Must not know capture.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from clew.analysis.coverage import opaque_kernels
from clew.analysis.crash import crash_note, failing_event
from clew.analysis.select import Selection, find, select
from clew.analysis.series import Series, series
from clew.errors import MissingDependency
from clew.events.model import Crash, Events, Gap, joined
from clew.events.records import MODULE, OP, VARIABLE
from clew.store.reader import Reader
from clew.store.remote import is_url
from clew.views.export.formats import Exported, export
from clew.views.graph.view import GraphView, graph_view
from clew.views.html.report import EVENTS, Report, Side, write_report
from clew.views.notebook import trace_bundle
from clew.views.text.code import CodeView, code_view
from clew.views.text.style import Style, counted
from clew.views.text.table import TableView, table_view
from clew.views.text.tree import TreeView, tree_view


class Trace:
    """What happened in a program, ready to be asked."""

    def __init__(self, readers: list[Reader]) -> None:
        self._fixed = readers

    def _current_readers(self) -> list[Reader]:
        """One reader per rank."""
        return self._fixed

    def _current_reader(self) -> Reader:
        """The reader of the first rank, which the views show."""
        return self._current_readers()[0]

    def _events(self, kind: int | None, what: str) -> Events:
        return joined(
            [
                r.events(np.arange(len(r)) if kind is None else r.rows(kind), what)
                for r in self._current_readers()
            ],
            what,
        )

    @property
    def events(self) -> Events:
        """Every event, in the order in which they began."""
        return self._events(None, "events")

    @property
    def modules(self) -> Events:
        """Every module call."""
        return self._events(MODULE, "module calls")

    @property
    def ops(self) -> Events:
        """Every operation."""
        return self._events(OP, "ops")

    @property
    def variables(self) -> Events:
        """Every recorded binding of a variable."""
        return self._events(VARIABLE, "variables")

    @property
    def steps(self) -> list[int]:
        """The numbers of the steps in which something was recorded, in order."""
        return sorted({step for reader in self._current_readers() for step in reader.steps})

    @property
    def modes(self) -> dict[int, str]:
        """`"train"` or `"eval"` for each step in which a model ran, by its `training`."""
        found: dict[int, str] = {}
        for reader in self._current_readers():
            found = reader.columns.modes | found
        return dict(sorted(found.items()))

    @property
    def ranks(self) -> list[int]:
        """The ranks whose events are here."""
        return [reader.columns.rank for reader in self._current_readers()]

    @property
    def env(self) -> dict[str, Any]:
        """Where and how the trace was recorded."""
        return dict(self._current_reader().columns.environment)

    @property
    def coverage(self) -> Sequence[Gap]:
        """Everything that was not seen, with the remedy."""
        readers = self._current_readers()
        gaps = (gap for r in readers for gap in (*r.columns.gaps, *opaque_kernels(r)))
        return tuple(dict.fromkeys(gaps))

    @property
    def crash(self) -> Crash | None:
        """The exception that ended the recorded block, None if it ended well."""
        for reader in self._current_readers():
            text = reader.columns.environment.get("crash")
            if text is not None:
                event = failing_event(reader)
                return Crash(text, event, crash_note(reader, event, text))
        return None

    def __getitem__(self, address: str) -> Selection:
        return select(self._current_readers(), address)

    def find(self, pattern: str) -> Selection:
        """Events whose module path, class, op or variable name matches or contains `pattern`."""
        return find(self._current_readers(), pattern)

    def series(self, address: str, *, mode: str | None = None) -> Series:
        """The values of an address over the run, with their steps and ranks.

        `mode` is `"train"` or `"eval"` for the values of such steps alone.
        """
        return series(self._current_readers(), address, mode)

    def tree(
        self, depth: int | None = None, fold: bool = True, rows: int | None = None
    ) -> TreeView:
        """Modules and their source, repeated layers folded; `str()` of it is the text."""
        return tree_view(self._current_reader(), depth=depth, fold=fold, rows=rows)

    def code(
        self, address: str | None = None, *, succinct: bool = True, color: bool | None = None
    ) -> CodeView:
        """Every source line with the ops it ran and the named values; `str()` of it is the text."""
        reader = self._current_reader()
        events = None if address is None else list(self[address])
        return code_view(reader, events, succinct=succinct, color=color)

    def graph(
        self,
        address: str | None = None,
        *,
        depth: int | None = None,
        fold: bool = True,
        ops: str | None = None,
        prune: bool | str | Sequence[str] = False,
        squash: str | None = None,
        edges: str = "data",
        backward: bool = False,
        step: int | None = None,
        direction: str = "down",
        color: str = "class",
        show: Sequence[str] = ("params", "time"),
        theme: str = "auto",
        engine: str = "clew",
    ) -> GraphView:
        """What flowed from module to module, to be drawn: `t.graph(depth=2).svg("g.svg")`.

        All of the run, or the calls that an address names.
        """
        rows = None if address is None else [event.row for event in self[address]]
        return graph_view(
            self._current_reader(), rows, depth=depth, fold=fold, ops=ops, prune=prune,
            squash=squash, edges=edges, backward=backward, step=step, direction=direction,
            color=color, show=show, theme=theme, engine=engine,
        )  # fmt: skip

    def table(self) -> TableView:
        """One row per event; `str()` of it is the text."""
        return table_view(self._current_reader())

    def to_pandas(self) -> Any:
        """The table as a pandas DataFrame."""
        try:
            import pandas
        except ImportError as missing:
            raise MissingDependency("Trace.to_pandas", "pandas", "clew[pandas]") from missing
        return pandas.DataFrame(self.table().columns())

    def save(self, path: str | os.PathLike[str], *, exist: str = "new") -> Path | str:
        """Write the trace into a folder; the folder, which is another if `path` is taken.

        A URL such as `s3://bucket/run.clew` is reached through fsspec.
        """
        from clew.store.save import save

        columns = [reader.columns for reader in self._current_readers()]
        if isinstance(path, str) and is_url(path):
            from clew.store.remote_store import save_remote

            return save_remote(columns, path, exist)
        return save(columns, Path(path), exist)

    def export(
        self, fmt: str, path: str | os.PathLike[str], *, exist: str = "error", **options: Any
    ) -> Exported:
        """Write the trace for other tools: chrome, csv, dot, hdf5, json, model_explorer …"""
        return export(self._current_readers(), fmt, Path(path), exist, options)

    def html(
        self,
        path: str | os.PathLike[str],
        *,
        title: str | None = None,
        events: int = EVENTS,
        redact: bool = False,
        exist: str = "replace",
    ) -> Report:
        """Write the trace and a viewer for it into one HTML file, which needs no network.

        Past `events` events the middle is left out, and the page says so. `redact` leaves out
        source text, full paths and facts about the machine.
        """
        side = self._side(title or str(self.env.get("name") or Path(path).stem))
        return write_report(side, Path(path), events=events, redact=redact, exist=exist)

    def to_dict(self) -> dict[str, Any]:
        """The trace as plain data."""
        return {
            "environment": self.env,
            "coverage": [str(gap) for gap in self.coverage],
            "events": [event.to_dict() for event in self.events],
        }

    def _side(self, name: str) -> Side:
        return Side(self._current_readers(), self.coverage, name)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        text = self.tree().text(Style())
        return trace_bundle(text, self._side(str(self.env.get("name") or "trace")))

    def __str__(self) -> str:
        return str(self.tree())

    def __repr__(self) -> str:
        calls, ops, named = len(self.modules), len(self.ops), len(self.variables)
        parts = [counted(calls, "module call"), counted(ops, "op")] if calls or ops else []
        parts += [f"{counted(named, 'value')} of variables"] if named else []
        return f"<Trace {', '.join(parts) or 'of nothing'}>"

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return sum(map(len, self._current_readers()))


def load(path: str | os.PathLike[str]) -> Trace:
    """Open a saved trace, whole, still growing or left behind by a kill; every rank of it.

    A URL such as `s3://bucket/run.clew` is reached through fsspec.
    """
    from clew.store.folder import open_folder

    if isinstance(path, str) and is_url(path):
        from clew.store.remote_folder import open_remote

        return Trace(open_remote(path))
    return Trace(open_folder(Path(path)))

"""The public `Trace`: one object over run, analyses and views.

It holds no logic; each method calls the room that does the work. What only reads is loaded when it
is first asked for, by the names that each room lists: recording waits for none of it. Must not know
capture.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clew import analysis, page_port, store, views
from clew import run as runs
from clew.events.model import Gap
from clew.events.vocabulary import MODULE, OP, VARIABLE
from clew.optional_packages import optional_package
from clew.views.html import EVENTS

if TYPE_CHECKING:
    from clew.analysis.diff.divergence import Diff
    from clew.analysis.diff.noise import Noise
    from clew.analysis.findings import Finding
    from clew.analysis.health.verdicts import Health
    from clew.analysis.memory.memory_model import Memory
    from clew.analysis.nonfinite import NonFiniteOrigin
    from clew.analysis.ranks.agreement import RankAgreement
    from clew.analysis.selection import Selection
    from clew.analysis.series import Series
    from clew.analysis.shape_links import ShapeChain
    from clew.run.event import Crash, Events
    from clew.run.run import Run
    from clew.store.storage import Storage
    from clew.views.export.formats import Exported
    from clew.views.graph.view import GraphView
    from clew.views.html.report import Report, Side
    from clew.views.text.code_view import CodeView
    from clew.views.text.table_view import TableView
    from clew.views.text.tree import TreeView


class Trace:
    """A recorded run of a program: events, values and ways to show them."""

    def __init__(self, run: Run | None = None, storage: Storage | None = None) -> None:
        self._fixed = run
        # Where it was loaded from.
        self._storage = storage

    def _current_run(self) -> Run:
        """Return everything recorded so far, of all ranks."""
        assert self._fixed is not None
        return self._fixed

    def only(
        self,
        rank: int | Iterable[int] | None = None,
        step: int | Iterable[int] | None = None,
        phase: str | Iterable[str] | None = None,
    ) -> Trace:
        """Return the trace of some ranks, steps or phases only.

        `phase` is `"forward"`, `"backward"`, `"recompute"`, `"optimizer"` or `"data"`; each
        argument takes one or several. One that is not in the trace raises a ClewError that lists
        those that are.
        """
        return Trace(self._current_run().only(rank, step, phase))

    @property
    def events(self) -> Events:
        """Return every event, rank by rank, in the order in which they began."""
        run = self._current_run()
        return run.events(np.arange(len(run)), "events")

    def _events(self, kind: int, what: str) -> Events:
        run = self._current_run()
        return run.events(run.rows(kind), what)

    @property
    def modules(self) -> Events:
        """Return every module call."""
        return self._events(MODULE, "module calls")

    @property
    def ops(self) -> Events:
        """Return every operation."""
        return self._events(OP, "ops")

    @property
    def variables(self) -> Events:
        """Return every recorded value of a variable."""
        return self._events(VARIABLE, "variables")

    @property
    def steps(self) -> list[int]:
        """Return the numbers of the steps in which something was recorded, in order."""
        return self._current_run().steps

    @property
    def modes(self) -> dict[int, str]:
        """Return `"train"` or `"eval"` for each step in which a model ran, by `training`."""
        return dict(self._current_run().modes)

    @property
    def ranks(self) -> list[int]:
        """Return the ranks whose events are here."""
        return self._current_run().ranks

    @property
    def env(self) -> dict[str, Any]:
        """Return where and how the trace was recorded."""
        return dict(self._current_run().environment)

    @property
    def coverage(self) -> Sequence[Gap]:
        """Return everything that could not be recorded, each with the remedy."""
        return self._current_run().coverage

    @property
    def findings(self) -> list[Finding]:
        """Return what to read first, the worst first: crash, NaN and Inf, different ranks,
        silent broadcasting, coverage.

        Each has `severity` (`"error"`, `"warning"`, `"info"`), `kind`, `text`, `event`, `count`:

            for finding in t.findings:
                print(finding.severity, finding.text)
        """
        return analysis.findings_of(self._current_run())

    def nonfinite(self) -> list[NonFiniteOrigin]:
        """Return where NaN and Inf come from, in order, as far as statistics were recorded.

        Each has `event`, `value`, `kind`, `inputs` and a `hint` at the reason. `kind` is
        `"produced"`, `"input"`, `"parameter"`, `"constant"`, or `"absorbed"` for what reaches no
        module's output, loss or gradient, such as the -inf of a mask; those come last:

            with clew.trace(model, values="stats") as t:
                model(x)
            for found in t.nonfinite():
                print(found.kind, found.event.source, found.hint)
        """
        return analysis.nonfinite_of(self._current_run())

    def why_shape(self, address: str, dim: int) -> ShapeChain:
        """Return where a dimension of a tensor comes from; `print` shows the lines and ops.

        The chain leads from the tensor that an address names back to inputs, parameters and numbers
        given to ops, past every place where the dimension was permuted, split, merged, broadcast,
        concatenated or resized. Negative dims count from the end:

            with clew.trace(model) as t:
                model(x)
            print(t.why_shape("classifier:in", dim=1))
        """
        return analysis.why_shape(self._current_run(), address, dim)

    def memory(self) -> Memory:
        """Return where the memory of tensors went; `print` shows the peak and what was alive then.

        Bytes are counted from the op that made a storage to the op before which it was freed. The
        peak has its event and groups by kind (parameters, gradients, saved for backward, optimizer
        state, ...), by module and by source line; `growth` is memory that stays from step to step;
        `at` gives another moment:

            with clew.trace(model) as t:
                loss_of(model(x)).backward()
            print(t.memory())
        """
        return analysis.memory_of(self._current_run())

    def health(self, **thresholds: float) -> Health:
        """Return whether training and data look healthy: a verdict of each rule, with findings.

        Rules are about gradients, activations, parameters, updates, the loss, train and eval mode,
        batches and images. A rule that the recording has too little for says what to record.
        `thresholds` set what counts as too much, by name:

            with clew.trace(model, values="stats") as t:
                train(model)
            print(t.health(vanishing=1e-6))
        """
        return analysis.health_of(self._current_run(), thresholds)

    @property
    def crash(self) -> Crash | None:
        """Return the exception that ended the recorded block, None if there was none."""
        return analysis.first_crash(self._current_run())

    def __getitem__(self, address: str) -> Selection:
        """Return the events that an address names: `t["encoder.layers.0"]`, `t["fc:in"]`.

        The address language is that of `capture=`: `layers.*` for several, `layers.0#2` for the
        third call, `fc.weight:grad`, `op:aten.mm*`, `line:model.py:57`, and `@1` at the end for
        rank 1 alone. An address that matches nothing raises with the nearest names that exist.
        """
        return analysis.select(self._current_run(), address)

    def _ipython_key_completions_(self) -> list[str]:
        """Return the addresses that IPython offers after `t["`."""
        return analysis.names(self._current_run())

    def find(self, pattern: str) -> Selection:
        """Find events whose module path, class, op, variable or role holds or matches a pattern."""
        return analysis.find(self._current_run(), pattern)

    def series(self, address: str, *, mode: str | None = None) -> Series:
        """Return the values of an address over the run, with their steps and ranks.

        `mode`, `"train"` or `"eval"`, selects the values of such steps.
        """
        return analysis.series_of(self._current_run(), address, mode)

    def tree(
        self,
        depth: int | None = None,
        fold: bool = True,
        rows: int | None = None,
        ops: str | None = None,
    ) -> TreeView:
        """Return the tree of module calls, repeated layers folded; its `str()` is the text.

        Ops are named by what ran them, such as `linear`; `ops="aten"` lists all by their own names.
        """
        return views.tree_view(self._current_run(), depth=depth, fold=fold, rows=rows, ops=ops)

    def code(
        self,
        address: str | None = None,
        *,
        succinct: bool = True,
        color: bool | None = None,
        ops: str | None = None,
    ) -> CodeView:
        """Return source lines with the ops they ran and the named values; `str()` is the text.

        A composite such as `linear`, and a call of a module of torch.nn, stands for its ops;
        `ops="aten"` shows all of them.
        """
        run = self._current_run()
        rows = None if address is None else [event.row for event in analysis.select(run, address)]
        return views.code_view(run, rows, succinct=succinct, color=color, ops=ops)

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
    ) -> GraphView:
        """Return the graph of how tensors flow between modules: `t.graph(depth=2).svg("g.svg")`.

        It shows one forward pass, or the calls that an address names.
        """
        run = self._current_run()
        rows = None if address is None else [event.row for event in analysis.select(run, address)]
        return views.graph_view(
            run, rows, depth=depth, fold=fold, ops=ops, prune=prune,
            squash=squash, edges=edges, backward=backward, step=step, direction=direction,
            color=color, show=show, theme=theme,
        )  # fmt: skip

    def table(self) -> TableView:
        """Return a table with one row per event; its `str()` is the text."""
        return views.table_view(self._current_run())

    def to_pandas(self) -> Any:
        """Return the table as a pandas DataFrame."""
        pandas = optional_package("pandas", "Trace.to_pandas")
        return pandas.DataFrame(self.table().columns())

    def save(self, path: str | os.PathLike[str], *, exist: str = "replace") -> Path | str:
        """Write the trace into a folder; return its path.

        If a trace is there, `exist="replace"` replaces it, `"keep"` moves it to `run.1.clew`,
        `"error"` raises. A URL such as `s3://bucket/run.clew` is reached through fsspec; nothing is
        moved there, and with `"keep"` the new one gets the number.
        """
        place = store.save(self._current_run().recorded(), path, exist, runs.rows_of_rank)
        self._saved(place)
        return place

    def _saved(self, place: Path | str) -> None:
        """Continue reading from the saved folder, if this trace was loaded from there."""
        if self._storage is not None and str(place) in (
            str(self._storage), os.path.abspath(str(self._storage))
        ):  # fmt: skip
            self._fixed = load(place)._fixed

    def export(
        self, fmt: str, path: str | os.PathLike[str], *, exist: str = "replace", **options: Any
    ) -> Exported:
        """Write the trace for other tools: chrome, csv, dot, hdf5, json, model_explorer …

        If there is an export of this format, `exist="replace"` replaces it, `"keep"` moves it to
        `run.1.json`, `"error"` raises.
        """
        return views.write_export(self._current_run(), fmt, path, exist, options)

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

        If there are more than `events` events the middle is left out, and the page says so.
        `redact` leaves out source text, full paths and facts about the machine. If the file exists,
        `exist="replace"` replaces it, `"keep"` moves it to `run.1.html`, `"error"` raises.
        """
        side = self._side(title or str(self.env.get("name") or Path(path).stem))
        return views.write_report(side, path, events=events, redact=redact, exist=exist)

    def to_dict(self) -> dict[str, Any]:
        """Return the trace as plain data."""
        return {
            "environment": self.env,
            "findings": [finding.to_dict() for finding in self.findings],
            "coverage": [str(gap) for gap in self.coverage],
            "events": [event.to_dict() for event in self.events],
        }

    def _side(self, name: str) -> Side:
        return views.Side(self._current_run(), name)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        text = self.tree().text(views.Style())
        return views.trace_bundle(
            text, self.findings, self._side(str(self.env.get("name") or "trace"))
        )

    def __str__(self) -> str:
        return str(self.tree())

    def __repr__(self) -> str:
        calls, ops, named = len(self.modules), len(self.ops), len(self.variables)
        counted = views.counted
        parts = [counted(calls, "module call"), counted(ops, "op")] if calls or ops else []
        parts += [f"{counted(named, 'value')} of variables"] if named else []
        return f"<Trace {', '.join(parts) or 'of nothing'}>"

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self._current_run())


def load(path: str | os.PathLike[str]) -> Trace:
    """Open a saved trace with all its ranks: complete, still growing or left by a kill.

    A URL such as `s3://bucket/run.clew` is reached through fsspec.
    """
    storage = store.storage_of(path)
    return Trace(runs.Run(*store.open_trace(storage)), storage)


def diff(
    a: Trace | str | os.PathLike[str],
    b: Trace | str | os.PathLike[str],
    *,
    map: Mapping[str, str] | None = None,
    tol: Noise | float | None = None,
) -> Diff:
    """Compare two traces, or saved ones by their paths; `print` shows where they part first.

    Record both with `values="fingerprint"`; with `"stats"` another order of elements goes unnoticed
    until it changes a result. `a` is the reference. `map` gives modules of `b` the names
    of `a`: `{"model.layers.*": "transformer.h.*"}`. `tol` is the relative error of an element that
    counts as rounding, or a `Noise` of `clew.calibrate` or `clew.noise_of`; by default it depends
    on the dtype:

        print(clew.diff("before.clew", "after.clew"))
    """
    first, second = (_trace_of(one)._current_run() for one in (a, b))
    return analysis.diff_runs(first, second, map, tol)


def noise_of(*traces: Trace | str | os.PathLike[str]) -> Noise:
    """Measure the noise of a program from traces of repeats, the reference first.

    All need `values="stats"` or more:

        noise = clew.noise_of("a.clew", "a2.clew", "a3.clew")
        print(clew.diff("a.clew", "b.clew", tol=noise))
    """
    return analysis.noise_of_runs([_trace_of(one)._current_run() for one in traces])


def ranks(path_or_trace: Trace | str | os.PathLike[str], tol: float | None = None) -> RankAgreement:
    """Say whether the ranks of a run agree where they should, and if not, where they part first.

    Ranks are read one by one, so that there may be thousands. Record with `values="fingerprint"` or
    `"stats"`. Parameters, updates and what collectives give must be equal bit for bit, or up to the
    relative error `tol`; what ranks compute from batches of their own may differ:

        print(clew.ranks("run.clew"))
    """
    if not isinstance(path_or_trace, Trace):
        return analysis.compare_ranks(store.storage_of(path_or_trace), tol)
    if path_or_trace._storage is not None:
        return analysis.compare_ranks(path_or_trace._storage, tol)
    with tempfile.TemporaryDirectory() as folder:
        place = path_or_trace.save(os.path.join(folder, "run.clew"))
        return analysis.compare_ranks(store.storage_of(place), tol)


page_port.writes_pages(lambda found, path, **options: views.write_diff_page(found, path, **options))


def _trace_of(given: Trace | str | os.PathLike[str]) -> Trace:
    return given if isinstance(given, Trace) else load(given)

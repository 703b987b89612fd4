"""A trace as the columns of a report: the events of all ranks in one table, values in another.

Input: a `Run` and the rows to keep. Output: columns in a `Packer` and a head of plain data, which
the viewer turns into text. Columns that may hold nothing count from 1, and 0 is nothing; `parent`
and `forward` say how many rows back, 0 is none. An address is its stem, then the call if the stem
ends in `#`, then its role. `nonfinite` is 1 for NaN and 2 for Inf that a finding is about.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew.analysis.file_names import short_names
from clew.analysis.parameters import Parameters
from clew.events.columns import IN, Coded, Columns, Ints, Leaf, Meta, Tensor
from clew.events.tensor_text import short_dtype
from clew.events.vocabulary import KINDS, OF_OPS, PHASES, Unseen
from clew.run.event_table import thread_names
from clew.run.lookup import find, used_rows
from clew.run.run import Run
from clew.run.value_stats import COUNTS, NUMBERS, StatColumns, numbers_with_data
from clew.spec import CLASS_FAMILIES
from clew.views.families import class_family, op_family
from clew.views.html.page_outline import PageOutline
from clew.views.html.page_texts import event_labels, result_texts, written_ops
from clew.views.html.payload import Packer
from clew.views.html.previews import Previews
from clew.views.text.call_texts import constant_text
from clew.views.text.style import meta_text, short_op

# Numbers of the families of classes, in the order of the spec.
_FAMILY = {name: number for number, (name, _) in enumerate(CLASS_FAMILIES)}
_LONGEST_CONSTANT = 200


class Numbered:
    """A table of things, each numbered when it first comes."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}

    def __call__(self, thing: object) -> int:
        return self._numbers.setdefault(thing, len(self._numbers))

    @property
    def all(self) -> list[Any]:
        return list(self._numbers)


class PageLists:
    """The lists of a report that the numbers in its columns point into."""

    def __init__(self) -> None:
        self.strings = Numbered()
        self.files = Numbered()
        self.places = Numbered()
        self.templates = Numbered()
        self.metas = Numbered()
        self.threads = Numbered()


class PageTables:
    """The tables of one trace: the events in `rows`, and the values they took and gave."""

    def __init__(
        self,
        run: Run,
        rows: Ints,
        nonfinite: Ints,
        previews: Previews,
        redact: bool,
        pictured_first: Sequence[int] = (),
        outline: PageOutline | None = None,
    ) -> None:
        """Take the rows to keep, the values that get a picture first, and the groups of rows."""
        self._outline = outline
        self._run = run
        self._picture_order = {number: at for at, number in enumerate(pictured_first)}
        self._rows = rows
        self._nonfinite = nonfinite
        self.redact = redact
        self.lists = PageLists()
        # The last entry means "none".
        self._new_row = np.full(len(run) + 1, -1, dtype=np.int64)
        self._new_row[rows] = np.arange(len(rows))
        refs, self._counts = _refs(run, rows)
        used, at = used_rows(len(run.columns.meta), refs)
        self._numbers, self._refs = np.array(used, dtype=np.int64), at[refs]
        self._events = self._event_columns()
        self._stats: StatColumns = {}
        self._values = self._value_columns(previews)

    @property
    def numbers(self) -> Ints:
        """Return the numbers, in the run, of the values in the report."""
        return self._numbers

    @property
    def new_row(self) -> Ints:
        """Return the row in the report of each event, -1 for those left out, and -1 at the end."""
        return self._new_row

    def row_of(self, row: int) -> int:
        """Return the row of an event in the report, -1 if it was left out."""
        return int(self._new_row[row])

    @property
    def described(self) -> int:
        """Return how many values have statistics."""
        return len(self._stats["count"])

    def pack(self, packer: Packer, prefix: str, statistics: Packer | None = None) -> dict[str, Any]:
        """Put the columns into a packer, statistics into one of their own if given; return the
        head.
        """
        statistics = packer if statistics is None else statistics
        for group in (self._events, self._values):
            for name, column in group.items():
                packer.add(prefix + name, column, differences=name in ("start", "first_ref"))
        packer.add(prefix + "refs", self._refs)
        written = written_ops(self._run, self._rows)
        packer.add(prefix + "written", written.of)
        packer.add(prefix + "written.name", self._texts(written.names))
        if self._outline is not None:
            packer.add(prefix + "group", self._outline.group[self._rows])
            for name, column in self._outline.columns(self.lists.strings).items():
                packer.add(f"{prefix}group.{name}", column)
        for name in NUMBERS:
            statistics.add(f"{prefix}stat.{name}", _floats(self._stats[name]))
        for name in COUNTS:
            statistics.add(f"{prefix}stat.{name}", self._stats[name])
        return {**self._head(packer, prefix), "kinds": KINDS, "phases": PHASES}

    def _head(self, packer: Packer, prefix: str) -> dict[str, Any]:
        c = self._run.columns
        files = self.lists.files.all
        short = short_names(set(files))
        sources = {} if self.redact else c.sources
        for number, file in enumerate(files):
            if file in sources:
                data = sources[file].encode("utf-8", "surrogatepass")
                packer.add_bytes(f"{prefix}source.{number}", data)
        for at, name in enumerate(
            ("parent", "file", "function", "line", "end_line", "col", "end_col", "library")
        ):
            packer.add(f"{prefix}place.{name}", [place[at] for place in self.lists.places.all])
        parameters = Parameters(c.modules, c.parameters)
        modules = {module.path: module.cls for module in c.modules}
        return {
            "rows": len(self._rows),
            "strings": self.lists.strings.all,
            "files": [short.get(file, file) for file in files],
            "paths": [] if self.redact else files,
            "templates": self.lists.templates.all,
            "metas": self.lists.metas.all,
            "threads": self.lists.threads.all,
            "modules": [[path, cls, parameters.inside(path)] for path, cls in modules.items()],
            "classes": {cls: _FAMILY[class_family(cls)] for cls in dict.fromkeys(modules.values())},
            "tied": _tied(c),
            "ops": {name: [short_op(name), op_family(name)] for name in self._ops()},
            "extra": self._inferred(),
        }

    def _ops(self) -> list[str]:
        """Return the names of the ops in the report."""
        c = self._run.columns
        of_ops = self._rows[np.isin(c.kind[self._rows], OF_OPS)]
        return [c.ops[number] for number in np.unique(c.subject[of_ops]).tolist()]

    def _event_columns(self) -> dict[str, object]:
        run, rows = self._run, self._rows
        c = run.columns
        places = np.append(self._places(), -1)
        start, end = run.start[rows], run.end[rows]
        spent = np.where(end >= 0, end - start, np.nan).astype(np.float32)
        templates = np.array([self._template(t.leaves) for t in c.templates], dtype=np.int64)
        names = run.names
        return {
            "kind": c.kind[rows],
            "name": self._coded(names.names.texts, names.names.codes[rows]) - 1,
            "label": self._texts(event_labels(run, rows)),
            "result": self._texts(result_texts(run, rows)),
            "stem": self._coded(names.stems, names.stem[rows]) - 1,
            "role": self._coded(names.roles, names.stem[rows]) - 1,
            "module": self._coded(run.derived.paths, run.derived.module[rows]),
            "phase": run.phase[rows],
            "step": run.step[rows],
            "rank": run.rank[rows],
            "thread": self._texts_of_threads()[run.thread[rows]],
            "call": run.call[rows],
            "parent": self._back(run.parent_row),
            "forward": self._back(run.forward_row),
            "start": start.astype(np.float64),
            "duration": spent,
            "place": places[c.place[rows]],
            "site": places[run.derived.source[rows]] + 1,
            "error": self._coded(c.errors, c.error[rows]),
            "nonfinite": self._nonfinite[rows],
            "template": templates[c.template[rows]],
            "first_ref": np.cumsum(self._counts) - self._counts,
        }

    def _back(self, other: Ints) -> Ints:
        """Return how many rows back another event is, 0 for none."""
        there = self._new_row[other[self._rows]]
        return np.where(there >= 0, np.arange(len(self._rows)) - there, 0)

    def _texts(self, texts: Coded) -> Ints:
        """Number texts of which each row has one."""
        return self._coded(texts.texts, texts.codes) - 1

    def _coded(self, texts: Sequence[str], codes: Ints) -> Ints:
        """Number the texts of some codes from 1, in order of first use; 0 for the code -1."""
        # The last entry means -1. Of several rows with one code, the one assigned last wins.
        first = np.full(len(texts) + 1, len(codes), dtype=np.int64)
        first[codes[::-1]] = np.arange(len(codes))[::-1]
        numbers = np.zeros(len(texts) + 1, dtype=np.int64)
        for code in np.argsort(first[:-1], kind="stable")[: np.sum(first[:-1] < len(codes))]:
            numbers[code] = self.lists.strings(texts[code]) + 1
        return np.asarray(numbers[codes])

    def _texts_of_threads(self) -> Ints:
        names = thread_names(self._run.columns)
        return np.array([self.lists.threads(name) for name in names], dtype=np.int64)

    def _places(self) -> Ints:
        """Return the new numbers of all places, each of which comes after its caller."""
        numbers: list[int] = []
        for place in self._run.columns.places:
            parent = numbers[place.parent] + 1 if place.parent >= 0 else 0
            file, function = self.lists.files(place.file), self.lists.strings(place.function)
            numbers.append(
                self.lists.places(
                    (
                        parent, file, function, place.line, place.end_line, place.col,
                        place.end_col, int(place.library),
                    )
                )
            )  # fmt: skip
        return np.array(numbers, dtype=np.int64)

    def _template(self, leaves: tuple[Leaf, ...]) -> int:
        """Return leaves as (0 for arguments or 1 for results, path, constant's text or None)."""
        return self.lists.templates(
            tuple(
                (
                    int(leaf.role != IN),
                    leaf.path,
                    None if leaf.constant is Tensor else _constant(leaf.constant),
                )
                for leaf in leaves
                if leaf.constant is not Unseen
            )
        )

    def _inferred(self) -> dict[str, list[list[object]]]:
        """Return results that are in no template: those of calls that ran no hooks."""
        found = {}
        for at in np.flatnonzero(self._run.columns.end[self._rows] < 0).tolist():
            row = int(self._rows[at])
            if self._run.is_reconstructed(row):
                outputs = self._run.event(row).outputs
                numbers = np.array([value.number for value in outputs.values()], dtype=np.int64)
                # A value that belongs to no event of the report is not in it.
                places = find(self._numbers, numbers).tolist()
                pairs = zip(outputs, places, strict=True)
                found[str(at)] = [[path, place] for path, place in pairs if place >= 0]
        return found

    def _value_columns(self, previews: Previews) -> dict[str, object]:
        run, numbers = self._run, self._numbers
        c = run.columns
        metas = np.array([self._meta(meta) for meta in c.metas], dtype=np.int64)
        stats, shown = self._kept(previews)
        return {
            "meta": metas[c.meta[numbers]] if len(numbers) else numbers,
            "producer": self._new_row[run.producers[numbers]] + 1,
            "version": c.version[numbers],
            "grad": c.grad[numbers],
            "value_name": self._coded(c.value_names, c.value_name[numbers]),
            "stat": stats,
            "preview": shown,
        }

    def _meta(self, meta: Meta) -> int:
        stride = None if meta.stride is None else ",".join(map(str, meta.stride))
        shape = None if meta.shape is None else ",".join(map(str, meta.shape))
        return self.lists.metas(
            (meta_text(meta), short_dtype(meta.dtype), shape, stride, meta.device, meta.dtype)
        )

    def _kept(self, previews: Previews) -> tuple[Ints, Ints]:
        """Return for each value the numbers of its statistics and of its picture."""
        numbers = self._numbers
        stats = {name: column[numbers] for name, column in self._run.stats.items()}
        known = stats["count"] >= 0
        shown = np.zeros(len(numbers), dtype=np.int64)
        kept = self._run.columns.kept
        with_data = find(numbers, numbers_with_data(kept))
        there: list[int] = with_data[with_data >= 0].tolist()
        last = len(self._picture_order)
        there.sort(key=lambda at: self._picture_order.get(int(numbers[at]), last))
        for at in there:
            payload = kept[int(numbers[at])].payload
            shown[at] = 0 if payload is None else previews.add(payload)
            if shown[at] and not known[at]:
                known[at] = True
                facts = previews.statistics()
                for name, column in stats.items():
                    missing = np.nan if name in NUMBERS else 0
                    column[at] = missing if facts.get(name) is None else facts[name]
        self._stats = {name: column[known] for name, column in stats.items()}
        return np.where(known, np.cumsum(known), 0), shown


def _refs(run: Run, rows: Ints) -> tuple[Ints, Ints]:
    """Return the values of some events one after the other, and how many each has."""
    tensors = run.tensors
    mine = np.zeros(len(run), dtype=bool)
    mine[rows] = True
    return tensors.value[mine[tensors.event]], tensors.counts[rows]


def _tied(c: Columns) -> list[list[str]]:
    """Return the names of each module that has several."""
    names: dict[int, dict[str, None]] = {}
    for module in c.modules:
        names.setdefault(module.number, {})[module.path] = None
    return [list(paths) for paths in names.values() if len(paths) > 1]


def _floats(numbers: NDArray[Any]) -> NDArray[Any]:
    """Return the numbers in 32 bits, unless one is too large for that."""
    most = np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0)
    return numbers.astype(np.float32) if most <= np.finfo(np.float32).max else numbers


def _constant(constant: object) -> str:
    text = constant_text(constant)
    return text if len(text) <= _LONGEST_CONSTANT else text[: _LONGEST_CONSTANT - 1] + "…"

"""A trace as the columns of a report: the events of all ranks in one table, values in another.

In come `Reader`s and the rows to keep, out come columns in a `Packer` and a head of plain data.
Nothing of this is text for people: the viewer puts it into words. Columns that may hold nothing
count from 1, 0 is nothing; `parent` and `forward` say how many rows back, 0 is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew.analysis.files import short_names
from clew.analysis.parameters import Parameters
from clew.events.columns import IN, Columns, Ints, Leaf, Tensor
from clew.events.looks import short_dtype
from clew.events.records import BACKWARD, KINDS, MODULE, OP, PHASES, Kept, Unseen
from clew.store.reader import Reader
from clew.views.html.previews import Previews
from clew.views.text.calls import constant_text
from clew.views.text.style import meta_text

_STATS = ("min", "max", "mean", "std", "norm")
_COUNTS = ("nan", "inf", "zeros", "count")
_LONGEST_CONSTANT = 200


class Numbered:
    """A table of things, each numbered when it first comes."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def __call__(self, thing: Any) -> int:
        return self._numbers.setdefault(thing, len(self._numbers))

    @property
    def all(self) -> list[Any]:
        return list(self._numbers)


class Tables:
    """The tables of one trace, filled rank by rank."""

    def __init__(self, redact: bool) -> None:
        self.redact = redact
        self.strings = Numbered()
        self.files = Numbered()
        self.places = Numbered()
        self.templates = Numbered()
        self.metas = Numbered()
        self.threads = Numbered()
        self.modules: dict[str, tuple[str, int]] = {}
        self.extra: dict[int, list[list[Any]]] = {}
        self.sources: dict[str, str] = {}
        self._events: list[dict[str, Any]] = []
        self._values: list[dict[str, Any]] = []
        self._refs: list[Ints] = []
        self._stats: list[list[Any]] = []
        self.rows = 0
        self.values = 0
        self.refs = 0

    def add(
        self,
        reader: Reader,
        rows: Ints,
        offset: float,
        kept: Mapping[int, Kept],
        previews: Previews,
    ) -> None:
        """Add one rank's events; `offset` is how many nanoseconds after the first rank it began."""
        c = reader.columns
        new_row = np.full(len(reader) + 1, -1, dtype=np.int64)  # the last stands for "none"
        new_row[rows] = np.arange(len(rows)) + self.rows
        refs, counts = _refs(c, rows)
        numbers, refs = np.unique(refs, return_inverse=True)
        self._events.append(self._event_columns(reader, rows, new_row, counts, offset))
        self._refs.append(refs + self.values)
        self._inferred(reader, rows, numbers)
        self._values.append(self._value_columns(reader, numbers, new_row, kept, previews))
        self.sources.update({} if self.redact else c.sources)
        parameters = Parameters(c.modules, c.parameters)
        for module in c.modules:
            self.modules[module.path] = module.cls, parameters.inside(module.path)
        self.rows += len(rows)
        self.values += len(numbers)
        self.refs += len(refs)

    def pack(self, packer: Any, prefix: str) -> dict[str, Any]:
        """Put the columns into a packer; the head."""
        for group in (self._events, self._values):
            for name in group[0]:
                column = np.concatenate([part[name] for part in group])
                packer.add(prefix + name, column, differences=name in ("start", "first_ref"))
        packer.add(prefix + "refs", np.concatenate(self._refs))
        stats = np.array(self._stats, dtype=np.float64).reshape(-1, len(_STATS) + len(_COUNTS))
        for at, name in enumerate(_STATS):
            packer.add(f"{prefix}stat.{name}", _floats(stats[:, at]))
        for at, name in enumerate(_COUNTS, len(_STATS)):
            packer.add(f"{prefix}stat.{name}", stats[:, at].astype(np.int64))
        return {**self._head(packer, prefix), "kinds": KINDS, "phases": PHASES}

    def _head(self, packer: Any, prefix: str) -> dict[str, Any]:
        files = self.files.all
        short = short_names(set(files))
        texts = [self.sources.get(file) for file in files]
        for number, text in enumerate(texts):
            if text is not None:
                data = text.encode("utf-8", "surrogatepass")
                packer.add_bytes(f"{prefix}source.{number}", data)
        for at, name in enumerate(
            ("parent", "file", "function", "line", "end_line", "col", "end_col", "library")
        ):
            packer.add(f"{prefix}place.{name}", [place[at] for place in self.places.all])
        return {
            "rows": self.rows,
            "strings": self.strings.all,
            "files": [short.get(file, file) for file in files],
            "paths": [] if self.redact else files,
            "templates": self.templates.all,
            "metas": self.metas.all,
            "threads": self.threads.all,
            "modules": [[path, *facts] for path, facts in self.modules.items()],
            "extra": {str(row): found for row, found in self.extra.items()},
        }

    def _event_columns(
        self, reader: Reader, rows: Ints, new_row: Ints, counts: Ints, offset: float
    ) -> dict[str, Any]:
        c = reader.columns
        places, sites = self._places(reader)
        ends = c.end[rows]
        for at in np.flatnonzero(ends < 0).tolist():
            ends[at] = reader.end(int(rows[at]))
        spent = np.where(ends >= 0, ends - c.start[rows], np.nan).astype(np.float32)
        mine = np.arange(len(rows)) + self.rows
        first = np.cumsum(counts) - counts + self.refs
        templates = np.array([self._template(t.leaves) for t in c.templates], dtype=np.int64)
        names, addresses = self._names(reader, rows)
        return {
            "kind": c.kind[rows],
            "name": names,
            "address": addresses,
            "module": self._module_paths(reader, rows),
            "phase": reader.phase[rows],
            "step": c.step[rows],
            "rank": np.full(len(rows), c.rank),
            "thread": self._thread_numbers(c)[reader.thread[rows]],
            "call": reader.call_index[rows],
            "parent": _back(mine, new_row[reader.parent_row[rows]]),
            "forward": _back(mine, new_row[reader.forward_row[rows]]),
            "start": (c.start[rows] - int(c.environment["clock"]) + offset).astype(np.float64),
            "duration": spent,
            "place": places[c.place[rows]],
            "site": _sites(reader, rows, sites),
            "error": self._texts(["", *c.errors])[c.error[rows] + 1] * (c.error[rows] >= 0),
            "template": templates[c.template[rows]],
            "first_ref": first,
        }

    def _names(self, reader: Reader, rows: Ints) -> tuple[Ints, Ints]:
        """What each event is called, and the address of those that are no module call or op."""
        c = reader.columns
        names = np.zeros(len(rows), dtype=np.int64)
        addresses = np.zeros(len(rows), dtype=np.int64)
        kinds, subjects = c.kind[rows], c.subject[rows]
        known = {MODULE: [m.cls for m in c.modules], OP: c.ops}
        for kind, texts in known.items():
            mine = kinds == kind
            if mine.any():
                names[mine] = self._texts(texts)[subjects[mine]] - 1
        for at in np.flatnonzero(~np.isin(kinds, list(known))).tolist():
            event = reader.event(int(rows[at]))
            names[at] = self.strings(event.name)
            addresses[at] = self.strings(event.address) + 1
        return names, addresses

    def _module_paths(self, reader: Reader, rows: Ints) -> Ints:
        c = reader.columns
        calls = reader.module_row[rows]
        paths = np.append(self._texts([m.path for m in c.modules]), 0)
        found = paths[np.where(calls >= 0, c.subject[calls], -1)]
        for at in np.flatnonzero((calls < 0) & (c.number[rows] <= -2)).tolist():
            path = reader.module_path(int(rows[at]))
            found[at] = 0 if path is None else self.strings(path) + 1
        return found

    def _texts(self, texts: list[str]) -> Ints:
        """The numbers of texts, counted from 1."""
        return np.array([self.strings(text) + 1 for text in texts], dtype=np.int64)

    def _thread_numbers(self, c: Columns) -> Ints:
        most = max((place.thread for place in c.places), default=0)
        names = [c.threads[n] if n < len(c.threads) else str(n) for n in range(most + 1)]
        return np.array([self.threads(name) for name in names], dtype=np.int64)

    def _places(self, reader: Reader) -> tuple[Ints, Ints]:
        """The new numbers of one rank's places, and for each the innermost of the user's own."""
        table = reader.columns.places
        numbers = [-1] * len(table)
        users = [-1] * len(table)
        for start in range(len(table)):
            chain = [start]
            while numbers[chain[-1]] < 0 and 0 <= table[chain[-1]].parent not in chain:
                chain.append(table[chain[-1]].parent)
            for at in reversed(chain):
                place, above = table[at], table[at].parent
                own = place.line > 0 and not place.library
                parent = numbers[above] + 1 if above >= 0 else 0
                numbers[at] = self.places(
                    (
                        parent, self.files(place.file), self.strings(place.function), place.line,
                        place.end_line, place.col, place.end_col, int(place.library),
                    )
                )  # fmt: skip
                users[at] = numbers[at] if own else users[above] if above >= 0 else -1
        return np.array(numbers, dtype=np.int64), np.array(users, dtype=np.int64)

    def _template(self, leaves: tuple[Leaf, ...]) -> int:
        """Leaves as (0 for arguments and 1 for results, path, text of a constant or None)."""
        return self.templates(
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

    def _inferred(self, reader: Reader, rows: Ints, numbers: Ints) -> None:
        """Results that are in no template: those of calls that went past the hooks."""
        c = reader.columns
        unseen = np.array([Unseen in [leaf.constant for leaf in t.leaves] for t in c.templates])
        for at in np.flatnonzero(unseen[c.template[rows]] if len(rows) else []).tolist():
            found = reader.event(int(rows[at])).outputs.items()
            pairs = [(path, int(np.searchsorted(numbers, value.number))) for path, value in found]
            self.extra[self.rows + at] = [[path, self.values + number] for path, number in pairs]

    def _value_columns(
        self,
        reader: Reader,
        numbers: Ints,
        new_row: Ints,
        kept: Mapping[int, Kept],
        previews: Previews,
    ) -> dict[str, Any]:
        c = reader.columns
        metas = np.array([self._meta(meta) for meta in c.metas], dtype=np.int64)
        producers = _rows_of(c, c.producer[numbers])
        names = np.append(self._texts(c.value_names), 0)
        stats, shown = self._kept(kept, numbers, previews)
        return {
            "meta": metas[c.meta[numbers]],
            "producer": new_row[producers] + 1,
            "version": c.version[numbers],
            "grad": c.grad[numbers],
            "value_name": names[c.value_name[numbers]],
            "stat": stats,
            "preview": shown,
        }

    def _meta(self, meta: Any) -> int:
        stride = None if meta.stride is None else ",".join(map(str, meta.stride))
        shape = None if meta.shape is None else ",".join(map(str, meta.shape))
        return self.metas(
            (meta_text(meta), short_dtype(meta.dtype), shape, stride, meta.device, meta.dtype)
        )

    def _kept(
        self, all_kept: Mapping[int, Kept], numbers: Ints, previews: Previews
    ) -> tuple[Ints, Ints]:
        """For each value the numbers of its statistics and of its picture."""
        stats = np.zeros(len(numbers), dtype=np.int64)
        shown = np.zeros(len(numbers), dtype=np.int64)
        for at, number in enumerate(numbers.tolist()):
            kept = all_kept.get(number)
            if kept is None:
                continue
            facts = kept.stats
            if kept.payload is not None:
                shown[at] = previews.add(kept.payload)
                if facts is None and shown[at]:
                    facts = previews.statistics()
            if facts is not None:
                floats = [np.nan if facts.get(name) is None else facts[name] for name in _STATS]
                self._stats.append([*floats, *(facts.get(name, 0) for name in _COUNTS)])
                stats[at] = len(self._stats)
        return stats, shown


def _refs(c: Columns, rows: Ints) -> tuple[Ints, Ints]:
    """The values of some events one after the other, and how many each has."""
    tensors = np.array([len(t.tensors) for t in c.templates], dtype=np.int64)
    counts = tensors[c.template[rows]] if len(rows) else np.zeros(0, dtype=np.int64)
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    at = np.repeat(c.first_ref[rows] - (ends - counts), counts) + np.arange(total)
    return c.refs[at], counts


def _rows_of(c: Columns, ids: Ints) -> Ints:
    """The rows of events, -1 for those that are not there."""
    rows = np.searchsorted(c.id, ids)
    rows[rows >= len(c.id)] = 0
    return np.where((ids >= 0) & (c.id[rows] == ids), rows, -1)


def _back(mine: Ints, other: Ints) -> Ints:
    """How many rows back the other is, 0 for none."""
    return np.where(other >= 0, mine - other, 0)


def _sites(reader: Reader, rows: Ints, users: Ints) -> Ints:
    """The line of the user's own code that each event came from, as `Reader.source` tells it."""
    c = reader.columns
    forward = reader.forward_row[rows]
    own = users[c.place[rows]] + 1
    linked = np.flatnonzero(forward >= 0)
    known: dict[int, bool] = {}
    for at in linked.tolist():
        place = int(c.place[rows[at]])
        if place not in known:
            known[place] = reader._user_place(place, BACKWARD) >= 0
        if not known[place]:
            own[at] = users[c.place[forward[at]]] + 1
    return own


def _floats(numbers: NDArray[Any]) -> NDArray[Any]:
    """Numbers in 32 bits, unless one is too large for that."""
    most = np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0)
    return numbers.astype(np.float32) if most <= np.finfo(np.float32).max else numbers


def _constant(constant: Any) -> str:
    text = constant_text(constant)
    return text if len(text) <= _LONGEST_CONSTANT else text[: _LONGEST_CONSTANT - 1] + "…"

"""A run: all ranks of a trace, one row per event, every fact derived once.

Input: the columns of each rank, read at first use. Output: arrays with a row per event, and the
events and values that users see. Everything that shows or exports a fact reads it here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import compress
from typing import Any

import numpy as np

from clew import run as runs
from clew.errors import ClewError
from clew.events.columns import EVENT_COLUMNS, IN, OUT, Columns, Derived, Flags, Ints, Place, Tensor
from clew.events.model import Gap, Source
from clew.events.vocabulary import (
    GATHERED,
    KINDS,
    LABELLED,
    MODULE,
    OP,
    PHASES,
    STEP,
    Label,
    Unseen,
)
from clew.run.coverage import opaque_kernels
from clew.run.event import Event, Events
from clew.run.event_table import (
    EventNames,
    EventTensors,
    direct_tensors,
    event_names,
    event_table,
    event_tensors,
    output_stats,
    thread_names,
)
from clew.run.inferred import InferredResults
from clew.run.lookup import find, used_rows
from clew.run.merge import Joined, joined
from clew.run.place_facts import PlaceFacts
from clew.run.settings_history import SettingsHistory
from clew.run.value import Value, Values
from clew.run.value_stats import StatColumns, stat_columns

Read = Callable[[], Columns]


class Run:
    """Every event of a trace with every fact about it, for all ranks.

    Rows are ordered by rank, and within a rank by when events began. `ranks` maps the number of a
    rank to its columns, or to a function that reads them. `identity` is shared by two snapshots of
    one growing trace, so that their events are equal.
    """

    def __init__(
        self,
        ranks: Mapping[int, Columns | Read],
        gaps: Sequence[Gap] = (),
        identity: object = None,
    ) -> None:
        self._sources = dict(sorted(ranks.items()))
        self._gaps = tuple(gaps)
        self.identity = object() if identity is None else identity

    @property
    def ranks(self) -> list[int]:
        """Return the ranks whose events are here."""
        return list(self._sources)

    @cached_property
    def parts(self) -> list[tuple[Columns, Derived]]:
        """Return the columns of each rank as recorded, and the facts derived from them."""
        found = []
        for rank, source in self._sources.items():
            columns = source() if callable(source) else source
            if columns.derived is None:
                # Which traces of today's format need not.
                columns.derived = runs.derive_all(columns)
            found.append((columns, columns.derived))
            self._sources[rank] = columns
        return found

    def recorded(self) -> list[Columns]:
        """Return the columns of each rank to be saved; the first also has the gaps of the whole."""
        columns = [replace(columns, gaps=_gaps(columns), damage=[]) for columns, _ in self.parts]
        if self._gaps:
            columns[0] = replace(columns[0], gaps=[*self._gaps, *columns[0].gaps])
        return columns

    @cached_property
    def _joined(self) -> Joined:
        return joined(self.parts)

    def only(
        self,
        rank: int | Iterable[int] | None = None,
        step: int | Iterable[int] | None = None,
        phase: str | Iterable[str] | None = None,
    ) -> Run:
        """Return a run of some ranks, steps or phases only; raise ClewError for one that is
        missing.

        Ranks are those that recorded: what rank 0 gathered from rank 1 belongs to rank 0. Times
        count from the beginning of the ranks that are left.
        """
        run = self
        if rank is not None:
            wanted = _listed("rank", rank, self.ranks)
            run = Run({n: self._sources[n] for n in wanted}, self._gaps, self.identity)
        if step is not None:
            run = run._where(np.isin(run.step, _listed("step", step, run.steps)))
        if phase is not None:
            there = [PHASES[n] for n in np.unique(run.phase).tolist()]
            numbers = [PHASES.index(name) for name in _listed("phase", phase, there)]
            run = run._where(np.isin(run.phase, numbers))
        return run

    def _where(self, keep: Flags) -> Run:
        """Keep some events; references to others become -1, all values stay."""
        kept: dict[int, Columns | Read] = {}
        first = 0
        for rank, (columns, derived) in zip(self.ranks, self.parts, strict=True):
            rows = np.flatnonzero(keep[first : first + len(columns.id)])
            first += len(columns.id)
            arrays = {name: getattr(columns, name)[rows] for name in EVENT_COLUMNS}
            arrays["parent"][~np.isin(arrays["parent"], arrays["id"])] = -1
            kept[rank] = replace(columns, **arrays, derived=derived.take(rows))
        return Run(kept, self._gaps, self.identity)

    @cached_property
    def _settings(self) -> list[SettingsHistory]:
        """Return the settings of modules and optimizers, rank by rank."""
        return [SettingsHistory(columns.attributes) for columns, _ in self.parts]

    @cached_property
    def freed(self) -> Ints:
        """Return for each value the id of the first op after its memory was freed, or -1."""
        storages, at = np.unique(self.columns.storage, return_inverse=True)
        found = np.full(len(storages), -1, dtype=np.int64)
        np.maximum.at(found, at, self.columns.freed)
        return found[at]

    def attributes(self, row: int) -> dict[str, Any]:
        """Return the settings of a call's module; empty for other events."""
        part = self.ranks.index(int(self.rank[row]))
        columns, settings = self.parts[part][0], self._settings[part]
        event = int(self.columns.id[row])
        at = int(find(columns.id, np.array([event]))[0])
        if at < 0 or columns.kind[at] != MODULE:
            return {}
        module = columns.modules[int(columns.subject[at])]
        return settings.of("module", module.number, 0, event)

    # Columns

    @property
    def columns(self) -> Columns:
        """Return the columns of all ranks; times are nanoseconds from the beginning of the run."""
        return self._joined.columns

    @property
    def derived(self) -> Derived:
        """Return the derived facts of all ranks."""
        return self._joined.derived

    @property
    def rank(self) -> Ints:
        """Return the rank of each row; a gathered value has the rank it came from."""
        return self._joined.rank

    @cached_property
    def process(self) -> Ints:
        """Return for each row the rank that recorded it."""
        sizes = [len(columns.id) for columns, _ in self.parts]
        return np.repeat(np.array(self.ranks, dtype=np.int64), sizes)

    @property
    def step(self) -> Ints:
        """Return the step of each row."""
        return self.derived.step

    @property
    def call(self) -> Ints:
        """Return for each row its index among the events of the same address."""
        return self.derived.call

    @property
    def start(self) -> Ints:
        """Return when each row began, in nanoseconds."""
        return self.columns.start

    @cached_property
    def end(self) -> Ints:
        """Return when each row ended, -1 if it did not.

        A call that ran no hooks ends with the last event in it.
        """
        end: Ints = self.columns.end.copy()
        reconstructed = np.flatnonzero((end < 0) & self._is_unseen[self.columns.template])
        if not len(reconstructed):
            return end
        last = end.copy()
        above = self.parent_row
        inside = np.flatnonzero((above >= 0) & (end[above] < 0))
        for row in inside[::-1].tolist():
            last[above[row]] = max(last[above[row]], last[row])
        end[reconstructed] = last[reconstructed]
        return end

    @cached_property
    def _is_unseen(self) -> Flags:
        leaves = [template.leaves for template in self.columns.templates]
        unseen = [bool(found) and found[-1].constant is Unseen for found in leaves]
        return np.array(unseen, dtype=bool)

    @cached_property
    def phase(self) -> Ints:
        """Return the phase of each row."""
        return np.asarray(self._places.phase[self.columns.place])

    @cached_property
    def thread(self) -> Ints:
        """Return the thread of each row; threads of two ranks have different numbers."""
        return np.asarray(self._places.thread[self.columns.place])

    @cached_property
    def _places(self) -> PlaceFacts:
        facts = PlaceFacts()
        facts.extend(self.columns.places)
        return facts

    @property
    def parent_row(self) -> Ints:
        """Return for each row the row of the module call it ran in, -1 for none."""
        return self._joined.parent_row

    @property
    def composite_row(self) -> Ints:
        """Return for each row the row of the innermost composite it ran in, -1 for none.

        The composite itself ran in the same module call.
        """
        return self._joined.composite_row

    @property
    def owner_row(self) -> Ints:
        """Return for each row the row of the module call it belongs to, -1 outside any.

        A module call belongs to itself, a backward op to the call its forward op ran in.
        """
        return self._joined.owner_row

    @property
    def forward_row(self) -> Ints:
        """Return for each backward op the row of the forward op whose node it runs, else -1."""
        return self._joined.forward_row

    @property
    def producers(self) -> Ints:
        """Return for each value the row of the event that made it, -1 if it came from outside."""
        return self._joined.producer_row

    @cached_property
    def stats(self) -> StatColumns:
        """Return statistics of all values, one row per value."""
        parts = [stat_columns(columns.kept, len(columns.meta)) for columns, _ in self.parts]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    @cached_property
    def tensors(self) -> EventTensors:
        """Return the tensors of all events."""
        return event_tensors(self.columns)

    @cached_property
    def direct_tensors(self) -> EventTensors:
        """Return the tensors of all events that are not inside an object."""
        return direct_tensors(self.columns, self.tensors)

    @property
    def metas(self) -> list[Any]:
        """Return dtype, shape and other facts of values, shared by equal ones."""
        return self.columns.metas

    def __len__(self) -> int:
        return len(self.columns.id)

    def rows(self, kind: int) -> Ints:
        """Return the rows of all events of a kind."""
        return np.flatnonzero(self.columns.kind == kind)

    @cached_property
    def steps(self) -> list[int]:
        """Return the steps in which something was recorded besides the mark that begins one."""
        # Gathered values belong to earlier steps.
        mine = ~np.isin(self.columns.kind, (STEP, GATHERED))
        steps: list[int] = np.unique(self.step[mine]).tolist()
        return steps

    @cached_property
    def children(self) -> dict[int, list[int]]:
        """Return the rows directly in each row, in order; under -1, those in no other."""
        found: dict[int, list[int]] = {}
        for row, parent in enumerate(self.parent_row.tolist()):
            found.setdefault(parent, []).append(row)
        return found

    def rows_in(self, row: int) -> list[int]:
        """Return the rows directly in a row, in order; `children` costs less if all are needed."""
        order, parents = self._by_parent
        first, end = np.searchsorted(parents, [row, row + 1])
        inside: list[int] = order[first:end].tolist()
        return inside

    @cached_property
    def _by_parent(self) -> tuple[Ints, Ints]:
        order = np.argsort(self.parent_row, kind="stable")
        return order, self.parent_row[order]

    def table(self) -> dict[str, Any]:
        """Return the event table: every fact as a column, as SQL engines see it in the files."""
        c, tensors = self.columns, self.tensors
        return {
            **event_table(c, self.derived, self.rank, tensors, c.meta[tensors.value]),
            **output_stats(c, self.stats, tensors, tensors.value),
        }

    # Facts of the whole run

    @property
    def kinds(self) -> dict[str, int]:
        """Return how many events there are of each kind."""
        kinds, counts = np.unique(self.columns.kind, return_counts=True)
        return {KINDS[k]: n for k, n in zip(kinds.tolist(), counts.tolist(), strict=True)}

    @cached_property
    def environments(self) -> dict[int, dict[str, Any]]:
        """Return where and how each rank was recorded."""
        parts = zip(self.ranks, self.parts, strict=True)
        return {rank: columns.environment for rank, (columns, _) in parts}

    @property
    def environment(self) -> dict[str, Any]:
        """Return where and how the first rank was recorded."""
        return next(iter(self.environments.values()))

    @property
    def level(self) -> str | None:
        """Return what was recorded: `ops`, `modules`, `values` or `variables`."""
        level = self.environment.get("level")
        return None if level is None else str(level)

    @cached_property
    def modes(self) -> dict[int, str]:
        """Return `train` or `eval` for each step in which a model ran, as the first rank has it."""
        found: dict[int, str] = {}
        for columns, _ in self.parts:
            found = columns.modes | found
        return dict(sorted(found.items()))

    @property
    def coverage(self) -> tuple[Gap, ...]:
        """Return everything that was not seen, on any rank: the only such list."""
        gaps = [gap for columns, _ in self.parts for gap in _gaps(columns)]
        return tuple(dict.fromkeys([*self._gaps, *gaps, *opaque_kernels(self._ops_that_ran())]))

    @property
    def damage(self) -> tuple[Gap, ...]:
        """Return what could not be read so far, of all that coverage lists."""
        return tuple(dict.fromkeys(gap for columns, _ in self.parts for gap in columns.damage))

    def _ops_that_ran(self) -> list[str]:
        ran, _ = used_rows(len(self.columns.ops), self.columns.subject[self.rows(OP)])
        return [self.columns.ops[number] for number in ran]

    @property
    def crashes(self) -> dict[int, str]:
        """Return the exception that ended each rank that raised one."""
        texts = ((rank, env.get("crash")) for rank, env in self.environments.items())
        return {rank: str(text) for rank, text in texts if text is not None}

    # Facts of one event

    def event(self, row: int) -> Event:
        """Return the event of a row."""
        return Event(self, row)

    def events(self, rows: Ints, what: str) -> Events:
        """Return the events of some rows."""
        return Events(self, rows, what)

    def label(self, row: int) -> Label | None:
        """Return the label of a variable, tap, gradient, prefix or gathered value; else None."""
        if int(self.columns.kind[row]) not in LABELLED:
            return None
        return self.columns.labels[int(self.columns.subject[row])]

    def name(self, row: int) -> str:
        """Return an op's overload name, a module's class, a note's subject."""
        names = self.names.names
        return names.texts[int(names.codes[row])]

    def address(self, row: int) -> str:
        """Return the address that names one event of its rank."""
        return self.names.address(row)

    @cached_property
    def names(self) -> EventNames:
        """Return name and parts of the address of each event."""
        return event_names(self.columns, self.call)

    def module_path(self, row: int) -> str | None:
        """Return the path of the module an event belongs to, None outside any."""
        module = int(self.derived.module[row])
        return self.derived.paths[module] if module >= 0 else None

    def prefix(self, row: int) -> str:
        """Return the name of the `clew.prefix` block that an event lies in."""
        prefix = int(self.derived.prefix[row])
        return self.derived.prefixes[prefix] if prefix >= 0 else ""

    def thread_name(self, row: int) -> str:
        """Return the name of the thread an event ran on."""
        return self._thread_names[int(self.thread[row])]

    @cached_property
    def _thread_names(self) -> list[str]:
        return thread_names(self.columns)

    def seconds(self, row: int) -> float | None:
        """Return how long an event took, None if it has not ended."""
        end = int(self.end[row])
        return (end - int(self.start[row])) / 1e9 if end >= 0 else None

    def error(self, row: int) -> str | None:
        """Return the exception that ended an event, None if none did."""
        error = int(self.columns.error[row])
        return self.columns.errors[error] if error >= 0 else None

    def is_reconstructed(self, row: int) -> bool:
        """Return whether a call ran no hooks: its end and its result are inferred."""
        c = self.columns
        return int(c.end[row]) < 0 and bool(self._is_unseen[int(c.template[row])])

    def source(self, row: int) -> Source | None:
        """Return the innermost line of user code that an event came from.

        For a backward op that no Python code called, that is the line of its forward op.
        """
        place = int(self.derived.source[row])
        return self.source_at(self.columns.places[place]) if place >= 0 else None

    def source_place(self, row: int) -> Place | None:
        """Return the same line as a place of the columns."""
        place = int(self.derived.source[row])
        return self.columns.places[place] if place >= 0 else None

    def running_line(self, row: int) -> Source | None:
        """Return the innermost line of user code that was running as an event began.

        A backward op has the line of its forward op as its `source`; this is the line that started
        the backward pass.
        """
        place = int(self._places.line[self.columns.place[row]])
        return self.source_at(self.columns.places[place]) if place >= 0 else None

    def stack(self, row: int) -> tuple[Source, ...]:
        """Return every place on the stack of an event, outermost first, including code of torch."""
        c = self.columns
        place = int(c.place[row])
        found = []
        while place >= 0:
            if c.places[place].line > 0:
                found.append(self.source_at(c.places[place]))
            place = c.places[place].parent
        return tuple(reversed(found))

    def source_at(self, place: Place) -> Source:
        """Return a place as the user sees it, with its text."""
        return Source(
            place.file,
            place.line,
            place.end_line,
            place.col,
            place.end_col,
            place.function,
            self.line_text(place.file, place.line),
        )

    def line_text(self, file: str, line: int) -> str:
        """Return one source line, empty if the source was not recorded."""
        lines = source_lines(self.columns.sources.get(file, ""))
        return lines[line - 1].strip() if 0 < line <= len(lines) else ""

    # Values

    def value(self, number: int) -> Value:
        """Return the value with a number."""
        return Value(self, number)

    def producer_row(self, number: int) -> int:
        """Return the row of the event that made a value, -1 for what came from outside."""
        return int(self._joined.producer_row[number])

    def leaf_values(self, row: int) -> list[tuple[Any, int]]:
        """Return the tensor leaves of an event with the numbers of their values."""
        c = self.columns
        tensors = self._tensors(int(c.template[row]))
        first = int(c.first_ref[row])
        return list(zip(tensors, c.refs[first : first + len(tensors)].tolist(), strict=True))

    def direct_values(self, row: int) -> list[tuple[Any, int]]:
        """Return the tensor leaves of an event that are not inside an object, with their values."""
        direct = self._are_direct(int(self.columns.template[row]))
        return list(compress(self.leaf_values(row), direct))

    def holders(self, row: int, role: str) -> dict[str, str]:
        """Return the classes of the outermost objects of an event with tensors in them, by path."""
        template = self.columns.templates[int(self.columns.template[row])]
        found = [holder for leaf, holder in template.held() if leaf.constant is Tensor]
        return {h.path: str(h.constant) for h in found if h is not None and h.role == role}

    def _are_direct(self, template: int) -> list[bool]:
        found = self._template_direct.get(template)
        if found is None:
            held = self.columns.templates[template].held()
            found = [holder is None for leaf, holder in held if leaf.constant is Tensor]
            self._template_direct[template] = found
        return found

    @cached_property
    def _template_direct(self) -> dict[int, list[bool]]:
        return {}

    def _tensors(self, template: int) -> list[Any]:
        leaves = self._template_tensors.get(template)
        if leaves is None:
            leaves = self._template_tensors[template] = self.columns.templates[template].tensors
        return leaves

    @cached_property
    def _template_tensors(self) -> dict[int, list[Any]]:
        return {}

    def values_of(self, row: int, role: str) -> Values:
        """Return the tensors of an event's arguments or result."""
        pairs = self.leaf_values(row)
        found = Values(
            ((leaf.path, self.value(n)) for leaf, n in pairs if leaf.role == role),
            self.columns.templates[int(self.columns.template[row])].classes(role),
        )
        if role == OUT and not found and self.is_reconstructed(row):
            for path, number in enumerate(self._inferred.of(row)):
                found[str(path)] = self.value(number)
            if len(found) == 1:
                return Values([("", found["0"])])
        return found

    def arguments(self, row: int) -> dict[str, Any]:
        """Return all arguments of an event in order, tensors and constants."""
        numbers = iter(self.leaf_values(row))
        result: dict[str, Any] = {}
        for leaf in self.columns.templates[int(self.columns.template[row])].leaves:
            if leaf.role == IN:
                is_tensor = leaf.constant is Tensor
                result[leaf.path] = self.value(next(numbers)[1]) if is_tensor else leaf.constant
        return result

    @cached_property
    def _inferred(self) -> InferredResults:
        return InferredResults(self)

    def subtree(self, row: int) -> list[int]:
        """Return everything inside an event, in order."""
        inside: list[int] = []
        pending = [row]
        while pending:
            found = self.children.get(pending.pop(), [])
            inside += found
            pending += found
        return sorted(inside)

    def row_of(self, event_id: int, rank: int | None = None) -> int:
        """Give the row of an event by its id on a rank, the first if none is given; -1 if none."""
        rank = self.ranks[0] if rank is None else rank
        mine = np.flatnonzero(self.process == rank)
        at = int(find(self.columns.id[mine], np.array([event_id]))[0])
        return int(mine[at]) if at >= 0 else -1


def run_of(columns: Columns, identity: object = None) -> Run:
    """Return the run of a single rank."""
    return Run({columns.rank: columns}, identity=identity)


def _listed(what: str, asked: Any, there: Sequence[Any]) -> list[Any]:
    """Check what was asked for, one or several, against what there is."""
    wanted = list(asked) if isinstance(asked, Iterable) and not isinstance(asked, str) else [asked]
    listed = ", ".join(map(str, there[:20])) + (", …" if len(there) > 20 else "")
    for one in wanted:
        if one not in there:
            raise ClewError(f"the trace has no {what} {one!r}; it has {listed or 'none'}")
    if not wanted:
        raise ClewError(f"{what}={asked!r} asks for nothing; the trace has {listed or 'none'}")
    # Return the run's own number: the one asked for may be a NumPy integer.
    return [there[there.index(one)] for one in wanted]


@lru_cache(maxsize=64)
def source_lines(text: str) -> list[str]:
    """Return the lines of a source as Python counts them; a form feed begins no line."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _gaps(columns: Columns) -> list[Gap]:
    return [*columns.gaps, *columns.damage]

"""The tree's entries in words: name, shapes, number of ops, parameters, time, source.

In come `Entry`s, out come `Cells`. Numbers of an entry that stands for several calls are those of
one call, on average where they differ; how many calls there are is said beside them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from clew.analysis.fold import Folds, name_range
from clew.analysis.parameters import Parameters
from clew.events.columns import IN, OUT
from clew.events.records import FORWARD, MODULE, OP, PHASES
from clew.views.text.calls import CallTexts
from clew.views.text.outline import CALL, FAILURE, REPEAT, VIEWS, Entry
from clew.views.text.places import Places, short_place, short_place_of
from clew.views.text.style import base_op, merged, meta_text, short_number, time_text

_MOST_NAMES = 6
_MOST_TENSORS = 3
# The ops that people look for come first in a list of them.
_HEAVY = re.compile(
    r"mm$|mm_|mv$|matmul|linear|conv|attention|softmax|norm|embedding|loss|lstm|gru|rnn|pool|fft"
    r"|compiled|sort|topk|einsum"
)


@dataclass(slots=True)
class Cells:
    """What one line says. `flow` goes from the longest form to the shortest."""

    name: str
    bullet: str = ""
    cls: str = ""
    # Shorter forms of `cls`, in that order.
    shorter: list[str] = field(default_factory=list)
    mark: str = ""
    flow: list[str] = field(default_factory=lambda: [""])
    ops: str = ""
    params: str = ""
    time: str = ""
    source: str = ""
    error: str = ""
    detail: str = ""
    # Whether `cls` may be cut for want of room.
    elastic: bool = False


class CellWriter:
    """Writes the cells of entries of one trace."""

    def __init__(self, folds: Folds) -> None:
        self._folds = folds
        self._structure = folds.structure
        self._reader = folds.structure.reader
        self._places = Places(self._reader)

    def cells(self, entry: Entry) -> Cells:
        """The cells of one entry."""
        if entry.kind == CALL:
            return self._call(entry)
        if entry.kind == REPEAT:
            return self._repeat(entry)
        return self._failure(entry) if entry.kind == FAILURE else self._ops(entry)

    def seconds(self, entry: Entry) -> float | None:
        """How long one of the things an entry stands for took, None if it has not ended."""
        runs = 1
        for repeat in entry.within:
            runs *= repeat.count
        rows = self._folds.twins(entry.rows, entry.within)
        spent = [self._duration(row) for row in rows]
        known = [time for time in spent if time is not None]
        return sum(known) / runs if len(known) == len(spent) else None

    def ops_inside(self, entry: Entry) -> int:
        """How many ops ran in the first of the things an entry stands for."""
        return sum(self._ops_inside[row] for row in entry.rows)

    @cached_property
    def _ops_inside(self) -> list[int]:
        structure = self._structure
        counts = [int(kind == OP) for kind in structure.kind]
        for row in range(len(counts) - 1, -1, -1):
            if structure.parent[row] >= 0:
                counts[structure.parent[row]] += counts[row]
        return counts

    @cached_property
    def _texts(self) -> CallTexts:
        return CallTexts(self._reader)

    @cached_property
    def parameters(self) -> Parameters:
        """Numbers of parameters."""
        return Parameters(self._reader.columns.modules, self._reader.columns.parameters)

    def _duration(self, row: int) -> float | None:
        end = self._reader.end(row)
        return (end - int(self._reader.columns.start[row])) / 1e9 if end >= 0 else None

    def _time(self, entry: Entry) -> str:
        seconds = self.seconds(entry)
        if seconds is None:
            return ""
        return _times(entry.count, time_text(seconds))

    def _ops_text(self, entry: Entry) -> str:
        inside = self.ops_inside(entry)
        return _times(entry.count, str(inside)) if inside else ""

    def _call(self, entry: Entry) -> Cells:
        row = entry.rows[0]
        c = self._reader.columns
        module = c.modules[self._structure.subject[row]]
        site = self._places.call_site(row)
        error = int(c.error[row])
        direct = int(c.end[row]) < 0 and self._reader.end(row) >= 0
        cls = module.cls + (".forward" if direct else "")
        name = self._name(entry)
        # A root goes by its class.
        return Cells(
            name=name or cls,
            cls=cls if name and name != cls else "",
            mark=self._mark(row, entry),
            flow=self._flow(self._values(row, IN), self._values(row, OUT)),
            ops=self._ops_text(entry),
            params=self._parameters(entry),
            time=self._time(entry),
            source="" if site is None else short_place(site),
            error=c.errors[error] if error >= 0 else "",
        )

    def _name(self, entry: Entry) -> str:
        """A module's name, or the first and last of those it stands for."""
        if not entry.within:
            return self._structure.name(entry.rows[0])
        rows = self._folds.twins(entry.rows, entry.within[-1:])
        return name_range(self._structure.name(rows[0]), self._structure.name(rows[-1]), above=1)

    def _mark(self, row: int, entry: Entry) -> str:
        marks = _count_marks(entry)
        if entry.same_as is not None:
            other = self._structure.name(entry.same_as)
            same = other == self._structure.name(row)
            marks.append("(as above)" if same else f"(as {other})")
        phase = int(self._reader.phase[row])
        if phase != FORWARD:
            marks.append(f"({PHASES[phase]})")
        if self._reader.end(row) < 0:
            marks.append("(open)")
        return " ".join(marks)

    def _parameters(self, entry: Entry) -> str:
        modules = self._reader.columns.modules
        row = entry.rows[0]
        module = self._structure.subject[row]
        count = self.parameters.inside(modules[module].path)
        if not count:
            return "shared" if self._uses_parameters(row) else ""
        rows = self._folds.twins([row], (entry.repeat,) if entry.repeat is not None else ())
        numbers = {modules[self._structure.subject[twin]].number for twin in rows}
        return _times(len(numbers), short_number(count))

    def _uses_parameters(self, row: int) -> bool:
        """Whether a module that owns no parameters computes with somebody else's."""
        c = self._reader.columns
        return any(
            c.value_name[value] >= 0
            and self.parameters.has(c.value_names[int(c.value_name[value])])
            for kid in self._structure.kids.get(row, ())
            if self._structure.kind[kid] == OP
            for leaf, value in self._reader.leaf_values(kid)
            if leaf.role == IN
        )

    def _repeat(self, entry: Entry) -> Cells:
        rows = self._folds.twins(entry.rows[:1], entry.within[-1:])
        steps = [int(self._reader.columns.step[row]) for row in rows]
        counts_up = steps == list(range(steps[0], steps[0] + len(steps))) and len(steps) > 1
        name = f"steps {steps[0]} … {steps[-1]}" if counts_up else "repeated"
        return Cells(
            name=name,
            mark=" ".join(_count_marks(entry)),
            ops=self._ops_text(entry),
            time=self._time(entry),
        )

    def _ops(self, entry: Entry) -> Cells:
        rows = entry.rows
        first, last = self._places.body_line(rows[0]), self._places.body_line(rows[-1])
        names = self.op_names(rows)
        return Cells(
            name="",
            cls=names[0],
            shorter=names[1:],
            bullet="· ",
            elastic=True,
            flow=self._flow(self._taken(rows), self._values(rows[-1], OUT)),
            ops=str(len(rows)),
            time=self._time(entry),
            source="" if first is None else short_place(first, last),
        )

    def names(self, entry: Entry) -> list[str]:
        """The full names of an entry's ops."""
        return [self._reader.name(row) for row in entry.rows]

    def op_names(self, rows: Iterable[int]) -> list[str]:
        """The ops of some rows, those that people look for first; from all names to one."""
        names = Counter(base_op(self._reader.name(row)) for row in rows)
        ordered = sorted(names, key=_rank)
        shown = [name + (f" ×{names[name]}" if names[name] > 1 else "") for name in ordered]
        forms = []
        for most in range(min(len(shown), _MOST_NAMES), 0, -1):
            rest = f", +{len(shown) - most}" if most < len(shown) else ""
            forms.append(", ".join(shown[:most]) + rest)
        return forms

    def _failure(self, entry: Entry) -> Cells:
        row = entry.rows[0]
        source = self._reader.source(row)
        what = f"in {self._texts.op(row)}" if self._structure.kind[row] == OP else "raised"
        where = "" if source is None else f" at {short_place_of(source.file, source.line)}"
        text = f": {source.text}" if source is not None and source.text else ""
        error = self._reader.columns.errors[int(self._reader.columns.error[row])]
        return Cells(name="", error=error, detail=what + where + text)

    def _flow(self, taken: list[tuple[str, str]], given: list[tuple[str, str]]) -> list[str]:
        """What goes in and what comes out, from the longest form to the shortest."""
        inputs = [_tensors(taken, form, taken[:1]) for form in _FORMS]
        # Of several results the widest says most: logits rather than a loss.
        widest = sorted(given, key=lambda pair: -len(pair[1]))[:1]
        outputs = [_tensors(given, form, widest) for form in _FORMS]
        pairs = ((0, 0), (1, 0), (1, 1), (1, 2), (2, 1), (2, 2), (3, 3), (4, 3))
        return [_arrow(inputs[i], outputs[o]) for i, o in pairs]

    def _taken(self, rows: list[int]) -> list[tuple[str, str]]:
        """What some ops take from outside, parameters aside."""
        c = self._reader.columns
        seen: set[int] = set()
        taken = []
        for row in rows:
            for leaf, value in self._reader.leaf_values(row):
                if leaf.role == IN and value not in seen and c.value_name[value] < 0:
                    taken.append(("", meta_text(c.metas[int(c.meta[value])])))
                seen.add(value)
        return taken

    def _values(self, row: int, role: str) -> list[tuple[str, str]]:
        """Names and looks of an event's tensors, the first few."""
        c = self._reader.columns
        pairs = [
            (leaf.path, meta_text(c.metas[int(c.meta[value])]))
            for leaf, value in self._reader.leaf_values(row)
            if leaf.role == role
        ]
        if role == OUT and not pairs and self._structure.kind[row] == MODULE:
            values = self._reader.values_of(row, role)
            pairs = [(path, value.look) for path, value in values.items()]
        if role == OUT and any(path and not path[0].isdigit() for path, _ in pairs):
            rest = len(pairs) - _MOST_TENSORS
            more = [("", f"+{rest}")] if rest > 0 else []
            return [*pairs[:_MOST_TENSORS], *more]
        return [("" if path[:1].isdigit() else path, text) for path, text in pairs]


def _tensors(pairs: list[tuple[str, str]], form: str, one: list[tuple[str, str]]) -> str:
    """Names and looks of tensors as text; `one` is the most telling of them."""
    if form == "named" and any(name for name, _ in pairs):
        return ", ".join(f"{name} {text}" if name else text for name, text in pairs)
    if form == "none" or not pairs:
        return ""
    if form in ("named", "shapes") or len(pairs) == 1:
        return ", ".join(merged([text for _, text in pairs]))
    return one[0][1] + (f", +{len(pairs) - 1}" if form == "few" else "")


def _rank(op: str) -> int:
    if op in VIEWS:
        return 2
    return 0 if _HEAVY.search(op) else 1


_FORMS = ("named", "shapes", "few", "one", "none")


def _count_marks(entry: Entry) -> list[str]:
    if entry.repeat is None:
        return []
    return [f"×{entry.count}"] + ["(sizes vary)"] * (not entry.repeat.exact)


def _times(count: int, text: str) -> str:
    return f"{count}×{text}" if count > 1 else text


def _arrow(inputs: str, outputs: str) -> str:
    if inputs and outputs:
        return f"{inputs} → {outputs}"
    return f"→ {outputs}" if outputs else inputs

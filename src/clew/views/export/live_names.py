"""Addresses of kept values as they come, batch by batch: what a live export writes, and where.

In come parts of a trace in the order in which they were recorded, out come values by address,
chosen as `views.export.kept` chooses them from a whole trace: results of modules and parameters
always, any other address from the first time that it holds something no address before it does.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from clew.events.columns import IN, Ints, ModuleRow, Place
from clew.events.labels import counted_as
from clew.events.records import GRADIENT, MODULE, OP, RECOMPUTE, STEP, TAP, VARIABLE
from clew.store.compact import Part, Tables
from clew.store.words import forget_half

# Events that are one named value.
_NAMED = (VARIABLE, TAP, GRADIENT)
_RESULTS, _PARAMETERS, _INPUTS, _OP_RESULTS, _OP_INPUTS = range(5)


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One value at one place of the run; `module` only where an address has several."""

    number: int
    step: int
    call: int
    module: str | None


Found = dict[str, list[Occurrence]]


class LiveNames:
    """Says, part by part, under which addresses its kept values go."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._places: list[Place] = []
        self._modules: list[ModuleRow] = []
        self._value_names = array("i")
        self._calls: dict[int, int] = {}
        self._event_calls: Counter[Any] = Counter()
        self._versions: Counter[str] = Counter()
        self._steps: list[tuple[int, int]] = []
        self._named: set[int] = set()
        # Parameters that are recorded by name, which tells more versions than ops read.
        self._told: set[str] = set()
        self._covered: set[int] = set()
        self._begun: set[str] = set()

    def learn_values(self, value_names: Ints) -> None:
        """Take note of values, in order of their numbers."""
        self._value_names.extend(value_names.tolist())

    @property
    def values(self) -> int:
        """How many values are known."""
        return len(self._value_names)

    def found(
        self,
        part: Part,
        open_part: Part,
        places: list[Place],
        modules: list[ModuleRow],
        has_data: Callable[[int], bool],
    ) -> Found:
        """The values of a part that have data, by address."""
        self._places, self._modules = places, modules
        self._learn_calls(part, open_part)
        tiers: list[Found] = [{}, {}, {}, {}, {}]
        for tier, address, occurrence in self._uses(part, has_data):
            tiers[tier].setdefault(address, []).append(occurrence)
        found: Found = {}
        for tier, series in enumerate(tiers):
            for address, occurrences in series.items():
                numbers = {occurrence.number for occurrence in occurrences}
                if tier > _PARAMETERS and address not in self._begun and numbers <= self._covered:
                    continue
                self._begun.add(address)
                self._covered |= numbers
                found[address] = occurrences
        return found

    def keep_only(self, values: Collection[int]) -> None:
        """Forget all values but some, which are those that may come again."""
        self._named.intersection_update(values)
        self._covered.intersection_update(values)
        forget_half(self._calls)

    def _learn_calls(self, *parts: Part) -> None:
        for part in parts:
            c = part.columns
            columns = (c[name].tolist() for name in ("id", "kind", "subject"))
            for event, kind, subject in zip(*columns, strict=True):
                if kind == MODULE:
                    self._calls[event] = subject
                elif kind == STEP:
                    insort(self._steps, (event, subject))

    def _uses(
        self, part: Part, has_data: Callable[[int], bool]
    ) -> Iterator[tuple[int, str, Occurrence]]:
        c = {name: column.tolist() for name, column in part.columns.items()}
        first = min(c["first_ref"], default=0)
        own = self._own_paths(c["kind"], c["subject"])
        # In the order in which they began, as a whole trace is read; a part has them as they ended.
        for row in sorted(range(len(c["id"])), key=c["id"].__getitem__):
            event, kind, subject = c["id"][row], c["kind"][row], c["subject"][row]
            if kind in (OP, *_NAMED):
                alike = self._counted_as(kind, subject)
                call = self._event_calls[alike]
                self._event_calls[alike] += 1
            elif kind != MODULE or self._passed_over(subject, c["place"][row], own):
                continue
            else:
                call = c["number"][row]
            leaves = self._tables.templates.rows[c["template"][row]].tensors
            start = c["first_ref"][row] - first
            numbers = c["refs"][start : start + len(leaves)]
            step, module = self._step_of(event), None
            if kind == OP:
                name = f"op:{self._tables.ops.rows[subject]}"
                caller = self._calls.get(c["parent"][row])
                module = "" if caller is None else self._modules[caller].path
            elif kind in _NAMED:
                label = self._tables.labels.rows[subject]
                name = f"{label.stem}:{label.role}" if label.role else label.stem
                self._told.add(name)
            else:
                name = self._modules[subject].path
            for leaf, number in zip(leaves, numbers, strict=True):
                if not has_data(number):
                    continue
                if leaf.role == IN and self._value_names[number] >= 0:
                    yield from self._parameter(number, step)
                    continue
                tier, address = _place(kind == OP, name, leaf.role, leaf.path)
                if kind in _NAMED and label.role and leaf.path:
                    address = f"{name}.{leaf.path}"
                yield tier, address, Occurrence(number, step, call, module)

    def _counted_as(self, kind: int, subject: int) -> Any:
        if kind == OP:
            return self._tables.ops.rows[subject]
        return "label", counted_as(subject, self._tables.labels.rows[subject])

    def _parameter(self, number: int, step: int) -> Iterator[tuple[int, str, Occurrence]]:
        address = f"{self._tables.value_names.rows[self._value_names[number]]}:param"
        # One version of a parameter is one value, however many ops read it.
        if number not in self._named and address not in self._told:
            self._named.add(number)
            version = self._versions[address]
            self._versions[address] += 1
            yield _PARAMETERS, address, Occurrence(number, step, version, None)

    def _own_paths(self, kinds: list[int], subjects: list[int]) -> set[str]:
        modules = [self._modules[s] for k, s in zip(kinds, subjects, strict=True) if k == MODULE]
        return {module.path for module in modules if not module.wrapper}

    def _passed_over(self, subject: int, place: int, own: set[str]) -> bool:
        """Whether an address does not stand for a call: recomputed, or a wrapper of what ran."""
        module = self._modules[subject]
        recomputed = self._places[place].phase == RECOMPUTE
        return recomputed or (module.wrapper and module.path in own)

    def _step_of(self, event: int) -> int:
        at = bisect_right(self._steps, (event, 1 << 63))
        return self._steps[at - 1][1] if at else 0


def _place(is_op: bool, name: str, role: str, path: str) -> tuple[int, str]:
    if role == IN:
        return (_OP_INPUTS if is_op else _INPUTS), f"{name}:in.{path}" if path else f"{name}:in"
    return (_OP_RESULTS if is_op else _RESULTS), f"{name}:out.{path}" if path else name

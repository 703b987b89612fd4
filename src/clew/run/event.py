"""Events of a run: a row with a name for each of its facts.

Input: a run and a row. Output: facts, read from the run's columns on access.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from clew.events.columns import IN, OUT, Ints
from clew.events.model import Data, Source
from clew.events.notebook_port import Shown
from clew.events.vocabulary import KINDS, PHASES
from clew.plain_text import plain
from clew.run.value import Values

if TYPE_CHECKING:
    from clew.run.run import Run


class Event(Shown):
    """One thing that happened: a module call, an op, a composite, a named value, a step, a note.

    `id` is unique within a rank, `row` in the whole run. `start` and `duration` are seconds, from
    the beginning of the run. `parent` is the module call or the composite it ran in. `arguments`
    has the constants as well as the tensors of `inputs`. `forward` is, for an op of the backward
    pass, the forward op it belongs to. `source` is the line of user code it came from, `stack` the
    whole call stack, outermost first.
    """

    __slots__ = ("_made", "_run", "row")

    row: int

    def __init__(self, run: Run, row: int) -> None:
        self._run = run
        self.row = row
        self._made: dict[str, Any] = {}

    @property
    def id(self) -> int:
        return int(self._run.columns.id[self.row])

    @property
    def parent(self) -> Event | None:
        composite = int(self._run.composite_row[self.row])
        row = composite if composite >= 0 else int(self._run.parent_row[self.row])
        return self._run.event(row) if row >= 0 else None

    @property
    def parent_id(self) -> int | None:
        parent = int(self._run.columns.parent[self.row])
        return parent if parent >= 0 else None

    @property
    def kind(self) -> str:
        return KINDS[int(self._run.columns.kind[self.row])]

    @property
    def name(self) -> str:
        return self._run.name(self.row)

    @property
    def address(self) -> str:
        return self._run.address(self.row)

    @property
    def role(self) -> str | None:
        """Return the role of a named value: `grad`, `update`, `param`; None for other events."""
        label = self._run.label(self.row)
        return None if label is None else label.role

    @property
    def module(self) -> str | None:
        return self._run.module_path(self.row)

    @property
    def call(self) -> int:
        return int(self._run.call[self.row])

    @property
    def step(self) -> int:
        return int(self._run.step[self.row])

    @property
    def prefix(self) -> str:
        return self._run.prefix(self.row)

    @property
    def phase(self) -> str:
        return PHASES[int(self._run.phase[self.row])]

    @property
    def rank(self) -> int:
        return int(self._run.rank[self.row])

    @property
    def thread(self) -> str:
        return self._run.thread_name(self.row)

    @property
    def start(self) -> float:
        return int(self._run.start[self.row]) / 1e9

    @property
    def duration(self) -> float | None:
        return self._run.seconds(self.row)

    @property
    def error(self) -> str | None:
        return self._run.error(self.row)

    @property
    def reconstructed(self) -> bool:
        """Return whether a call ran no hooks, so that its end and its result are inferred."""
        return self._run.is_reconstructed(self.row)

    @property
    def source(self) -> Source | None:
        return self._run.source(self.row)

    @property
    def stack(self) -> tuple[Source, ...]:
        return self._run.stack(self.row)

    @property
    def inputs(self) -> Values:
        values: Values = self._once("inputs", lambda: self._run.values_of(self.row, IN))
        return values

    @property
    def outputs(self) -> Values:
        values: Values = self._once("outputs", lambda: self._run.values_of(self.row, OUT))
        return values

    @property
    def arguments(self) -> dict[str, Any]:
        arguments: dict[str, object] = self._once(
            "arguments", lambda: self._run.arguments(self.row)
        )
        return arguments

    @property
    def attributes(self) -> dict[str, Any]:
        """Return the settings of the called module: `eps`, `p`, sizes, `training`."""
        return self._run.attributes(self.row)

    @property
    def draw(self) -> tuple[str, int] | None:
        """Return the generator an op drew random numbers from, and how often it was used before."""
        columns = self._run.columns
        generator = int(columns.generator[self.row])
        if generator < 0:
            return None
        return columns.generators[generator], int(columns.draw[self.row])

    @property
    def forward(self) -> Event | None:
        row = int(self._run.forward_row[self.row])
        return self._run.event(row) if row >= 0 else None

    def _once(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def __index__(self) -> int:
        return self.row

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Event) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[int, int, int]:
        return self.id, int(self._run.process[self.row]), id(self._run.identity)

    def __repr__(self) -> str:
        role = "" if self.role is None else f":{self.role}"
        where = "" if self.module is None else f" in {self.module or '(root)'}"
        rank = f" on rank {self.rank}" if len(self._run.ranks) > 1 else ""
        where = "" if self.kind == "module" else where
        return plain(f"<Event {self.id} {self.kind} {self.name}{role}{where}{rank}>")

    def to_dict(self) -> dict[str, Any]:
        """Return the event as plain data."""
        return {
            "id": self.id,
            "row": self.row,
            "parent": self.parent_id,
            "kind": self.kind,
            "name": self.name,
            "address": self.address,
            "module": self.module,
            "call": self.call,
            "step": self.step,
            "prefix": self.prefix,
            "phase": self.phase,
            "rank": self.rank,
            "thread": self.thread,
            "source": None if self.source is None else self.source.to_dict(),
            "start": self.start,
            "duration": self.duration,
            "inputs": {path: value.to_dict() for path, value in self.inputs.items()},
            "outputs": {path: value.to_dict() for path, value in self.outputs.items()},
            "classes": {"inputs": self.inputs.classes, "outputs": self.outputs.classes},
            "error": self.error,
        }


class Events(Shown, Sequence[Event]):
    """Events of a run, made on access."""

    def __init__(self, run: Run, rows: Ints, what: str) -> None:
        self._run = run
        self._rows = rows
        self._what = what

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> Events: ...
    def __getitem__(self, index: int | slice) -> Event | Events:
        if isinstance(index, slice):
            return Events(self._run, self._rows[index], self._what)
        return self._run.event(int(self._rows[index]))

    def __iter__(self) -> Iterator[Event]:
        for row in self._rows:
            yield self._run.event(int(row))

    def __repr__(self) -> str:
        return f"<{len(self)} {self._what}>"

    def to_dict(self) -> dict[str, Any]:
        """Return the events as plain data."""
        return {"events": [event.to_dict() for event in self]}


@dataclass(frozen=True, slots=True)
class Crash(Data):
    """The exception that ended the recorded block."""

    exception: str
    event: Event | None
    note: str

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        event = None if self.event is None else self.event.to_dict()
        return {"exception": self.exception, "event": event, "note": self.note}

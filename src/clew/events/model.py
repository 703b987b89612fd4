"""What a reader of a trace holds in hand: events, values, sources, gaps. Data, no behaviour.

Events and values are made on demand from columns; inputs, outputs and the like are filled in
when they are first asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, cast, overload

from clew.errors import ClewError, NotRecorded
from clew.events.display import Shown
from clew.events.looks import is_python, numbers_text, tensor_text
from clew.events.looks import short_dtype as short_dtype

if TYPE_CHECKING:
    import numpy as np


class Data(Shown):
    """Fields, also as plain data."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return {field.name: getattr(self, field.name) for field in fields(cast(Any, self))}


@dataclass(frozen=True, slots=True)
class Source(Data):
    """A place in the user's code. Columns count from 0; 0 to 0 where Python does not tell."""

    file: str
    line: int
    end_line: int
    col: int
    end_col: int
    function: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Stats(Data):
    """Statistics of a tensor's elements; min, max, mean, std, norm are of the finite ones."""

    min: float | None
    max: float | None
    mean: float | None
    std: float | None
    norm: float | None
    nan: int
    inf: int
    zeros: int
    count: int


@dataclass(frozen=True, slots=True)
class Gap(Data):
    """Something that was not seen, and what to do about it."""

    what: str
    where: str
    why: str
    remedy: str

    def __str__(self) -> str:
        place = f" at {self.where}" if self.where else ""
        return f"{self.what}{place}: {self.why}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class Crash(Data):
    """The exception that ended the recorded block."""

    exception: str
    event: Event | None
    note: str

    def to_dict(self) -> dict[str, Any]:
        """The fields by name."""
        event = None if self.event is None else self.event.to_dict()
        return {"exception": self.exception, "event": event, "note": self.note}


class Value(Shown):
    """One tensor at one moment: what it looked like, where it came from, what was kept of it."""

    __slots__ = (
        "_load", "_producer", "cls", "device", "digest", "dtype", "fingerprint", "layout",
        "local_shape", "name", "number", "placements", "requires_grad", "shape", "stats",
        "storage", "stride", "version",
    )  # fmt: skip

    number: int
    dtype: str
    shape: tuple[int, ...] | None
    stride: tuple[int, ...] | None
    device: str
    layout: str
    cls: str
    placements: str | None
    local_shape: tuple[int, ...] | None
    requires_grad: bool
    version: int
    storage: int
    name: str | None
    stats: Stats | None
    digest: str | None
    fingerprint: Any
    _producer: Callable[[], Event | None]
    _load: Callable[[str], Any]

    def __init__(self, **facts: Any) -> None:
        for name, fact in facts.items():
            object.__setattr__(self, name, fact)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a Value is read-only: cannot set {name!r}")

    @property
    def producer(self) -> Event | None:
        """The event that made this value, None for what came from outside."""
        return self._producer()

    def array(self) -> np.ndarray[Any, Any]:
        """The data as NumPy, bf16 and fp8 as exact float32."""
        array: np.ndarray[Any, Any] = self._loaded("array")
        return array

    def tensor(self) -> Any:
        """The data as a torch tensor."""
        return self._loaded("tensor")

    def item(self) -> Any:
        """The data as a Python object: a number, text or None; an array where it is no scalar."""
        return self._loaded("object")

    def _loaded(self, form: str) -> Any:
        loaded = self._load(form)
        if loaded is None and not (form == "object" and self.dtype == "none"):
            raise NotRecorded(
                f"the data of {self.look} was not kept; record it with clew.trace(values='full'), "
                "or name it in clew.trace(capture=[...])"
            )
        return loaded

    def __str__(self) -> str:
        """The look, and what was kept of the numbers; a constant as Python writes it."""
        try:
            if is_python(self):
                return self.look if self.dtype == "object" else repr(self.item())
            data = self._load("array")
        except ClewError:
            data = None
        if data is not None and data.dtype.kind not in "biufc":
            data = None
        return f"{self.look} {numbers_text(self.stats, data)}".rstrip()

    @property
    def look(self) -> str:
        """`f32[2,3]`, followed by what sets the tensor apart from a plain one."""
        return tensor_text(self)

    def __repr__(self) -> str:
        name = f" {self.name}" if self.name else ""
        return f"<Value {self.look}{name}>"

    def to_dict(self) -> dict[str, Any]:
        """The facts as plain data."""
        producer = self.producer
        return {
            "dtype": self.dtype,
            "shape": None if self.shape is None else list(self.shape),
            "stride": None if self.stride is None else list(self.stride),
            "device": self.device,
            "layout": self.layout,
            "requires_grad": self.requires_grad,
            "placements": self.placements,
            "name": self.name,
            "producer": None if producer is None else producer.id,
            "stats": None if self.stats is None else self.stats.to_dict(),
            "digest": self.digest,
        }


class Values(dict[str, Value]):
    """Values by their path inside arguments or a result.

    A result that is one tensor has the path `""`; `"0"` finds it too.
    """

    def __missing__(self, path: str) -> Value:
        if path == "0" and "" in self:
            return self[""]
        if path == "" and len(self) == 1:
            return next(iter(self.values()))
        raise KeyError(f"{path!r}; there are: {', '.join(map(repr, self)) or 'none'}")


class Event(Shown):
    """One thing that happened: a module call, an op, a note.

    `start` and `duration` are seconds, from the beginning of the trace. `arguments` has the
    constants as well as the tensors of `inputs`. `forward` is, for an op of the backward pass,
    the forward op it belongs to. `stack` is the whole call stack, outermost first.
    """

    __slots__ = (
        "_lazy", "_made", "address", "call", "duration", "error", "id", "kind", "module", "name",
        "parent", "phase", "prefix", "rank", "reconstructed", "row", "start", "step", "thread",
    )  # fmt: skip

    row: int
    id: int
    parent: int | None
    kind: str
    name: str
    address: str
    module: str | None
    call: int
    step: int
    prefix: str
    phase: str
    rank: int
    thread: str
    start: float
    duration: float | None
    error: str | None
    reconstructed: bool

    def __init__(self, lazy: dict[str, Any], **facts: Any) -> None:
        self._lazy = lazy
        self._made: dict[str, Any] = {}
        for name, fact in facts.items():
            setattr(self, name, fact)

    def _get(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._lazy[name]()
        return self._made[name]

    @property
    def source(self) -> Source | None:
        source: Source | None = self._get("source")
        return source

    @property
    def stack(self) -> tuple[Source, ...]:
        stack: tuple[Source, ...] = self._get("stack")
        return stack

    @property
    def inputs(self) -> Values:
        values: Values = self._get("inputs")
        return values

    @property
    def outputs(self) -> Values:
        values: Values = self._get("outputs")
        return values

    @property
    def arguments(self) -> dict[str, Any]:
        arguments: dict[str, Any] = self._get("arguments")
        return arguments

    @property
    def forward(self) -> Event | None:
        event: Event | None = self._get("forward")
        return event

    def __index__(self) -> int:
        return int(self.row)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Event) and (other.id, other.rank, other._lazy["reader"]) == (
            self.id, self.rank, self._lazy["reader"],
        )  # fmt: skip

    def __hash__(self) -> int:
        return hash((self.id, self.rank))

    def __repr__(self) -> str:
        where = "" if self.module is None else f" in {self.module or '(root)'}"
        return f"<Event {self.id} {self.kind} {self.name}{where if self.kind != 'module' else ''}>"

    def to_dict(self) -> dict[str, Any]:
        """The event as plain data."""
        return {
            "id": self.id,
            "parent": self.parent,
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
            "error": self.error,
        }


class Events(Shown, Sequence[Event]):
    """Events of a trace, made as they are asked for."""

    def __init__(self, rows: Sequence[int], make: Callable[[int], Event], what: str) -> None:
        self._rows = rows
        self._make = make
        self._what = what

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> Events: ...
    def __getitem__(self, index: int | slice) -> Event | Events:
        if isinstance(index, slice):
            return Events(self._rows[index], self._make, self._what)
        return self._make(int(self._rows[index]))

    def __iter__(self) -> Iterator[Event]:
        for row in self._rows:
            yield self._make(int(row))

    def __repr__(self) -> str:
        return f"<{len(self)} {self._what}>"

    def to_dict(self) -> dict[str, Any]:
        """The events as plain data."""
        return {"events": [event.to_dict() for event in self]}


def joined(parts: list[Events], what: str) -> Events:
    """Several sequences of events as one."""
    if len(parts) == 1:
        return parts[0]
    pairs = [(part, index) for part in parts for index in range(len(part))]
    return Events(range(len(pairs)), lambda row: pairs[row][0][pairs[row][1]], what)

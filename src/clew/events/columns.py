"""The trace as columns: one array per field, tables for everything that repeats.

This is what stores keep and readers read; an event costs about a hundred bytes. Rows of `events`
are in order of `id`, which is the order in which events began. Nothing here knows torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew.events.model import Gap
from clew.events.records import Kept, Label

# Of the trace on disk. It counts up with every change that a reader of the version before would
# misread or miss; a reader refuses what is newer than itself, and what is older than the oldest
# version it still reads.
SCHEMA_VERSION = 3
OLDEST_VERSION = 2

Ints = NDArray[np.int64]

IN, OUT = "in", "out"


EVENT_COLUMNS = (
    "id", "kind", "subject", "place", "parent", "start", "end", "number", "step", "template",
    "first_ref", "error",
)  # fmt: skip
VALUE_COLUMNS = ("version", "storage", "meta", "grad", "producer", "value_name")
# Every array of `Columns`: events, tensors of the events, values.
COLUMN_NAMES = (*EVENT_COLUMNS, "refs", *VALUE_COLUMNS)


class Tensor:
    """Marks the leaf of a template that stands for a tensor."""


class Symbol(str):
    """A constant that is not a number or text of its own: a dtype, a device, an object's type."""

    __slots__ = ()

    def __new__(cls, value: object) -> Symbol:
        return super().__new__(cls, str(value))

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, slots=True)
class Leaf:
    """One argument or result inside a template: a tensor, or a constant."""

    role: str
    path: str
    constant: Any


@dataclass(frozen=True, slots=True)
class Template:
    """The shape of a call: its leaves in order. Events keep only the tensors' numbers."""

    leaves: tuple[Leaf, ...]

    @property
    def tensors(self) -> list[Leaf]:
        return [leaf for leaf in self.leaves if leaf.constant is Tensor]


@dataclass(frozen=True, slots=True)
class Meta:
    """What a tensor looks like; shared by all that look the same."""

    dtype: str
    shape: tuple[int, ...] | None
    stride: tuple[int, ...] | None
    device: str
    layout: str
    cls: str
    placements: str | None
    local_shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """One name of one module. Names with the same `number` belong to one module object."""

    path: str
    cls: str
    number: int
    wrapper: bool


@dataclass(frozen=True, slots=True)
class Place:
    """One position on a call stack; `parent` is the row of the place that called it, or -1."""

    parent: int
    file: str
    function: str
    line: int
    end_line: int
    col: int
    end_col: int
    library: bool
    phase: int
    thread: int


@dataclass(slots=True)
class Columns:
    """A whole trace, or the part of it recorded so far."""

    # events; `number` is the call index of a module and the autograd number of an op, or, where
    # a gradient is accumulated, -2 minus the number of the parameter's value; of a gathered value
    # it is the step
    id: Ints
    kind: Ints
    subject: Ints
    place: Ints
    parent: Ints
    start: Ints
    end: Ints
    number: Ints
    step: Ints
    template: Ints
    first_ref: Ints
    error: Ints
    # tensors of the events, in the order of their templates' leaves
    refs: Ints
    # values
    version: Ints
    storage: Ints
    meta: Ints
    grad: Ints
    producer: Ints
    value_name: Ints
    # tables
    ops: list[str] = field(default_factory=list)
    modules: list[ModuleRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    templates: list[Template] = field(default_factory=list)
    metas: list[Meta] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    value_names: list[str] = field(default_factory=list)
    # (path, row in `modules` of the owner, number of elements)
    parameters: list[tuple[str, int, int]] = field(default_factory=list)
    threads: list[str] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    # value -> what was kept of it
    kept: Mapping[int, Kept] = field(default_factory=dict)
    # step -> "train" or "eval", for each step in which a model ran
    modes: dict[int, str] = field(default_factory=dict)
    # everything that was not seen
    gaps: list[Gap] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    rank: int = 0

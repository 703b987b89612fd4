"""A trace as columns: one array per field, tables for everything that repeats.

Stores keep these, and a run is made of them; an event costs about a hundred bytes. Rows of events
are in order of `id`, which is the order in which events began. Nothing here knows torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew.events.model import Gap
from clew.events.vocabulary import Kept, Label
from clew.plain_text import plain

# Version of the trace on disk. It counts up with every change that a reader of the version before
# would misread or miss; a reader refuses versions that are newer than itself, or older than the
# oldest it still reads.
SCHEMA_VERSION = 7
OLDEST_VERSION = 2

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]

IN, OUT = "in", "out"


EVENT_COLUMNS = (
    "id", "kind", "subject", "place", "parent", "start", "end", "number", "template", "first_ref",
    "error", "generator", "draw",
)  # fmt: skip
VALUE_COLUMNS = ("version", "storage", "meta", "grad", "producer", "value_name", "nbytes", "freed")
# Every array of `Columns`: events, tensors of the events, values.
COLUMN_NAMES = (*EVENT_COLUMNS, "refs", *VALUE_COLUMNS)
# Every array of `Derived`.
DERIVED_COLUMNS = ("step", "call", "module", "owner", "forward", "source", "prefix")


def item_size(dtype: str) -> int:
    """Return the bytes of an element of a tensor, -1 if the dtype's name does not say."""
    bits = re.match("[a-z]+([0-9]+)", dtype)
    return max(1, int(bits[1]) // 8) if bits else 1 if dtype == "bool" else -1


class Tensor:
    """Marks the leaf of a template that stands for a tensor."""


class Symbol(str):
    """A constant that is neither number nor text: a dtype, a device, the type of an object."""

    __slots__ = ()

    def __new__(cls, value: object) -> Symbol:
        return super().__new__(cls, str(value))

    def __repr__(self) -> str:
        return plain(str(self))


class ObjectClass(Symbol):
    """The class of an object; the paths of tensors in it begin with the object's path."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Leaf:
    """One argument or result inside a template: a tensor, or a constant."""

    role: str
    path: str
    constant: Any


@dataclass(frozen=True, slots=True)
class Template:
    """Structure of a call: its leaves in order. Events store only the numbers of the tensors."""

    leaves: tuple[Leaf, ...]

    @property
    def tensors(self) -> list[Leaf]:
        return [leaf for leaf in self.leaves if leaf.constant is Tensor]

    @property
    def direct(self) -> list[Leaf]:
        """Return the leaves that are not inside an object."""
        return [leaf for leaf, holder in self.held() if holder is None]

    def held(self) -> list[tuple[Leaf, Leaf | None]]:
        """Return each leaf with the outermost object that contains it, None if there is none."""
        objects = {
            (leaf.role, leaf.path): leaf
            for leaf in self.leaves
            if type(leaf.constant) is ObjectClass
        }
        if not objects:
            return [(leaf, None) for leaf in self.leaves]
        found: list[tuple[Leaf, Leaf | None]] = []
        for leaf in self.leaves:
            around = (objects.get((leaf.role, path)) for path in _above(leaf.path))
            found.append((leaf, next(filter(None, around), None)))
        return found

    def classes(self, role: str) -> dict[str, str]:
        """Give the classes of objects and records among the arguments or in the result, by path."""
        mine = [leaf for leaf in self.leaves if leaf.role == role]
        symbols = [leaf for leaf in mine if isinstance(leaf.constant, Symbol)]
        if not symbols:
            return {}
        # A symbol that contains leaves is the class of a record; others are dtypes, devices.
        above = {path for leaf in mine for path in _above(leaf.path)}
        return {
            leaf.path: str(leaf.constant)
            for leaf in symbols
            if type(leaf.constant) is ObjectClass or leaf.path in above
        }


def _above(path: str) -> Iterator[str]:
    """Yield the paths that contain a path, outermost first: of `a.b` the empty one and `a`."""
    if path:
        yield ""
    at = path.find(".")
    while at >= 0:
        yield path[:at]
        at = path.find(".", at + 1)


@dataclass(frozen=True, slots=True)
class Meta:
    """Dtype, shape and other facts of a tensor; equal ones share one row."""

    dtype: str
    shape: tuple[int, ...] | None
    stride: tuple[int, ...] | None
    device: str
    layout: str
    cls: str
    placements: str | None
    local_shape: tuple[int, ...] | None

    @property
    def nbytes(self) -> int:
        """Return the bytes of memory that a strided tensor like this needs, -1 for others."""
        size = item_size(self.dtype)
        shape, stride = self.shape, self.stride
        if size < 0 or shape is None or stride is None or self.layout != "strided":
            return -1
        if 0 in shape:
            return 0
        return size * (1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=False)))


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """One name of one module. Names with the same `number` belong to one module object."""

    path: str
    cls: str
    number: int
    wrapper: bool


@dataclass(frozen=True, slots=True)
class Attributes:
    """Settings of a module, or of a parameter group of an optimizer, from an event on.

    `number` is that of the module object, or of the optimizer; `group` that of the group in it.
    `values` are all plain attributes the first time, afterwards those that have changed.
    """

    kind: str
    number: int
    group: int
    event: int
    values: dict[str, object]


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


@dataclass(frozen=True, slots=True)
class Coded:
    """Texts as numbers of a list; -1 is none."""

    codes: Ints
    texts: Sequence[str]

    def listed(self) -> list[str | None]:
        """Return the texts themselves."""
        texts = [*self.texts, None]
        return [texts[code] for code in self.codes.tolist()]

    def __getitem__(self, row: int) -> str | None:
        code = int(self.codes[row])
        return None if code < 0 else self.texts[code]

    def where(self, test: Callable[[str], bool]) -> NDArray[np.bool_]:
        """Return the rows whose text passes a test, which is made once per text."""
        passed = np.array([*(bool(test(text)) for text in self.texts), False])
        return np.asarray(passed[self.codes])


@dataclass(frozen=True, slots=True)
class CountedTexts:
    """Texts of a head, a number and a tail, such as `op:aten.mm.default#` and 3; -1 is no number.

    `codes` has the index of each text in `heads` and `tails`.
    """

    codes: Ints
    heads: Sequence[str]
    tails: Sequence[str]
    numbers: Ints

    def listed(self) -> list[str]:
        """Return the texts themselves."""
        pairs = zip(self.codes.tolist(), self.numbers.tolist(), strict=True)
        return [
            f"{self.heads[code]}{number if number >= 0 else ''}{self.tails[code]}"
            for code, number in pairs
        ]


@dataclass(frozen=True, slots=True)
class CodedLists:
    """Lists of texts in sequence; `counts` has the length of each."""

    counts: Ints
    codes: Ints
    texts: Sequence[str]

    def listed(self) -> list[list[str]]:
        """Return the lists themselves."""
        texts = [self.texts[code] for code in self.codes.tolist()]
        ends = np.cumsum(self.counts).tolist()
        return [
            texts[end - count : end] for end, count in zip(ends, self.counts.tolist(), strict=True)
        ]


@dataclass(frozen=True, slots=True)
class NumberLists:
    """Lists of numbers in sequence; `counts` has the length of each."""

    counts: Ints
    numbers: Ints


@dataclass(slots=True)
class Derived:
    """Facts derived from the columns of events, row by row; `run.derive` computes them.

    `owner` is the id of the module call an event belongs to, `forward` that of the forward op of a
    backward op, `source` the row in `places` of the line of user code; -1 if there is none.
    `module` and `prefix` are rows of `paths` and `prefixes`, -1 outside any.
    """

    step: Ints
    call: Ints
    module: Ints
    owner: Ints
    forward: Ints
    source: Ints
    prefix: Ints
    paths: list[str]
    prefixes: list[str]

    def take(self, rows: Ints | Flags | slice) -> Derived:
        """Return the facts of some rows."""
        arrays = {name: getattr(self, name)[rows] for name in DERIVED_COLUMNS}
        return Derived(**arrays, paths=self.paths, prefixes=self.prefixes)


@dataclass(slots=True)
class Columns:
    """One rank of a trace, a part of it, or all ranks as `run.merge` joins them."""

    # events; `number` is the call index of a module and the autograd number of an op, or, for an op
    # that accumulates a gradient, -2 minus the number of the parameter's value; for a gathered
    # value it is the step; `generator` and `draw` are, for an op that drew random numbers, the
    # generator and how often it was used before
    id: Ints
    kind: Ints
    subject: Ints
    place: Ints
    parent: Ints
    start: Ints
    end: Ints
    number: Ints
    template: Ints
    first_ref: Ints
    error: Ints
    generator: Ints
    draw: Ints
    # tensors of the events, in the order of their templates' leaves
    refs: Ints
    # values; `nbytes` is the size of the memory, `freed` the id of the first op after it was freed,
    # -1 if not known
    version: Ints
    storage: Ints
    meta: Ints
    grad: Ints
    producer: Ints
    value_name: Ints
    nbytes: Ints
    freed: Ints
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
    generators: list[str] = field(default_factory=list)
    # in the order in which they were seen
    attributes: list[Attributes] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    # value -> its statistics and data
    kept: Mapping[int, Kept] = field(default_factory=dict)
    # step -> "train" or "eval", for each step in which a model ran
    modes: dict[int, str] = field(default_factory=dict)
    # everything that was not seen
    gaps: list[Gap] = field(default_factory=list)
    # what could not be read of it; data and fingerprints are read later, and may add to it
    damage: list[Gap] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    rank: int = 0
    # None until it is derived
    derived: Derived | None = None

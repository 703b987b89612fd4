"""What makes two calls the same: signatures of events, and the wiring between them.

In comes a `Run`, out comes one number per event: two module calls have the same number when
their classes, the names of the modules inside, the ops with their constants, the shapes and
dtypes all agree. Wiring, which value goes where, is compared on top of that. Without `sizes`,
calls of one module agree whatever the sizes of their tensors, as those of a decoder that sees one
token more each time.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from clew.events.columns import Ints, Leaf, Meta, Template, Tensor
from clew.events.records import GRADIENT, MODULE, OP, TAP, VARIABLE
from clew.run.run import Run

_DIGITS = re.compile(r"\d+")
_MOST_DIGITS = 18


class Structure:
    """The calls of a trace as a forest, with what is needed to compare them."""

    def __init__(self, run: Run, sizes: bool = True) -> None:
        self.run = run
        self._sizes = sizes
        c = run.columns
        self.kind: list[int] = c.kind.tolist()
        self.subject: list[int] = c.subject.tolist()
        self.parent: list[int] = run.parent_row.tolist()
        self.kids: dict[int, list[int]] = {}
        for row, parent in enumerate(self.parent):
            self.kids.setdefault(parent, []).append(row)
        self._numbers: dict[Any, int] = {}
        looks = np.array([self._number(_look(meta, sizes)) for meta in c.metas], dtype=np.int64)
        self._templates = [_Shape(t) for t in c.templates]
        self._owned = _owned_parameters(run)
        # Rows of `refs` that belong to each event, events in order.
        counts = np.array([t.tensors for t in self._templates], dtype=np.int64)[c.template]
        first = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
        at = np.repeat(c.first_ref - first[:-1], counts) + np.arange(first[-1])
        self.first: list[int] = first.tolist()
        self.values: Ints = c.refs[at]
        self._looks_of_values: Ints = looks[c.meta[self.values]]
        self.signature: list[int] = [0] * len(run)
        self.size: list[int] = [1] * len(run)
        # Whether the rows inside an event, and inside each of those, follow it without a gap.
        self._is_whole: list[bool] = [True] * len(run)
        self._indices: dict[int, list[int]] = {}
        self._sign()

    def name(self, row: int) -> str:
        """The path of a module call relative to the module that calls it."""
        modules = self.run.columns.modules
        path = modules[self.subject[row]].path
        parent = self.parent[row]
        if parent < 0 or self.kind[parent] != MODULE:
            return path
        above = modules[self.subject[parent]].path
        if path == above:
            return ""
        return path[len(above) + 1 :] if above and path.startswith(above + ".") else path

    def key(self, row: int) -> int:
        """What a row and its like among its siblings have in common, their indices left out."""
        if self.kind[row] == MODULE:
            name = _DIGITS.sub("#", self.name(row)) if self._sizes else self.name(row)
            return self._number((name, self.signature[row]))
        if self.kind[row] == OP:
            return self._number(self._op(row, loose=True))
        return self._number(self._other(row))

    def indices(self, row: int) -> list[int]:
        """The numbers in a module's name or among an op's constants, which may count up."""
        if not self._sizes:
            return []
        if self.kind[row] == MODULE:
            found = self._indices.get(row)
            if found is None:
                found = self._indices[row] = numbers_in(self.name(row))
            return found
        return self._templates[int(self.run.columns.template[row])].indices

    def subtree(self, row: int) -> list[int]:
        """An event and everything inside it, in order."""
        if self._is_whole[row]:
            return list(range(row, row + self.size[row]))
        rows = [row]
        if self.kids.get(row):
            pending = self.kids[row][::-1]
            while pending:
                inner = pending.pop()
                rows.append(inner)
                pending += self.kids.get(inner, ())[::-1]
        return rows

    def wiring(self, rows: list[int]) -> Ints:
        """The values of some events, numbered by when they first occur."""
        if rows[-1] - rows[0] + 1 == len(rows):
            values = self.values[self.first[rows[0]] : self.first[rows[-1] + 1]]
        else:
            parts = [self.values[self.first[row] : self.first[row + 1]] for row in rows]
            values = np.concatenate(parts)
        if not len(values):
            return values
        _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
        rank = np.empty(len(first), dtype=np.int64)
        rank[np.argsort(first)] = np.arange(len(first))
        return rank[inverse]

    def same_wiring(self, row: int, other: int) -> bool:
        """Whether two calls of the same structure are wired the same inside."""
        return np.array_equal(self.wiring(self.subtree(row)), self.wiring(self.subtree(other)))

    def looks(self, rows: Ints) -> tuple[Ints, Ints]:
        """Give how many tensors each of some events has, and what all of those look like."""
        first = np.asarray(self.first, dtype=np.int64)
        counts = first[rows + 1] - first[rows]
        starts = np.cumsum(counts) - counts
        at = np.repeat(first[rows] - starts, counts) + np.arange(int(counts.sum()))
        return counts, self._looks_of_values[at]

    def likeness(self, row: int) -> tuple[int | str, bytes]:
        """Give what an op, or a call of some class, and its like have in common.

        Constants and what ran in a call make no difference.
        """
        subject = self.subject[row]
        is_call = self.kind[row] == MODULE
        return self.run.columns.modules[subject].cls if is_call else subject, self._tensors(row)

    def _sign(self) -> None:
        parent, kind = self.parent, self.kind
        is_whole, last = self._is_whole, list(range(len(kind)))
        for row in range(len(kind) - 1, -1, -1):
            if kind[row] == MODULE:
                self.signature[row] = self._number(self._module(row))
            elif kind[row] == OP:
                self.signature[row] = self._number(self._op(row, loose=False))
            else:
                self.signature[row] = self._number(self._other(row))
            is_whole[row] = is_whole[row] and last[row] - row + 1 == self.size[row]
            above = parent[row]
            if above >= 0:
                self.size[above] += self.size[row]
                last[above] = max(last[above], last[row])
                is_whole[above] = is_whole[above] and is_whole[row]

    def _module(self, row: int) -> tuple[Any, ...]:
        c = self.run.columns
        module = c.modules[self.subject[row]]
        inside = self.kids.get(row, ())
        template = self._templates[int(c.template[row])]
        return (
            module.cls,
            self._owned.get(module.number, ()),
            # What constants do shows in the ops; without any, the constants are all there is.
            template.tensor_paths if inside or not self._sizes else template.exact,
            self._tensors(row),
            int(c.error[row]),
            int(c.end[row]) < 0,
            int(self.run.phase[row]),
            tuple(
                (self.name(kid) if self.kind[kid] == MODULE else "", self.signature[kid])
                for kid in inside
            ),
        )

    def _op(self, row: int, loose: bool) -> tuple[Any, ...]:
        c = self.run.columns
        number = int(c.template[row])
        template = number if self._sizes and not loose else self._templates[number].loose
        return (
            self.subject[row], template, self._tensors(row), int(c.error[row]),
            int(self.run.phase[row]),
        )  # fmt: skip

    def _other(self, row: int) -> tuple[Any, ...]:
        """What a named value is compared by; other events are like none."""
        if self.kind[row] not in (VARIABLE, TAP, GRADIENT):
            return "event", row
        label = self.run.columns.labels[self.subject[row]]
        return "named", label.kind, label.name, label.role, self._tensors(row)

    def _tensors(self, row: int) -> bytes:
        """What the tensors of an event look like, as something to compare."""
        return self._looks_of_values[self.first[row] : self.first[row + 1]].tobytes()

    def _number(self, key: Any) -> int:
        return self._numbers.setdefault(key, len(self._numbers))


def numbers_in(name: str) -> list[int]:
    """Give the numbers in a name; those too long to count up are only told apart.

    >>> numbers_in("layers.11.conv2")
    [11, 2]
    """
    found = _DIGITS.findall(name)
    return [int(n) if len(n) <= _MOST_DIGITS else int.from_bytes(n.encode(), "big") for n in found]


class _Shape:
    """One template in the forms in which it is compared."""

    __slots__ = ("exact", "indices", "loose", "tensor_paths", "tensors")

    def __init__(self, template: Template) -> None:
        leaves = template.leaves
        self.tensors = sum(leaf.constant is Tensor for leaf in leaves)
        self.tensor_paths = tuple((t.role, t.path) for t in leaves if t.constant is Tensor)
        self.exact = tuple((leaf.role, leaf.path, _constant(leaf)) for leaf in leaves)
        self.indices: list[int] = []
        loose: list[tuple[str, str, int | str]] = []
        for leaf in leaves:
            numbers = leaf.constant if type(leaf.constant) is list else [leaf.constant]
            if all(type(number) is int for number in numbers):
                self.indices += numbers
                loose.append((leaf.role, leaf.path, len(numbers)))
            else:
                loose.append((leaf.role, leaf.path, _constant(leaf)))
        self.loose = tuple(loose)


def _constant(leaf: Leaf) -> str:
    return "tensor" if leaf.constant is Tensor else repr(leaf.constant)


def _look(meta: Meta, sizes: bool) -> tuple[Any, ...]:
    """What counts as the look of a tensor: everything but its strides, perhaps its sizes."""
    shape = (meta.shape, meta.local_shape) if sizes else len(meta.shape or ())
    return "meta", meta.dtype, shape, meta.device, meta.layout, meta.cls, meta.placements


def _owned_parameters(run: Run) -> dict[int, tuple[tuple[str, int], ...]]:
    """For each module its own parameters: name and number of elements."""
    c = run.columns
    owned: dict[int, list[tuple[str, int]]] = {}
    for path, owner, size in c.parameters:
        owned.setdefault(c.modules[owner].number, []).append((path.rpartition(".")[2], size))
    return {number: tuple(parameters) for number, parameters in owned.items()}

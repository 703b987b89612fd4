"""What makes two calls the same: signatures of events, and the wiring between them.

Input: a `Run`. Output: one number per event. Two module calls have the same number when their
classes, the names of the modules inside, the ops with their constants, the shapes and dtypes all
agree. Wiring, which value goes where, is compared in addition. Without `sizes`, calls of one module
agree whatever the sizes of their tensors, as in a decoder that gets one token more each time.
"""

from __future__ import annotations

import re
from functools import cached_property

import numpy as np

from clew.analysis.nested_rows import Nesting
from clew.events.columns import Flags, Ints, Leaf, Meta, Template, Tensor
from clew.events.vocabulary import GRADIENT, MODULE, OF_OPS, TAP, VARIABLE
from clew.run.lookup import number_lists, numbered
from clew.run.run import Run

_DIGITS = re.compile(r"\d+")
_MOST_DIGITS = 18


# Room for signatures beside the number of a name.
_MOST_SIGNATURES = 1 << 40


class Structure:
    """The calls of a trace as a forest, with what is needed to compare them."""

    def __init__(self, run: Run, sizes: bool = True) -> None:
        self.run = run
        self._sizes = sizes
        c = run.columns
        self.kind: list[int] = c.kind.tolist()
        self.subject: list[int] = c.subject.tolist()
        self.parent: Ints = run.parent_row
        self.kids = Nesting(run.parent_row)
        self._numbers: dict[object, int] = {}
        looks = np.array([self._number(_look(meta, sizes)) for meta in c.metas], dtype=np.int64)
        self._templates = [_TemplateForms(t) for t in c.templates]
        self.tensors = TensorLooks(run, looks)
        self._indices: dict[int, list[int]] = {}
        self._signature, self._keys = self._sign_leaves()
        self._sign_calls(self._signature)

    def name(self, row: int) -> str:
        """Return the path of a module call relative to the module that calls it."""
        parent = int(self.parent[row])
        return self._relative(self.subject[row], self.subject[parent] if parent >= 0 else -1)

    def _relative(self, subject: int, above: int) -> str:
        modules = self.run.columns.modules
        return relative_path(modules[subject].path, None if above < 0 else modules[above].path)

    def key(self, row: int) -> int:
        """Return a key that equal siblings share, with indices in names left out."""
        if self.kind[row] == MODULE:
            name = _DIGITS.sub("#", self.name(row)) if self._sizes else self.name(row)
            return self._number((name, int(self._signature[row])))
        # Below 0, as the numbers of calls are not.
        return -1 - int(self._keys[row])

    def indices(self, row: int) -> list[int]:
        """Return the numbers in a module's name or among an op's constants, which may count up."""
        if not self._sizes:
            return []
        if self.kind[row] == MODULE:
            found = self._indices.get(row)
            if found is None:
                found = self._indices[row] = numbers_in(self.name(row))
            return found
        return self._templates[int(self.run.columns.template[row])].indices

    def subtree(self, row: int) -> list[int]:
        """Return an event and everything inside it, in order."""
        if self.kids.is_whole[row]:
            return list(range(row, row + int(self.kids.sizes[row])))
        rows = [row]
        pending = self.kids.get(row, [])[::-1]
        while pending:
            inner = pending.pop()
            rows.append(inner)
            pending += self.kids.get(inner, [])[::-1]
        return rows

    def same_wiring(self, row: int, other: int) -> bool:
        """Return whether two calls of the same structure are wired the same inside."""
        wiring = self.tensors.wiring
        return np.array_equal(wiring(self.subtree(row)), wiring(self.subtree(other)))

    def likeness(self, row: int) -> tuple[int | str, int]:
        """Return a key that equal ops, or calls of one class, share.

        It ignores constants and what ran in a call.
        """
        subject = self.subject[row]
        is_call = self.kind[row] == MODULE
        cls = self.run.columns.modules[subject].cls if is_call else subject
        return cls, int(self.tensors.number[row])

    def likenesses(self, rows: Ints) -> bytes:
        """Return the keys of `likeness` of some events, as bytes that equal lists share."""
        return np.stack([self._like[rows], self.tensors.number[rows]]).tobytes()

    @cached_property
    def _like(self) -> Ints:
        """Return the number of each op's overload, and of each call's class, negative."""
        classes: dict[str, int] = {}
        c = self.run.columns
        of_module = [-1 - classes.setdefault(module.cls, len(classes)) for module in c.modules]
        is_call = c.kind == MODULE
        found = c.subject.astype(np.int64)
        found[is_call] = np.array(of_module, dtype=np.int64)[c.subject[is_call]]
        return found

    def _sign_leaves(self) -> tuple[Ints, Ints]:
        """Number all events but calls by what they are, and again with their indices left out."""
        c, phase = self.run.columns, self.run.phase
        # By default each event equals only itself; equal ones are joined below.
        signature = np.arange(len(c.id))
        keys = signature.copy()
        first = len(c.id)
        ops = np.flatnonzero(np.isin(c.kind, OF_OPS))
        loose = np.array([self._number(shape.loose) for shape in self._templates], dtype=np.int64)
        facts = c.subject[ops], self.tensors.number[ops], c.error[ops], phase[ops]
        template = c.template[ops]
        if len(ops):
            keys[ops] = first + numbered(loose[template], *facts)
            signature[ops] = first + numbered(template, *facts) if self._sizes else keys[ops]
            first += 2 * len(ops)
        named = np.flatnonzero(np.isin(c.kind, (VARIABLE, TAP, GRADIENT)))
        if len(named):
            labels = [self._number((n.kind, n.name, n.role)) for n in c.labels]
            label = np.array(labels, dtype=np.int64)[c.subject[named]]
            keys[named] = signature[named] = first + numbered(label, self.tensors.number[named])
        return signature, keys

    def _sign_calls(self, signature: Ints) -> None:
        """Number the calls in place, from the innermost outwards."""
        c, shapes = self.run.columns, self._templates
        is_call = c.kind == MODULE
        names = self._names(is_call)
        owned = _owned_parameters(self.run)
        numbers_of = [self._number((m.cls, owned.get(m.number, ()))) for m in c.modules]
        modules = np.array(numbers_of, dtype=np.int64)
        exact = np.array([self._number(shape.exact) for shape in shapes], dtype=np.int64)
        paths = np.array([self._number(shape.tensor_paths) for shape in shapes], dtype=np.int64)
        for level in reversed(self.kids.levels):
            rows = level[is_call[level]]
            if not len(rows):
                continue
            counts, kids = self.kids.inside(rows)
            inside = names[kids] * _MOST_SIGNATURES + signature[kids]
            # The effect of constants shows in the ops; a call without ops is compared by its
            # constants.
            bare = (counts > 0) | (not self._sizes)
            template = np.where(bare, paths[c.template[rows]], exact[c.template[rows]])
            facts = (
                modules[c.subject[rows]], template, self.tensors.number[rows], c.error[rows],
                c.end[rows] < 0, self.run.phase[rows],
            )  # fmt: skip
            like = first = np.zeros(1, dtype=np.int64)
            if len(rows) > 1:
                like, first = _first_of_each(numbered(*facts, number_lists(counts, inside)))
            ends = np.cumsum(counts)
            numbers = [
                self._number(
                    (*(int(fact[at]) for fact in facts),
                     inside[ends[at] - counts[at] : ends[at]].tobytes())
                )
                for at in first.tolist()
            ]  # fmt: skip
            signature[rows] = 3 * len(c.id) + np.array(numbers, dtype=np.int64)[like]

    def _names(self, is_call: Flags) -> Ints:
        """Number calls by their names, from 1 on; other events have 0."""
        subjects = self.run.columns.subject
        names = np.zeros(len(is_call), dtype=np.int64)
        rows = np.flatnonzero(is_call)
        parent = self.run.parent_row[rows]
        subject, above = subjects[rows], np.where(parent >= 0, subjects[parent], -1)
        like, first = _first_of_each(numbered(subject, above))
        pairs = zip(subject[first].tolist(), above[first].tolist(), strict=True)
        numbers = [1 + self._number(self._relative(*pair)) for pair in pairs]
        names[rows] = np.array(numbers, dtype=np.int64)[like]
        return names

    def _number(self, key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers))


class TensorLooks:
    """The tensors of each event by their looks; `number` is equal for events whose looks are.

    Tensors inside objects are left out: the content of a cache differs from layer to layer, which
    does not make calls different.
    """

    def __init__(self, run: Run, looks: Ints) -> None:
        tensors = run.direct_tensors
        self._counts, self._values = tensors.counts, tensors.value
        self._first: Ints = np.concatenate([[0], np.cumsum(tensors.counts)])
        self._looks: Ints = looks[run.columns.meta[tensors.value]]
        self.number = number_lists(tensors.counts, self._looks)

    def looks(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return how many tensors each of some events has, and a number for the look of each."""
        counts = self._counts[rows]
        starts = np.cumsum(counts) - counts
        at = np.repeat(self._first[rows] - starts, counts) + np.arange(int(counts.sum()))
        return counts, self._looks[at]

    def wiring(self, rows: list[int]) -> Ints:
        """Return the values of some events, numbered in order of first use."""
        first, values = self._first, self._values
        if rows[-1] - rows[0] + 1 == len(rows):
            values = values[first[rows[0]] : first[rows[-1] + 1]]
        else:
            values = np.concatenate([values[first[row] : first[row + 1]] for row in rows])
        if not len(values):
            return values
        _, first_met, inverse = np.unique(values, return_index=True, return_inverse=True)
        rank = np.empty(len(first_met), dtype=np.int64)
        rank[np.argsort(first_met)] = np.arange(len(first_met))
        return rank[inverse]


def relative_path(path: str, outer: str | None) -> str:
    """Return the path of a module relative to one it was called in, None for none.

    >>> relative_path("h.0.attn", "h.0"), relative_path("head", "h.0"), relative_path("h.0", "h.0")
    ('attn', 'head', '')
    """
    if path == outer:
        return ""
    return path[len(outer) + 1 :] if outer and path.startswith(outer + ".") else path


def numbers_in(name: str) -> list[int]:
    """Return the numbers in a name; those with too many digits become a hash.

    >>> numbers_in("layers.11.conv2")
    [11, 2]
    """
    found = _DIGITS.findall(name)
    return [int(n) if len(n) <= _MOST_DIGITS else int.from_bytes(n.encode(), "big") for n in found]


def _first_of_each(numbers: Ints) -> tuple[Ints, Ints]:
    """Return numbers from 0 on as they are, and the first row of each."""
    first = np.zeros(numbers.max(initial=-1) + 1, dtype=np.int64)
    first[numbers[::-1]] = np.arange(len(numbers))[::-1]
    return numbers, first


class _TemplateForms:
    """One template in the forms in which it is compared."""

    __slots__ = ("exact", "indices", "loose", "tensor_paths")

    def __init__(self, template: Template) -> None:
        leaves = template.direct
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


def _look(meta: Meta, sizes: bool) -> tuple[object, ...]:
    """Return what is compared of a tensor: all but its strides, with or without its sizes."""
    shape = (meta.shape, meta.local_shape) if sizes else len(meta.shape or ())
    return "meta", meta.dtype, shape, meta.device, meta.layout, meta.cls, meta.placements


def _owned_parameters(run: Run) -> dict[int, tuple[tuple[str, int], ...]]:
    """Return for each module its direct parameters: name and number of elements."""
    c = run.columns
    owned: dict[int, list[tuple[str, int]]] = {}
    for path, owner, size in c.parameters:
        owned.setdefault(c.modules[owner].number, []).append((path.rpartition(".")[2], size))
    return {number: tuple(parameters) for number, parameters in owned.items()}

"""The data flow of one run, as arrays: ops in order, what each took and returned.

Input: a `Run`. Output: a `FlowGraph`, in which ops have indices and values their numbers. Results
of ops that return uninitialised memory are marked: comparing them means nothing.
"""

from __future__ import annotations

from functools import cached_property
from itertools import chain

import numpy as np

from clew.events.columns import Flags, Ints
from clew.events.op_names import UNINITIALISED, bare_op
from clew.events.vocabulary import MODULE, OP
from clew.run.run import Run
from clew.run.value_stats import digests

# What only moves elements, or takes some of them.
_MOVES = frozenset({
    "view", "_unsafe_view", "reshape", "_reshape_alias", "t", "transpose", "permute", "expand",
    "clone", "contiguous", "split", "split_with_sizes", "chunk", "unbind", "slice", "select",
    "squeeze", "unsqueeze", "alias", "detach", "lift_fresh", "lift_fresh_copy", "view_as_complex",
    "view_as_real", "narrow", "flatten", "unflatten", "movedim", "diagonal", "unfold", "as_strided",
})  # fmt: skip

# Results of these do not depend on the numbers in what they took.
_BLIND = frozenset({
    "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "empty_like", "new_zeros",
    "new_ones", "new_full", "new_empty", "fill_", "zero_",
})  # fmt: skip
# What these write to their first argument does not depend on what it held.
_WRITERS = frozenset({
    "copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "exponential_", "log_normal_",
    "cauchy_", "geometric_", "bernoulli_", "set_",
})  # fmt: skip
# The last result of these is memory that only their backward pass can read.
_WITH_SCRATCH = frozenset({"mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn"})
# Results of these say next to nothing about the values that they took.
_FORGETFUL = _BLIND | {
    "gt", "lt", "ge", "le", "eq", "ne", "isnan", "isfinite", "isinf", "argmax", "argmin", "sign",
    "sgn", "any", "all", "logical_not", "bernoulli",
}  # fmt: skip
# What these return sums up many numbers in one: many others give the same sum.
_SUMMARIES = frozenset({
    "mean", "sum", "var", "std", "var_mean", "std_mean", "prod", "median", "amax", "amin", "max",
    "min", "norm", "linalg_vector_norm", "logsumexp", "nanmean", "nansum",
})  # fmt: skip
# All but the first result of these are sums, too.
_NORMS = frozenset({
    "native_layer_norm", "native_group_norm", "native_batch_norm", "_fused_rms_norm",
    "_native_batch_norm_legit", "_native_batch_norm_legit_no_training",
})  # fmt: skip


class FlowGraph:
    """Ops of one rank of a run, in order, and the values between them."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.rows: Ints = run.rows(OP)
        tensors = run.tensors
        index = np.full(len(run) + 1, -1, dtype=np.int64)
        index[self.rows] = np.arange(len(self.rows))
        op = index[tensors.event]
        mine = op >= 0
        op, value, gives = op[mine], tensors.value[mine], tensors.is_output[mine]
        self.takes = Grouped(op[~gives], value[~gives], len(self.rows))
        self.gives = Grouped(op[gives], value[gives], len(self.rows))
        producer = run.producers
        self.maker: Ints = np.where(producer >= 0, index[producer], -1)

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def names(self) -> list[str]:
        """Return the bare name of each op of the op table."""
        return [bare_op(name) for name in self.run.columns.ops]

    @cached_property
    def name_codes(self) -> Ints:
        """Return for each op its row in the op table."""
        return np.asarray(self.run.columns.subject[self.rows])

    def are(self, names: frozenset[str]) -> Flags:
        """Return for each op whether it has one of these bare names."""
        known = np.array([name in names for name in self.names] + [False])
        return np.asarray(known[self.name_codes])

    @cached_property
    def is_move(self) -> Flags:
        """Return for each op whether it only moves elements, or takes some of them."""
        return self.are(_MOVES)

    @cached_property
    def is_blind(self) -> Flags:
        """Return for each op whether its results do not depend on the numbers that it took."""
        return self.are(_BLIND)

    @cached_property
    def is_forgetful(self) -> Flags:
        """Return for each op whether its results say little about the values that it took."""
        return self.are(_FORGETFUL)

    @cached_property
    def is_summary(self) -> Flags:
        """Return for each value whether it sums up many numbers of what its op took in one."""
        found = np.append(self.are(_SUMMARIES), False)[self.maker]
        for op in np.flatnonzero(self.are(_NORMS)).tolist():
            found[self.gives[op][1:]] = True
        return np.asarray(found)

    @cached_property
    def is_writer(self) -> Flags:
        """Return for each op whether it writes to its first argument whatever that held."""
        return self.are(_WRITERS)

    @cached_property
    def is_uninitialised(self) -> Flags:
        """Return for each op whether it returns memory that nothing has written yet."""
        return self.are(UNINITIALISED)

    @cached_property
    def same_as(self) -> Ints:
        """Return for each value that its op did not return the result on the same memory, else -1.

        A result that was kept for the backward pass comes back as a value of its own.
        """
        storage = self.run.columns.storage.tolist()
        kept = self.maker >= 0
        kept[self.gives.values] = False
        found: Ints = np.full(len(kept), -1, dtype=np.int64)
        for value in np.flatnonzero(kept).tolist():
            given = self.gives[int(self.maker[value])]
            found[value] = next((v for v in given if storage[v] == storage[value]), -1)
        return found

    @cached_property
    def unwritten(self) -> Flags:
        """Return which values are memory that nothing has written, or views of such memory."""
        unset, moves = self.is_uninitialised.tolist(), self.is_move.tolist()
        maker = self.maker.tolist()
        for op in range(len(self)):
            takes = self.takes[op]
            if moves[op] and takes:
                unset[op] = maker[takes[0]] >= 0 and unset[maker[takes[0]]]
        found = np.array([*unset, False], dtype=bool)[self.maker]
        for op in np.flatnonzero(self.are(_WITH_SCRATCH)).tolist():
            found[self.gives[op][-1:]] = True
        return np.asarray(found)

    @cached_property
    def ends(self) -> list[int]:
        """Return the values that come out: of the outermost module calls, or that no op took."""
        run, tensors = self.run, self.run.tensors
        outermost = (run.columns.kind == MODULE) & (run.parent_row < 0)
        given = tensors.value[tensors.is_output & outermost[tensors.event]]
        if not len(given):
            taken = np.zeros(len(self.maker), dtype=bool)
            taken[self.takes.values] = True
            given = self.gives.values[~taken[self.gives.values]]
        found: list[int] = np.unique(given[self.depends[given]]).tolist()
        return found

    def texts(self, ops: Ints | list[int]) -> list[str]:
        """Return the source text of the line of each op, empty where there is none."""
        run = self.run
        places = run.derived.source[self.rows[ops]].tolist()
        found = (None if at < 0 else run.columns.places[at] for at in places)
        return ["" if place is None else run.line_text(place.file, place.line) for place in found]

    @cached_property
    def digests(self) -> list[str | None]:
        """Return the digest of each value, None where none was recorded."""
        parts = (digests(columns.kept, len(columns.meta)) for columns, _ in self.run.parts)
        return list(chain.from_iterable(parts))

    @cached_property
    def depends(self) -> Flags:
        """Return for each value whether it comes from outside, or was computed from what does.

        Others are constants of the program: a mask, positions, a table of angles.
        """
        outside = (self.maker < 0) & ~self._is_number
        # By op, as a tensor kept for the backward pass has a number of its own.
        maker, given = self.maker.tolist(), outside.tolist()
        found = [False] * len(self)
        for op in range(len(self)):
            found[op] = any(given[v] or (maker[v] >= 0 and found[maker[v]]) for v in self.takes[op])
        return np.asarray(outside | np.array([*found, False], dtype=bool)[self.maker])

    @cached_property
    def _is_number(self) -> Flags:
        """Return which values have no axes and no name, as numbers of the program do."""
        c = self.run.columns
        numbers = np.array([meta.shape == () for meta in self.run.metas] + [False], dtype=bool)
        return np.asarray(numbers[c.meta] & (c.value_name < 0))


class Grouped:
    """Numbers in groups: those of one group follow each other."""

    def __init__(self, groups: Ints, values: Ints, count: int) -> None:
        """Take ascending groups, the number that belongs to each, and how many groups there are."""
        self.values = values
        self.first: list[int] = np.searchsorted(groups, np.arange(count + 1)).tolist()
        self._listed: list[int] = values.tolist()

    def __getitem__(self, group: int) -> list[int]:
        return self._listed[self.first[group] : self.first[group + 1]]

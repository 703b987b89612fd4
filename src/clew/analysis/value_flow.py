"""How NaN and Inf flow from value to value through the ops, or the calls, that took them.

Input: a `Run`. Output: arrays over its values (which hold NaN or Inf, which have statistics) and
which of them reach a module's output, a loss or a gradient. If statistics of a result were not
recorded, what arrives is `UNKNOWN`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from clew.errors import ClewError
from clew.events.columns import Flags, Ints, Meta
from clew.events.op_names import UNINITIALISED, bare_op
from clew.events.vocabulary import BACKWARD, COMPOSITE, GRADIENT, LABELLED, MODULE, OP
from clew.run.run import Run

# What reaches an output, a loss or a gradient, as bits.
INF, NAN, UNKNOWN = 1, 2, 4


# Ops that return their argument as it is.
_IDLE = ("lift_fresh", "detach_")
# Ops that put memory from elsewhere under a tensor: what a worker sent, what a file held.
_BRINGING = "aten.set_.source_Storage"
# Ops that write all of the memory they are given and read none of it; so do all `out=` forms.
_OVERWRITING = frozenset(
    {"copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_",
     "cauchy_", "log_normal_", "geometric_"}
)  # fmt: skip


class ValueFlow:
    """The values of a run, which of them are not finite, and the rows they flow through.

    `values`, `event` and `is_result` have for each tensor of each event its number, the row of the
    event, and whether it is a result. `ends_at` are the events whose values count as the ends that
    others reach; without it, these are modules' outputs, losses and gradients and, in a run that
    `is_over`, what nothing else was computed from.
    """

    def __init__(
        self, run: Run, ends_at: Sequence[int] | None = None, is_over: bool = True
    ) -> None:
        self.run = run
        self._ends_at = ends_at
        self._is_over = is_over
        c = run.columns
        tensors = run.tensors
        # Values flow through the ops in a composite, not through itself.
        flows = c.kind[tensors.event] != COMPOSITE
        self.values: Ints = tensors.value[flows]
        self.event: Ints = tensors.event[flows]
        self.is_result: Flags = tensors.is_output[flows]
        made_by = run.producers
        # A trace without events may name producers of its values.
        made = (made_by >= 0) & bool(len(run))
        handed = np.append(self._op_traits[2], False)
        self.producer = np.where(made & handed[np.where(made, made_by, -1)], -1, made_by)
        self.has_ops = bool((c.kind == OP).any())
        self.is_float: Flags = _per_meta(run, lambda meta: _is_float(meta.dtype))
        self.known: Flags = (run.stats["count"] >= 0) | ~self.is_float
        self.nan: Flags = run.stats["nan"] > 0
        self.inf: Flags = run.stats["inf"] > 0
        self._look_at_python_numbers()
        self.bad: Flags = self.nan | self.inf
        self._join_equals()

    def _look_at_python_numbers(self) -> None:
        """Check captured Python floats, which have no statistics."""
        for number in np.flatnonzero(_per_meta(self.run, lambda meta: meta.cls == "float")):
            try:
                held = self.run.value(int(number)).item()
            except ClewError:
                continue
            if isinstance(held, float):
                self.known[number] = True
                self.nan[number] = math.isnan(held)
                self.inf[number] = math.isinf(held)

    def _join_equals(self) -> None:
        """Join values with the same memory, version and meta into one.

        Each observer that meets a tensor from outside first records it as a new value.
        """
        c = self.run.columns
        numbers = np.flatnonzero(self.bad & (c.version >= 0))
        columns = (c.storage, c.version, c.meta, self.producer)
        facts = np.stack([column[numbers] for column in columns])
        _, first, inverse = np.unique(facts, axis=1, return_index=True, return_inverse=True)
        stands_for = np.arange(len(self.bad))
        stands_for[numbers] = numbers[first[inverse.reshape(-1)]]
        others = stands_for != np.arange(len(self.bad))
        self.values = stands_for[self.values]
        self.nan[others] = self.inf[others] = self.bad[others] = False

    # Rows

    @cached_property
    def _op_traits(self) -> tuple[Flags, Flags, Flags]:
        """Return for each row whether it gives uninitialised memory, overwrites it, is idle."""
        names = self.run.columns.ops
        bases = [bare_op(name) for name in names]
        last = [name.rpartition(".")[2] for name in names]
        traits = (
            [base in UNINITIALISED for base in bases],
            [b in _OVERWRITING or e == "out" or e.endswith("_out")
             for b, e in zip(bases, last, strict=True)],
            [base in _IDLE or name.startswith(_BRINGING)
             for base, name in zip(bases, names, strict=True)],
        )  # fmt: skip
        c = self.run.columns
        subject = np.where(c.kind == OP, c.subject, len(names))
        first, second, third = (np.array([*trait, False], dtype=bool)[subject] for trait in traits)
        return first, second, third

    @property
    def is_uninitialised(self) -> Flags:
        """Return for each row whether it is an op that returns uninitialised memory."""
        return self._op_traits[0]

    @cached_property
    def _carries(self) -> Flags:
        """Return for each row whether values flow through it: ops, or calls if there are no ops."""
        return np.asarray(self.run.columns.kind == (OP if self.has_ops else MODULE))

    @cached_property
    def unwritten(self) -> Flags:
        """Return which non-finite values nothing wrote, or nothing read before an overwrite."""
        found: Flags = np.zeros(len(self.bad), dtype=bool)
        c = self.run.columns
        made = self.producer >= 0
        fresh = np.zeros(len(self.bad), dtype=bool)
        fresh[made] = self.is_uninitialised[self.producer[made]]
        on_fresh = np.isin(c.storage, np.unique(c.storage[fresh]))
        # `torch.tensor` makes memory, fills it without an op, and hands it over by one.
        brought = np.zeros(len(self.bad), dtype=bool)
        brought[self.values[self._op_traits[2][self.event]]] = True
        overwritten = self.bad & ~made & self._op_traits[1][self.first_taken]
        for number in np.flatnonzero(overwritten & (self.first_taken >= 0)).tolist():
            # A parameter made on fresh memory looks like memory from outside.
            _, given = self.leaves(int(self.first_taken[number]))
            found[number] = c.storage[number] in c.storage[given]
        for number in np.flatnonzero(self.bad & on_fresh).tolist():
            row = int(self.producer[number])
            if fresh[number] or row < 0:
                found[number] = fresh[number] or not brought[number]
                continue
            taken, given = self.leaves(row)
            others = taken[c.storage[taken] != c.storage[number]]
            is_overwritten = bool(self._op_traits[1][row]) and number in given
            found[number] = not is_overwritten and not (self.bad[others] & ~found[others]).any()
        return found

    def leaves(self, row: int) -> tuple[Ints, Ints]:
        """Return the numbers of the tensors an event took, and of those it gave."""
        first, end = np.searchsorted(self.event, [row, row + 1])
        numbers, is_result = self.values[first:end], self.is_result[first:end]
        return numbers[~is_result], numbers[is_result]

    @cached_property
    def takes_bad(self) -> Flags:
        """Return for each row whether an input is not finite."""
        found: Flags = np.zeros(len(self.run), dtype=bool)
        mine = ~self.is_result & self.bad[self.values]
        ignored = self.unwritten[self.values] & self._op_traits[1][self.event]
        found[self.event[mine & ~ignored]] = True
        return found

    @cached_property
    def touches_bad(self) -> Flags:
        """Return for each row whether an input or result is not finite."""
        found: Flags = np.zeros(len(self.run), dtype=bool)
        found[self.event[self.bad[self.values]]] = True
        return found

    @cached_property
    def takes_suspect(self) -> Flags:
        """Return for each row whether an input is unchecked and comes from a non-finite value."""
        found: Flags = np.zeros(len(self.run), dtype=bool)
        if self.known.all() or not self.bad.any():
            return found
        maybe = self.bad | ~self.known
        taken = self._leaf_groups(~self.is_result & maybe[self.values])
        results = self._results(~self.known)
        suspects: set[int] = set()
        bad = self.bad.tolist()
        for row in taken.rows:
            took = taken[row]
            is_suspect = not suspects.isdisjoint(took)
            found[row] = is_suspect
            if self._carries[row] and (is_suspect or any(bad[n] for n in took)):
                suspects.update(results[row])
        return found

    def _leaf_groups(self, which: Flags) -> _Groups:
        """Group some of the events' tensors by event."""
        return _Groups(self.event[which], self.values[which], len(self.run))

    def _results(self, wanted: Flags) -> _Groups:
        """Group some values by the row that made them.

        An op made the values whose producer it is, also memory that it wrote through a view; a call
        made what it returned.
        """
        if not self.has_ops:
            is_returned = self.is_result & wanted[self.values] & self._carries[self.event]
            return self._leaf_groups(is_returned)
        numbers = np.flatnonzero(wanted & (self.producer >= 0))
        numbers = numbers[np.argsort(self.producer[numbers], kind="stable")]
        return _Groups(self.producer[numbers], numbers, len(self.run))

    # Where values first occur

    @cached_property
    def first_taken(self) -> Ints:
        """Return for each value the row of the call or op that took it first, -1 for none."""
        kinds = self.run.columns.kind[self.event]
        rows = ~self.is_result & np.isin(kinds, (MODULE, OP))
        plain = self._first(rows & ~self._op_traits[2][self.event])
        return np.where(plain >= 0, plain, self._first(rows))

    @cached_property
    def first_named(self) -> Ints:
        """Return for each value the row of its first variable, tap or gradient, or -1."""
        return self._first(np.isin(self.run.columns.kind[self.event], LABELLED))

    @cached_property
    def first_seen(self) -> Ints:
        """Return for each value the row that took it first, or else that named it, or -1."""
        return np.where(self.first_taken >= 0, self.first_taken, self.first_named)

    def _first(self, leaves: Flags) -> Ints:
        rows: Ints = np.full(len(self.bad), -1, dtype=np.int64)
        # Of several assignments the last one wins.
        rows[self.values[leaves][::-1]] = self.event[leaves][::-1]
        return rows

    # What arrives

    @cached_property
    def _ends(self) -> Flags:
        """Return which values are a module's output, a loss, a gradient, or the final result."""
        run, c = self.run, self.run.columns
        ends: Flags = np.zeros(len(self.bad), dtype=bool)
        if self._ends_at is not None:
            ends[self.values[np.isin(self.event, self._ends_at)]] = True
            return ends
        kind, phase = c.kind[self.event], run.phase[self.event]
        ends[self.values[self.is_result & (kind == MODULE)]] = True
        ends[self.values[kind == GRADIENT]] = True
        for row in np.flatnonzero((run.end < 0) | (c.end < 0)).tolist():
            if run.is_reconstructed(row):
                ends[[value.number for value in run.event(row).outputs.values()]] = True
        accumulated = (c.kind == OP) & (c.number <= -2)
        ends[self.values[self.is_result & accumulated[self.event]]] = True
        made = self.producer >= 0
        first = np.where(made, self.producer, self.first_seen)
        backward = made & (run.phase[first] == BACKWARD)
        is_start = np.array([bare_op(name) == "ones_like" for name in c.ops] + [False])
        starts = is_start[np.where(c.kind == OP, c.subject, -1)][self.event]
        started = self.values[~self.is_result & (phase == BACKWARD) & starts]
        ends[started[~backward[started]]] = True
        used, used_before = self._used()
        outside = (first >= 0) & (run.owner_row[first] < 0)
        ends |= backward & ~used
        if self._is_over:
            ends |= outside & ~backward & ~used_before & ~self._workspace(used)
        return ends

    def _workspace(self, used: Flags) -> Flags:
        """Return which values an op gave beside a first result that was used.

        Ops such as `_ctc_loss` return what their backward needs; the program never sees it.
        """
        found: Flags = np.zeros(len(self.bad), dtype=bool)
        results = np.flatnonzero(self.is_result)
        _, first, which = np.unique(self.event[results], return_index=True, return_inverse=True)
        leading = self.values[results[first]][which.reshape(-1)]
        given = self.values[results]
        found[given[(given != leading) & used[leading]]] = True
        return found

    def _used(self) -> tuple[Flags, Flags]:
        """Return which values others were made from: in any phase, and outside the backward pass.

        Autograd saves a value with a `detach` that only the backward pass uses; that does not
        count.
        """
        c, phase = self.run.columns, self.run.phase
        gives = np.zeros(len(self.run), dtype=bool)
        gives[self.event[self.is_result]] = True
        gives &= self._carries & ~self._op_traits[2]
        taken = ~self.is_result & gives[self.event]
        before = taken & (phase[self.event] != BACKWARD)
        used, used_before = np.zeros((2, len(self.bad)), dtype=bool)
        used[self.values[taken]] = True
        used_before[self.values[before]] = True
        is_detach = np.array([bare_op(name) == "detach" for name in c.ops] + [False])
        detaches = is_detach[np.where(c.kind == OP, c.subject, -1)]
        results = self.is_result & detaches[self.event]
        keeps = np.zeros(len(self.run), dtype=bool)
        keeps[self.event[results & ~used_before[self.values]]] = True
        used_before[:] = False
        used_before[self.values[before & ~keeps[self.event]]] = True
        # A value that only a `detach` saves for the backward pass is not a result of the program.
        used_before[self.values[results & keeps[self.event]]] = True
        return used, used_before

    @cached_property
    def _arrivals(self) -> tuple[list[int], list[int]]:
        """Return for each value what of it arrives, and the row in which Inf becomes NaN on the
        way.
        """
        nan, known = self.nan.tolist(), self.known.tolist()
        at_end = self._ends * (NAN * self.nan + INF * self.inf)
        arrives: list[int] = at_end.tolist()
        becomes: list[int] = [-1] * len(nan)
        results = self._results(self.bad | ~self.known)
        for row in reversed(self._taken_bad.rows):
            took = self._taken_bad[row]
            bits, born, gives_nan, has_nan = 0, -1, False, False
            for number in results[row]:
                if number not in took:
                    bits |= arrives[number] if known[number] else UNKNOWN
                    born = becomes[number] if born < 0 else born
                    gives_nan |= nan[number]
            for number in took:
                has_nan |= nan[number]
            if bits & NAN and gives_nan and not has_nan:
                born = row
            for number in took:
                if nan[number] or not has_nan:
                    arrives[number] |= bits
                    becomes[number] = born if born >= 0 else becomes[number]
                elif bits:
                    # NaN and Inf met: unless Inf comes out too, its further path is unknown.
                    arrives[number] |= bits & INF or UNKNOWN
        return arrives, becomes

    @cached_property
    def _taken_bad(self) -> _Groups:
        """Return non-finite values by the rows that took them and that values flow through."""
        return self._leaf_groups(
            ~self.is_result & self.bad[self.values] & self._carries[self.event]
        )

    def arrives(self, number: int) -> int:
        """Return what of a value reaches an output, a loss or a gradient, as bits."""
        return self._arrivals[0][number]

    def becomes_nan(self, number: int) -> int:
        """Return the row in which a value's Inf becomes NaN that arrives, -1 for none."""
        return self._arrivals[1][number]

    @cached_property
    def _bad_results(self) -> _Groups:
        return self._results(self.bad)

    def bad_results(self, row: int) -> list[int]:
        """Return the non-finite results of a row."""
        return self._bad_results[row]

    def downstream(self, numbers: list[int]) -> Flags:
        """Return which non-finite values were made from some values, including these."""
        found = set(numbers)
        for row in self._taken_bad.rows:
            if not found.isdisjoint(self._taken_bad[row]):
                found.update(self.bad_results(row))
        flags: Flags = np.zeros(len(self.bad), dtype=bool)
        flags[list(found)] = True
        return flags


def _per_meta(run: Run, test: Callable[[Meta], bool]) -> Flags:
    """Apply a test to dtype and shape of each value."""
    tested = np.array([test(meta) for meta in run.metas], dtype=bool)
    return np.asarray(tested[run.columns.meta]) if len(run.columns.meta) else np.zeros(0, bool)


def _is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat", "complex"))


class _Groups:
    """Numbers of values by row: those of one row follow each other in one list."""

    def __init__(self, rows: Ints, numbers: Ints, count: int) -> None:
        """Take ascending rows, the number that belongs to each, and the number of rows."""
        self.rows: list[int] = np.unique(rows).tolist()
        self._first: list[int] = np.searchsorted(rows, np.arange(count + 1)).tolist()
        self._numbers: list[int] = numbers.tolist()

    def __getitem__(self, row: int) -> list[int]:
        return self._numbers[self._first[row] : self._first[row + 1]]

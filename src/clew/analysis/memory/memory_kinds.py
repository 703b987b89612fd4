"""What each storage is: a parameter, a gradient, saved for backward and so on.

Input: `Lifetimes`. Output: `MemoryKinds`, which says the kind of every storage at a row. Parameters
and buffers are known by name, gradients by the ops that accumulate them, optimizer state by where
it was made and that it stayed. What else an op made is saved for backward while a backward op
still takes it later.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clew.analysis.memory.lifetimes import Lifetimes
from clew.events.columns import Flags, Ints
from clew.events.vocabulary import BACKWARD, FORWARD, NO_NODE, OP, OPTIMIZER, RECOMPUTE

KINDS = (
    "parameters", "buffers", "gradients", "optimizer state", "inputs", "saved for backward",
    "kept from earlier steps", "temporary",
)  # fmt: skip
PARAMETERS, BUFFERS, GRADIENTS, STATE, INPUTS, SAVED, KEPT, TEMPORARY = range(len(KINDS))
# How the dtypes of gradients begin.
_NUMBERS = ("float", "bfloat", "complex")


@dataclass(frozen=True, slots=True)
class MemoryKinds:
    """Kinds of storages. `fixed` are those that do not change, TEMPORARY for all others.

    `backward_use` is the last row of a backward op that takes a storage, -1 if none does;
    `last_use` that of any event; `is_followed` says whether autograd followed a value on it or a
    result made of it; `leaf` is the value of the parameter whose gradient it is, -1 if it is none.
    """

    lives: Lifetimes
    fixed: Ints
    backward_use: Ints
    last_use: Ints
    is_followed: Flags
    leaf: Ints
    no_backward_after: Flags

    def at(self, row: int, chosen: Ints | Flags | slice = slice(None)) -> Ints:
        """Return the kind of all storages, or of the chosen ones, at a row, alive or not."""
        step = self.lives.run.step
        found: Ints = self.fixed[chosen].copy()
        rest = found == TEMPORARY
        found[rest & (step[self.lives.born[chosen]] < step[row])] = KEPT
        found[rest & ((self.backward_use[chosen] >= row) | self.unproven(row, chosen))] = SAVED
        return found

    def unproven(self, row: int, chosen: Ints | Flags | slice = slice(None)) -> Flags:
        """Return which storages are saved for backward as far as one can tell.

        Autograd follows them, no op uses them again and they are alive, but no backward pass came
        after them in this run: the program may hold them itself.
        """
        step = self.lives.run.step
        same_step = step[self.lives.born[chosen]] == step[row]
        followed = (self.fixed[chosen] == TEMPORARY) & self.is_followed[chosen]
        waits = followed & (self.last_use[chosen] < row)
        waiting: Flags = waits & self.no_backward_after[chosen] & same_step
        return waiting


def memory_kinds(lives: Lifetimes) -> MemoryKinds:
    """Find out what each storage is."""
    run, c = lives.run, lives.run.columns
    count = len(lives)
    phase = run.phase
    made_in = np.where(lives.made >= 0, phase[lives.made], -1)
    as_input = ~lives.is_output
    is_op = c.kind[lives.row] == OP
    # The op that makes the first gradient, of ones, takes the loss; no node runs it.
    runs_node = c.number[lives.row] != NO_NODE
    in_backward = as_input & is_op & runs_node & (phase[lives.row] == BACKWARD)
    in_recompute = as_input & is_op & (phase[lives.row] == RECOMPUTE)
    followed = _followed(lives)
    backward_use = lives.last_mention(in_backward)
    # A checkpoint holds what its recomputation takes.
    recompute_use = lives.last_mention(in_recompute)
    backward_use = np.where(
        made_in == RECOMPUTE, backward_use, np.maximum(backward_use, recompute_use)
    )
    # Gradients on their way are taken by the next backward op at once, and not saved by anybody.
    own_grad = c.grad[lives.first] > 0
    backward_use[(made_in == BACKWARD) & ~own_grad] = -1
    leaf = _leaves(lives)
    fixed = np.full(count, TEMPORARY, dtype=np.int64)
    outside = lives.made < 0
    fixed[outside & (c.producer[lives.first] < 0)] = INPUTS
    fixed[_optimizer_state(lives, made_in)] = STATE
    fixed[_unused_gradients(lives)] = GRADIENTS
    fixed[leaf >= 0] = GRADIENTS
    fixed[lives.name >= 0] = BUFFERS
    paths = {path for path, _, _ in c.parameters}
    is_parameter = np.array([name in paths for name in c.value_names] + [False], dtype=bool)
    fixed[(lives.name >= 0) & (is_parameter[lives.name] | own_grad)] = PARAMETERS
    from_outside = outside & (fixed != INPUTS) & (fixed != TEMPORARY)
    _be_there_from_the_start(lives, from_outside & ~_fresh(lives))
    return MemoryKinds(
        lives,
        fixed,
        backward_use,
        lives.last_mention(as_input),
        followed & np.isin(made_in, (FORWARD, RECOMPUTE)),
        leaf,
        _no_backward_after(lives),
    )


def _followed(lives: Lifetimes) -> Flags:
    """Return which storages hold a value that autograd follows, or went into one."""
    c = lives.run.columns
    found = np.zeros(len(lives), dtype=bool)
    values = np.flatnonzero((c.grad > 0) & (lives.of_value >= 0))
    found[lives.of_value[values]] = True
    is_followed_result = lives.is_output & found[lives.storage]
    gives = np.zeros(len(c.id), dtype=bool)
    gives[lives.row[is_followed_result]] = True
    found[lives.storage[gives[lives.row] & ~lives.is_output]] = True
    return found


def _leaves(lives: Lifetimes) -> Ints:
    """Return for each storage the value whose gradient it is, -1 if it is no gradient.

    An op that accumulates a gradient has the number of the value it does that for.
    """
    run, c = lives.run, lives.run.columns
    accumulates = (c.kind == OP) & (c.number <= -2) & (run.phase == BACKWARD)
    chosen = accumulates[lives.row] & lives.is_output
    found = np.full(len(lives), -1, dtype=np.int64)
    found[lives.storage[chosen]] = -2 - c.number[lives.row[chosen]]
    # The indices of a sparse gradient may be those that the program looked up.
    is_number = np.array([meta.dtype.startswith(_NUMBERS) for meta in c.metas], dtype=bool)
    return np.where(is_number[c.meta[lives.first]], found, -1)


def _optimizer_state(lives: Lifetimes, made_in: Ints) -> Flags:
    """Return what an optimizer made and did not free before it was done, or met and writes to."""
    run, c = lives.run, lives.run.columns
    others = np.flatnonzero((c.kind == OP) & (run.phase != OPTIMIZER))
    following = np.append(others, len(c.id))[np.searchsorted(others, np.maximum(lives.made, 0))]
    is_later = run.process[np.minimum(following, len(c.id) - 1)] == run.process[lives.born]
    stays = (lives.freed < 0) | ((following < len(c.id)) & is_later & (lives.died > following))
    made: Flags = (made_in == OPTIMIZER) & stays
    return made | (_met_by_optimizer(lives) & _written(lives))


def _unused_gradients(lives: Lifetimes) -> Flags:
    """Return what an optimizer was given and only read: gradients made before the trace."""
    return _met_by_optimizer(lives) & ~_written(lives)


def _met_by_optimizer(lives: Lifetimes) -> Flags:
    is_op = lives.run.columns.kind[lives.row] == OP
    first = lives.first_mention(is_op)
    in_optimizer = (first >= 0) & (lives.run.phase[first] == OPTIMIZER)
    met: Flags = in_optimizer & (lives.made < 0) & (lives.name < 0)
    return met


def _written(lives: Lifetimes) -> Flags:
    """Return which storages an op of an optimizer wrote to."""
    run = lives.run
    chosen = lives.is_output & (run.phase[lives.row] == OPTIMIZER)
    return lives.last_mention(chosen) >= 0


def _fresh(lives: Lifetimes) -> Flags:
    """Return which storages were filled with numbers of the program when they were first met."""
    c = lives.run.columns
    lifts = np.array([name.startswith("aten.lift_fresh") for name in c.ops] + [False], dtype=bool)
    is_lift = (c.kind == OP) & lifts[np.where(c.kind == OP, c.subject, -1)]
    first = lives.first_mention(slice(None))
    fresh: Flags = is_lift[first]
    return fresh


def _be_there_from_the_start(lives: Lifetimes, chosen: Flags) -> None:
    """Set that storages were there before the first event of their rank."""
    for rank in lives.run.ranks:
        first, end = lives.rows_of(rank)
        mine = chosen & (lives.born >= first) & (lives.born < end)
        lives.born[mine] = first


def _no_backward_after(lives: Lifetimes) -> Flags:
    """Return which storages were made after the last backward op of their rank."""
    run, c = lives.run, lives.run.columns
    found = np.zeros(len(lives), dtype=bool)
    for rank in run.ranks:
        first, end = lives.rows_of(rank)
        is_backward = (c.kind[first:end] == OP) & (run.phase[first:end] == BACKWARD)
        last = first + int(np.flatnonzero(is_backward)[-1]) if is_backward.any() else -1
        found |= (lives.born > last) & (lives.born >= first) & (lives.born < end)
    return found

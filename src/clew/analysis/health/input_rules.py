"""Rules about what goes into a model: the same batch again, and inputs that it edits in place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from clew.address import written
from clew.analysis.health.thresholds import Thresholds
from clew.analysis.health.training_facts import RECORD_OPS, TrainingFacts
from clew.analysis.health.verdicts import HealthFinding, HealthRule, judged, not_checked
from clew.events.columns import Ints
from clew.events.op_names import UNINITIALISED, bare_op
from clew.events.vocabulary import BACKWARD, FORWARD, MODULE, OP
from clew.run.value_stats import StatColumns

REPEATED, EDITED = "repeated batches", "inputs edited in place"
# Fewer numbers than this are no batch.
_FEWEST_NUMBERS = 4
# Each write costs a search through the run; later ones of a line are like the first.
_MOST_TRIED = 20
# Ops that make memory to be written to.
_FILLING = UNINITIALISED | {"zeros", "zeros_like", "new_zeros", "ones", "full", "full_like"}
# Ops that make the same numbers each time.
_COUNTING = frozenset({"arange", "linspace", "logspace", "eye", "tril_indices", "triu_indices"})
# As far as a value is followed back.
_MOST_ANCESTORS = 50
# Ops that change a tensor's own facts, not its numbers.
_OF_FACTS = frozenset(
    {"detach_", "requires_grad_", "squeeze_", "unsqueeze_", "t_", "transpose_", "swapaxes_",
     "swapdims_", "rename_", "resize_", "as_strided_", "set_"}
)  # fmt: skip


def repeated_batches(facts: TrainingFacts, limits: Thresholds) -> HealthRule:
    """Find equal inputs in several train steps in a row, in tensors that were made anew.

    A program that gives the very same tensor again has one batch, and knows it.
    """
    batches = _batches(facts)
    if not batches:
        why = "no inputs of a training step have a digest; record with values='stats'"
        return not_checked(REPEATED, why, "same_batches")
    found = [one for rows in batches.values() for one in _repeats(facts, limits, rows)]
    return judged(REPEATED, found, "same_batches")


def _batches(facts: TrainingFacts) -> dict[tuple[int, int], list[tuple[int, str]]]:
    """Return each model's first call with gradients in each step, and a digest of its inputs."""
    run = facts.run
    numbers = np.array([one.number for one in run.columns.modules] or [0], dtype=np.int64)
    roots = facts.roots[facts.has_grad(facts.roots)]
    found: dict[tuple[int, int], list[tuple[int, str]]] = {}
    last_step: dict[tuple[int, int], int] = {}
    for row in roots.tolist():
        key = (int(run.process[row]), int(numbers[run.columns.subject[row]]))
        if last_step.get(key) == int(run.step[row]):
            continue
        last_step[key] = int(run.step[row])
        digest = _digest(facts, row)
        if digest:
            found.setdefault(key, []).append((row, digest))
    return found


def _digest(facts: TrainingFacts, row: int) -> str:
    """Return a digest of the data among the inputs of a call, empty if there is none or one lacks.

    What was computed from parameters is no data, nor are positions and other numbers that the
    program makes anew in each step.
    """
    run = facts.run
    values = [number for leaf, number in run.leaf_values(row) if leaf.role == "in"]
    stats = run.stats
    if any(run.columns.grad[n] > 0 or _is_nowhere_finite(stats, n) for n in values):
        return ""
    values = [number for number in values if not _is_made_of_nothing(facts, number)]
    digests = [facts.digest(number) for number in values]
    count = int(stats["count"][values].sum()) if values else 0
    if count < _FEWEST_NUMBERS or None in digests:
        return ""
    shapes = [str(run.metas[int(run.columns.meta[number])].shape) for number in values]
    return "|".join([*map(str, digests), *shapes])


def _is_nowhere_finite(stats: StatColumns, number: int) -> bool:
    count = int(stats["count"][number])
    return 0 < count == int(stats["nan"][number]) + int(stats["inf"][number])


def _is_made_of_nothing(facts: TrainingFacts, number: int) -> bool:
    """Return whether a value comes from ops that take no tensor and draw no random numbers."""
    run = facts.run
    pending, seen = [number], {number}
    while pending:
        row = run.producer_row(pending.pop())
        if row < 0 or run.columns.kind[row] != OP or run.columns.generator[row] >= 0:
            return False
        taken = {n for leaf, n in run.leaf_values(row) if leaf.role == "in"}
        if not taken and bare_op(run.name(row)) not in _FILLING | _COUNTING:
            return False
        pending += taken - seen
        seen |= taken
        if len(seen) > _MOST_ANCESTORS:
            return False
    return True


def _memory(facts: TrainingFacts, row: int) -> frozenset[int]:
    """Return the memory that the inputs of a call lie on."""
    values = [number for leaf, number in facts.run.leaf_values(row) if leaf.role == "in"]
    return frozenset(facts.run.columns.storage[values].tolist())


def _repeats(
    facts: TrainingFacts, limits: Thresholds, batches: list[tuple[int, str]]
) -> Iterator[HealthFinding]:
    run = facts.run
    first = 0
    for at in range(1, len(batches) + 1):
        if at < len(batches) and batches[at][1] == batches[first][1]:
            continue
        count = at - first
        memory = {_memory(facts, row) for row, _ in batches[first:at]}
        if count >= limits.same_batches and len(memory) > 1:
            row = batches[first][0]
            path = run.module_path(row) or ""
            steps = f"{int(run.step[row])} to {int(run.step[batches[at - 1][0]])}"
            text = f"{path or 'the model'} got the same batch in {count:,} steps, {steps}"
            advice = (
                "look for next(iter(loader)) or a seed inside the loop, "
                "or a dataset that ignores its index"
            )
            yield facts.finding(
                REPEATED, row, f"{written(path)}:in", count, limits.same_batches, text, advice
            )
        first = at


def edited_inputs(facts: TrainingFacts, limits: Thresholds) -> HealthRule:
    """Find tensors that a model was given, wrote to in place, and that the program uses again."""
    if not facts.has_ops:
        return not_checked(EDITED, f"no ops were recorded; {RECORD_OPS}")
    found: dict[tuple[int, int], HealthFinding] = {}
    tried: Counter[tuple[int, int]] = Counter()
    for row in _writes_to_inputs(facts).tolist():
        key = (int(facts.run.derived.module[row]), int(facts.run.derived.source[row]))
        tried[key] += 1
        if key in found or tried[key] > _MOST_TRIED:
            continue
        if _is_buffer(facts, row):
            continue
        if (again := _used_again(facts, row)) >= 0:
            found[key] = _edited(facts, row, again)
    return judged(EDITED, list(found.values()))


def _writes_to_inputs(facts: TrainingFacts) -> Ints:
    """Return ops in a model's call that write to the memory of one of its inputs."""
    run = facts.run
    c, tensors = run.columns, run.tensors
    writing = {bare_op(name) for name in c.ops}
    writing = {name for name in writing if name.endswith("_") and not name.endswith("__")}
    rows = facts.ops_named(frozenset(writing - _OF_FACTS))
    root = facts.root_of[rows]
    inside = (c.kind[root] == MODULE) & (root < rows) & (facts.first_input[rows] >= 0)
    rows = np.asarray(rows[inside & (run.phase[rows] == FORWARD)])
    if not len(rows):
        return rows
    # Small numbers in place of those of a file, which may be of any size.
    _, storage = np.unique(c.storage, return_inverse=True)
    span = int(storage.max()) + 1
    given = ~tensors.is_output & np.isin(tensors.event, facts.roots)
    # Parameters and buffers that are passed along are there to be written to.
    given &= c.value_name[tensors.value] < 0
    keys = tensors.event[given] * span + storage[tensors.value[given]]
    mine = facts.root_of[rows] * span + storage[facts.first_input[rows]]
    written = np.isin(mine, keys) & (c.storage[facts.first_input[rows]] >= 0)
    return np.asarray(rows[written])


def _is_buffer(facts: TrainingFacts, row: int) -> bool:
    """Return whether an op wrote to memory that began empty, as a cache or a running state does."""
    run = facts.run
    storage = run.columns.storage[int(facts.first_input[row])]
    first = int(np.flatnonzero(run.columns.storage == storage)[0])
    made = run.producer_row(first)
    filled = made >= 0 and bare_op(run.name(made)) in _FILLING
    return filled or bool(0 < run.stats["count"][first] == run.stats["zeros"][first])


def _used_again(facts: TrainingFacts, row: int) -> int:
    """Return the first row after a call that takes the memory an op in it wrote to, or -1."""
    run = facts.run
    tensors, root = run.tensors, int(facts.root_of[row])
    storage = run.columns.storage[int(facts.first_input[row])]
    later = (tensors.event > row) & ~tensors.is_output
    later &= run.columns.storage[tensors.value] == storage
    later &= (facts.root_of[tensors.event] != root) & (run.phase[tensors.event] != BACKWARD)
    returned = (tensors.event == root) & tensors.is_output
    if (run.columns.storage[tensors.value[returned]] == storage).any():
        return -1  # the result of the call is what is used
    return int(tensors.event[later][0]) if later.any() else -1


def _edited(facts: TrainingFacts, row: int, again: int) -> HealthFinding:
    run = facts.run
    where = run.module_path(row) or "the root module"
    text = (
        f"{bare_op(run.name(row))} in {where} wrote to a tensor that the model was given, and "
        f"{run.address(again)} took it afterwards{facts.line(again)}"
    )
    advice = "use the form without the underscore or inplace=True, or give the model a clone"
    return facts.finding(EDITED, row, run.address(row), 1, 0, text, advice)

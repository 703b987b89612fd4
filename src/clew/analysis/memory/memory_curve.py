"""Memory over time: bytes alive by kind, and the largest storages, at some moments of a run.

Input: a `MemorySearch`, a rank, a device. Output: a `MemoryCurve`, arrays with a row per moment.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clew.analysis.memory.memory_answer import MemorySearch
from clew.analysis.memory.memory_kinds import KINDS
from clew.events.columns import Ints
from clew.events.op_names import bare_op
from clew.run.run import Run

# How many of the largest storages are listed for each moment.
LARGEST = 10


@dataclass(frozen=True, slots=True)
class MemoryCurve:
    """Moments of one rank, in order; of each stretch of the run the one with most bytes alive.

    `row` is the event right after which it is; `kinds` has the bytes of each kind, in the order of
    KINDS. `largest` has the numbers of the largest storages alive, -1 where there are fewer, and
    `largest_kind` what they are then.
    """

    row: Ints
    kinds: Ints
    largest: Ints
    largest_kind: Ints


def memory_curve(search: MemorySearch, rank: int, device: int, points: int) -> MemoryCurve:
    """Return what is alive on a device of a rank, at no more than so many moments."""
    lives = search.lives
    first, _ = lives.rows_of(rank)
    alive = search.alive_bytes(rank, device)
    rows = first + _highest(alive, points)
    mine = np.flatnonzero(search.on(rank, device))
    mine = mine[np.argsort(lives.born[mine], kind="stable")]
    born, died = lives.born[mine], lives.died[mine]
    kinds = np.zeros((len(rows), len(KINDS)), dtype=np.int64)
    largest = np.full((len(rows), LARGEST), -1, dtype=np.int64)
    largest_kind = np.zeros_like(largest)
    for at, row in enumerate(rows.tolist()):
        known = int(np.searchsorted(born, row, "right"))
        here = mine[:known][died[:known] > row]
        kind, size = search.kinds.at(row, here), lives.size[here]
        kinds[at] = np.bincount(kind, size, len(KINDS))
        top = np.argsort(-size, kind="stable")[:LARGEST]
        largest[at, : len(top)] = here[top]
        largest_kind[at, : len(top)] = kind[top]
    return MemoryCurve(rows, kinds, largest, largest_kind)


def _highest(alive: Ints, points: int) -> Ints:
    """Return where, in each of equal stretches, most bytes are alive."""
    count = min(points, len(alive))
    starts = np.arange(count) * len(alive) // max(count, 1)
    ends = np.append(starts[1:], len(alive))
    found = [low + int(alive[low:high].argmax()) for low, high in zip(starts, ends, strict=True)]
    return np.array(found, dtype=np.int64)


def storage_texts(search: MemorySearch, storages: Ints) -> tuple[Ints, list[str]]:
    """Say what storages are: a parameter's path, whose gradient it is, the op that made it.

    Return for each the number of its text, and the texts.
    """
    lives, run = search.lives, search.run
    c = run.columns
    name, made, leaf = lives.name[storages], lives.made[storages], search.kinds.leaf[storages]
    of_leaf = np.where((name < 0) & (leaf >= 0), c.value_name[leaf], -1)
    by_op = (name < 0) & (of_leaf < 0) & (made >= 0)
    op = np.where(by_op, run.names.names.codes[made], -1)
    module = np.where(by_op, run.derived.module[made], -1)
    kinds, codes = np.unique(np.stack([name, of_leaf, op, module]), axis=1, return_inverse=True)
    return codes.reshape(-1), [_storage_text(run, *kind) for kind in kinds.T.tolist()]


def _storage_text(run: Run, name: int, of_leaf: int, op: int, module: int) -> str:
    names = run.columns.value_names
    if name >= 0:
        return names[name]
    if of_leaf >= 0:
        return f"gradient of {names[of_leaf]}"
    if op < 0:
        return "from outside"
    path = run.derived.paths[module] if module >= 0 else ""
    return f"{bare_op(run.names.names.texts[op])}{f' in {path}' if path else ''}"

"""How far values of the same program are from each other when nothing is wrong.

Input: runs of one program, some perhaps with weights moved by one unit in the last place. Output: a
`Noise`, which says for each value, by where it was computed, and else for its dtype, which relative
error of an element counts as rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clew.analysis.diff.distance import distances, facts_of
from clew.analysis.diff.flow_graph import FlowGraph
from clew.errors import ClewError
from clew.events.columns import Flags, Floats, Ints
from clew.events.model import Data
from clew.events.vocabulary import PHASES
from clew.plain_text import plain
from clew.run.run import Run

# Relative error of an element that rounding may cause in a whole run, and in one op, by dtype.
NOISE = {"float64": 1e-11, "float32": 1e-5, "float16": 2e-2, "bfloat16": 1e-1}
ROUNDING = {"float64": 1e-15, "float32": 5e-7, "float16": 2e-3, "bfloat16": 1.6e-2}
# A few repeats show less than all that may happen: so many times what they show is noise.
_MARGIN = 12.0
# What is never measured as less, in roundings of one op.
_LEAST = 4.0
# The part of the values of a dtype whose noise the level of that dtype covers.
_MOST = 0.9


@dataclass(frozen=True, slots=True, repr=False)
class Noise(Data):
    """The noise of a program: relative errors of an element that count as rounding.

    `values` has those measured, by module call, op, and result of it, such as
    `forward/blocks.0#0/aten.mm.default#1/0`; `dtypes` those for values that were not measured.
    `runs` is how many runs were compared, `perturbed` how many of them had their weights moved by
    one unit in the last place.
    """

    values: Mapping[str, float]
    dtypes: Mapping[str, float]
    runs: int
    perturbed: int

    def __repr__(self) -> str:
        return plain(f"<Noise of {self.runs} runs: {len(self.values):,} values, {self._levels()}>")

    def __str__(self) -> str:
        moved = f", {self.perturbed} with perturbed weights" if self.perturbed else ""
        measured = f"{len(self.values):,} values measured"
        if self.values:
            levels = np.fromiter(self.values.values(), dtype=np.float64)
            measured += f", median {np.median(levels):.0e}, most {levels.max():.0e}"
        return plain(f"noise of {self.runs} runs{moved}: {measured}; else {self._levels()}")

    def _levels(self) -> str:
        return ", ".join(f"{dtype} {level:.0e}" for dtype, level in self.dtypes.items())

    def to_dict(self) -> dict[str, Any]:
        """Return the noise as plain data."""
        return {
            "values": dict(self.values),
            "dtypes": dict(self.dtypes),
            "runs": self.runs,
            "perturbed": self.perturbed,
        }


def noise_of_runs(runs: Sequence[Run], perturbed: Sequence[Run] = ()) -> Noise:
    """Measure how far each value of the first run is from those of the others.

    Repeats alone say nothing of what rounding does in another order of ops, so the noise is never
    less than the level of the dtype unless there are perturbed runs too.
    """
    if len(runs) + len(perturbed) < 2:
        raise ClewError("noise is measured between runs: give at least one repeat of the reference")
    first = FlowGraph(runs[0])
    keys = value_keys(first)
    seen: dict[str, float] = {}
    for run in (*runs[1:], *perturbed):
        for key, error in _errors(first, keys, FlowGraph(run)):
            seen[key] = max(seen.get(key, 0.0), error)
    if not seen:
        raise ClewError(
            "the repeats have no statistics of the same values; record them with values='stats'"
        )
    dtypes = {key: first.run.metas[int(first.run.columns.meta[n])].dtype for key, n in keys.items()}
    least = {
        dtype: _LEAST * ROUNDING[dtype] if perturbed else level for dtype, level in NOISE.items()
    }
    values = {
        key: max(_MARGIN * error, least[dtypes[key]])
        for key, error in seen.items()
        if dtypes[key] in NOISE
    }
    return Noise(values, _levels(values, dtypes), len(runs) + len(perturbed), len(perturbed))


def _errors(first: FlowGraph, keys: Mapping[str, int], other: FlowGraph) -> list[tuple[str, float]]:
    """Return how far the values at the same places are from each other, where that is known."""
    theirs = value_keys(other)
    common = [key for key in keys if key in theirs]
    facts_a, facts_b = facts_of(first, other)
    of_a: Ints = np.array([keys[key] for key in common], dtype=np.int64)
    of_b: Ints = np.array([theirs[key] for key in common], dtype=np.int64)
    far = distances(facts_a, of_a, facts_b, of_b)
    # Of other counts, or of NaN in one: another value, not noise of this one.
    return [(key, error) for key, error in zip(common, far.tolist(), strict=True)
            if np.isfinite(error)]  # fmt: skip


def _levels(values: Mapping[str, float], dtypes: Mapping[str, str]) -> dict[str, float]:
    """Return the level of each dtype there is: nearly all that was measured, or the default."""
    found = {}
    for dtype in sorted({dtypes[key] for key in values}):
        mine = [level for key, level in values.items() if dtypes[key] == dtype]
        found[dtype] = max(NOISE[dtype], float(np.quantile(mine, _MOST)))
    return found


def value_keys(graph: FlowGraph) -> dict[str, int]:
    """Return the results of ops by where they were computed, which is the same in a repeat.

    The key has the step (from the first), the phase, the call of the module, the op, its number
    among those of its name in that call, and the number of the result.
    """
    run, rows = graph.run, graph.rows
    paths = [*run.derived.paths, ""]
    module = run.derived.module[rows].tolist()
    owner = run.owner_row[rows]
    call = np.where(owner >= 0, run.call[owner], 0).tolist()
    step = (run.step[rows] - min(run.steps, default=0)).tolist()
    phase, names = run.phase[rows].tolist(), run.columns.ops
    counts: dict[str, int] = {}
    found: dict[str, int] = {}
    unset = graph.is_uninitialised.tolist()
    for op, code in enumerate(graph.name_codes.tolist()):
        if unset[op]:
            continue  # memory that nothing has written yet
        place = f"{PHASES[phase[op]]}/{paths[module[op]]}#{call[op]}/{names[code]}"
        place = f"{step[op]}/{place}" if step[op] else place
        counts[place] = number = counts.get(place, -1) + 1
        for result, value in enumerate(graph.gives[op]):
            found[f"{place}#{number}/{result}"] = value
    return found


def levels_of(graph: FlowGraph, noise: Noise | float | None) -> tuple[Floats, Flags]:
    """Return the noise of each value of a run, and for which it was measured."""
    if not isinstance(noise, Noise):
        levels = NOISE if noise is None else dict.fromkeys(NOISE, noise)
        return per_dtype(graph, levels), np.zeros(len(graph.maker), dtype=bool)
    found = per_dtype(graph, {**NOISE, **noise.dtypes})
    measured = np.zeros(len(found), dtype=bool)
    keys = value_keys(graph)
    for key, level in _placed(noise, keys).items():
        found[keys[key]] = level
        measured[keys[key]] = True
    return found, measured


def _placed(noise: Noise, keys: Iterable[str]) -> dict[str, float]:
    """Return the noise of the values of a run that were measured.

    Names begin with the model's class where `clew.trace` was given no model, so a run whose names
    are all unknown is looked up without the first part of each.
    """
    known = {key: noise.values[key] for key in keys if key in noise.values}
    if known:
        return known
    shorter = {_without_root(key): level for key, level in noise.values.items()}
    return {key: shorter[key] for key in keys if key in shorter}


def _without_root(key: str) -> str:
    before, _, rest = key.partition("/")
    path, mark, after = rest.partition("#")
    return f"{before}/{path.partition('.')[2]}{mark}{after}"


def per_dtype(graph: FlowGraph, levels: Mapping[str, float]) -> Floats:
    """Return the level of each value's dtype, 0 for those that have none."""
    per_meta = np.array([levels.get(meta.dtype, 0.0) for meta in graph.run.metas] + [0.0])
    return np.asarray(per_meta[graph.run.columns.meta])

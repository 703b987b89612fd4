"""Several ranks as one run: what belongs to a rank stays its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

import clew
from clew.events.vocabulary import Kept
from clew.run.run import Run

RUN = Path(__file__).parents[1] / "no_torch" / "run.clew"


def test_statistics_of_values_that_a_rank_does_not_have_go_to_no_other() -> None:
    run = clew.load(RUN)._current_run()
    (first, _), (second, _) = run.parts
    beyond = {n: Kept({"count": 7, "mean": 1e9}, None) for n in (len(first.meta), 1 << 40)}
    damaged = Run({0: replace(first, kept={**first.kept, **beyond}), 1: second})
    assert np.array_equal(damaged.stats["mean"], run.stats["mean"], equal_nan=True)
    assert len(damaged.columns.kept) == len(list(damaged.columns.kept))

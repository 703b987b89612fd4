"""What derive remembers of the past is bounded, and still enough."""

from __future__ import annotations

from typing import Any

import numpy as np

from clew.events.columns import COLUMN_NAMES, Columns, Place, Template
from clew.events.vocabulary import OP, STEP
from clew.run import derive_state as module
from clew.run.derive import derive, derive_all
from clew.run.derive_state import State


def steps_of_one_op(count: int, first: int = 0) -> Columns:
    """Columns of a rank that begins a step before each of its ops."""
    arrays: dict[str, Any] = {name: np.zeros(2 * count, dtype=np.int64) for name in COLUMN_NAMES}
    arrays["id"] = np.arange(2 * first, 2 * (first + count))
    arrays["kind"] = np.tile([STEP, OP], count)
    arrays["subject"] = np.stack([np.arange(first, first + count), np.zeros(count, int)], 1).ravel()
    for name in ("parent", "number", "error"):
        arrays[name] -= 1
    for name in ("refs", "version", "storage", "meta", "grad", "producer", "value_name"):
        arrays[name] = np.zeros(0, dtype=np.int64)
    return Columns(
        **arrays,
        ops=["aten.relu.default"],
        places=[Place(-1, "model.py", "f", 3, 3, 0, 0, False, 0, 0)],
        templates=[Template(())],
    )


def test_every_op_of_a_long_run_has_its_step() -> None:
    count = module.MOST_MARKS + 1000
    derived = derive_all(steps_of_one_op(count))
    assert derived.step.tolist() == np.repeat(np.arange(count), 2).tolist()
    assert derived.call[1::2].tolist() == list(range(count))


def test_the_state_stays_small_over_a_long_run() -> None:
    state = State()
    size = 5000
    for first in range(0, 40 * size, size):
        derived = derive(steps_of_one_op(size, first), state)
        assert derived.step[-1] == first + size - 1
        assert derived.call[-1] == first + size - 1
    assert len(state.steps) <= module.MOST_MARKS
    assert len(state.events) <= module.MOST_EVENTS
    assert len(state.calls) <= module.MOST_CALLS
    assert all(len(makers) <= module.MOST_MAKERS for makers in state.makers.values())

"""Eager against compiled: a fault in compiled code is narrowed to lines of the eager program."""

from __future__ import annotations

import pytest

import clew
from accuracy import compiled
from accuracy.compiled import CLEAN, FAULTS, Case

# Inductor takes seconds for each model; `make accuracy` has all of them.
pytestmark = pytest.mark.slow
SAMPLE = {"gelu": 1, "gelu-backward": 4, "dropout": 15}


@pytest.mark.parametrize("case", [case for case in FAULTS if case.name in SAMPLE],
                         ids=lambda case: case.name)  # fmt: skip
def test_a_fault_in_compiled_code_is_narrowed_to_lines(case: Case) -> None:
    found = compiled.outcome(case)
    assert (found.region, found.line) == (True, True), found.text
    assert found.ops <= SAMPLE[case.name], found.text
    assert "the compiled region was given what agrees, and gives f32[" in found.text
    assert ("fallback_random" in found.text) == (case.name == "dropout")


def test_rounding_of_compiled_code_is_no_difference() -> None:
    (case,) = (case for case in CLEAN if case.name == "clean-pictures")
    eager, fused = compiled.recorded(case)
    assert any(op.name == "compiled" for op in fused.ops)
    found = clew.diff(eager, fused)
    assert found.equal, str(found)
    assert clew.diff(fused, eager).equal

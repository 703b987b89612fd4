"""What `t.findings` and `t.nonfinite()` say of the traces of the corpus, without torch."""

from __future__ import annotations

from pathlib import Path

import pytest

import clew

TRACES = Path(__file__).parent / "traces"

# Severity and kind of each finding, in order.
FINDINGS = {
    "nan_op": [("error", "produced")],
    "nan_batch": [("error", "input")],
    "nan_weight": [("error", "parameter")],
    "nan_modules": [("error", "produced"), ("error", "input")],
    "masks": [("info", "absorbed")],
    "steps": [],
    "equal_ranks": [],
    "unequal_ranks": [("warning", "ranks"), ("warning", "ranks")],
    "missing_rank": [("warning", "coverage"), ("info", "not checked")],
    "crash": [("error", "crash")],
    "killed": [("warning", "coverage")],
    "fused": [("warning", "coverage"), ("info", "absorbed"), ("info", "not checked")],
    "autograd_function": [],
    "checkpoint": [],
    "gradients": [("info", "not checked")],
    "full": [("error", "produced")],
    "unnamed": [],
}

# Kind, address and the beginning of the hint of each origin, in order.
ORIGINS = {
    "nan_op": [("produced", "op:aten.log.default#1", "log of a value ≤ 0: min of input 0 is -0.")],
    "nan_batch": [("input", "#1", "1 NaN and 1 Inf in 4 elements came from outside")],
    "nan_weight": [
        ("parameter", "op:aten.t.default#0", "fc.weight held 1 NaN in 4 elements"),
        ("parameter", "op:aten.native_batch_norm.default#0", "norm.running_mean held 1 Inf in 2"),
    ],
    "nan_modules": [
        ("produced", "made#0", "its ops, parameters and buffers were not looked at"),
        ("input", "batch#0", "1 NaN in 2 elements came from outside"),
        # That the weight held it is not to be seen from calls alone.
        ("produced", "weight.fc#0", "its ops, parameters and buffers were not looked at"),
    ],
    "masks": [
        ("absorbed", "op:aten.log.default#0", "log of a value ≤ 0: min of input 0 is 0"),
        ("absorbed", "op:aten.masked_fill.Scalar#0", "-inf was given as argument 2"),
        ("absorbed", "op:aten.log.default#2", "log of a value ≤ 0: min of input 0 is 0"),
        ("absorbed", "op:aten.full.default#0", "-inf was given as argument 1"),
        ("absorbed", "op:aten.log.default#4", "log of a value ≤ 0: min of input 0 is 0"),
        ("absorbed", "op:aten.scalar_tensor.default#0", "-inf was given as argument 0"),
    ],
    "steps": [],
}


@pytest.mark.parametrize("name", FINDINGS)
def test_findings(name: str) -> None:
    t = clew.load(TRACES / f"{name}.clew")
    assert [(found.severity, found.kind) for found in t.findings] == FINDINGS[name]


@pytest.mark.parametrize("name", ORIGINS)
def test_origins(name: str) -> None:
    found = clew.load(TRACES / f"{name}.clew").nonfinite()
    assert [(one.kind, one.event.address) for one in found] == [o[:2] for o in ORIGINS[name]]
    for one, (_, _, hint) in zip(found, ORIGINS[name], strict=True):
        assert one.hint.startswith(hint), one.hint


def test_unequal_ranks_are_told_where_they_part() -> None:
    first, second = clew.load(TRACES / "unequal_ranks.clew").findings
    assert first.event is not None
    assert second.event is not None
    assert (first.event.rank, first.event.step, second.event.rank, second.event.step) == (
        1,
        0,
        2,
        2,
    )
    assert "rank 1 ran op:aten._foreach_norm.Scalar#0, programs.py:" in first.text
    assert second.text.endswith("where rank 0 had ended")


def test_a_crash_names_its_op() -> None:
    t = clew.load(TRACES / "crash.clew")
    (crash,) = t.findings
    assert t.crash is not None
    assert crash.event == t.crash.event
    assert "raised at op:aten.addmm.default#5 in down, programs.py:" in crash.text

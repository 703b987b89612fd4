"""Real architectures run the same under a trace, bit for bit, and are recorded whole."""

from __future__ import annotations

import functools

import pytest
import torch

import clew
from tests import models
from tests.outcomes import STRUCTURE, Outcome, differing, faults, least_change, train, untraced

RECORDINGS = [
    {"level": "ops", "values": "meta"},
    {"level": "ops", "values": "stats"},
    {"level": "ops", "values": "full"},
    {"level": "modules", "values": "meta"},
    {"level": "modules", "values": "full"},
]


def recording_name(options: dict[str, str]) -> str:
    return "-".join(options.values())


@functools.cache
def without_trace(name: str) -> Outcome:
    return train(lambda: models.build(name), untraced)


@functools.cache
def with_least_change(name: str) -> Outcome:
    return train(lambda: models.build(name), least_change())


@pytest.mark.parametrize("options", RECORDINGS, ids=recording_name)
@pytest.mark.parametrize("name", models.ALL)
def test_training_leaves_the_same_bits(name: str, options: dict[str, str]) -> None:
    traces = []

    def tracer(model: torch.nn.Module) -> clew.Trace:
        traces.append(clew.trace(model, **options))
        return traces[0]

    traced = train(lambda: models.build(name), tracer)

    (trace,) = traces
    sees_ops = options["level"] == "ops"
    expected = dict(without_trace(name))
    if sees_ops:
        idle = with_least_change(name)
        expected |= {key: idle[key] for key in idle if key.startswith(STRUCTURE)}
    assert differing(expected, traced) == []
    assert faults(trace) == []
    assert len(trace.modules) > 0
    assert (len(trace.ops) > 0) == sees_ops


@pytest.mark.parametrize("name", models.ALL)
def test_two_runs_without_a_trace_agree(name: str) -> None:
    """Without this, the comparison above would say nothing."""
    assert differing(without_trace(name), train(lambda: models.build(name), untraced)) == []

"""Every engine tells what really ran, but for the differences that a rule allows."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from tests.conformance import compare, oracle, witness
from tests.conformance.compare import Difference
from tests.conformance.normalise import SeenOp, normalise
from tests.conformance.observe import BUILT, ENGINES, Observed, observe
from tests.conformance.programs import PROGRAMS
from tests.conformance.rules import OTHER_KERNELS, RULES, Rule, explain


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Kernels that share their work out would show in the profiler on threads of their own."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass(frozen=True)
class Truth:
    """What is true of a program, by every oracle."""

    profiled: list[SeenOp]
    witnessed: list[SeenOp]
    outcome: oracle.Outcome


@functools.cache
def truth(program: str) -> Truth:
    build = PROGRAMS[program]
    # First alone: torch does some things only once in a process.
    oracle.alone(build)
    left = oracle.alone(build)
    return Truth(normalise(oracle.profiled(build)), normalise(witness.witnessed(build)), left)


@functools.cache
def observed(engine: str, program: str) -> Observed:
    truth(program)
    return observe(engine, PROGRAMS[program])


def differences(engine: str, program: str, seen: Observed) -> list[Difference]:
    true, ops = truth(program), normalise(seen.ops)
    return [
        *compare.kernels(true.profiled, ops),
        *compare.ops(true.witnessed, ops),
        *compare.outcomes(true.outcome, seen.outcome),
    ]


def judged(engine: str, program: str) -> tuple[list[Difference], list[Rule]]:
    return explain(engine, program, differences(engine, program, observed(engine, program)))


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("engine", BUILT)
def test_an_engine_tells_what_ran(engine: str, program: str) -> None:
    left, used = judged(engine, program)
    assert left == []
    named = [rule for rule in RULES if rule.engine == engine and program in rule.programs]
    assert [rule for rule in named if rule not in used] == []


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("engine", BUILT)
def test_coverage_says_what_an_engine_cannot_keep(engine: str, program: str) -> None:
    said = {gap.what for gap in observed(engine, program).coverage}
    wanted = {rule.gap for rule in judged(engine, program)[1] if rule.gap is not None}
    assert wanted <= said
    assert (OTHER_KERNELS in said) == (OTHER_KERNELS in wanted)
    assert not [gap for gap in observed(engine, program).coverage if "Clew failed" in gap.why]


def test_there_are_programs_of_every_kind() -> None:
    assert len(PROGRAMS) >= 60


def test_every_rule_is_about_an_engine_and_programs_that_exist() -> None:
    for rule in RULES:
        assert rule.engine in ENGINES
        assert rule.programs
        assert set(rule.programs) <= set(PROGRAMS)
        assert len(rule.reason) > 20
    assert len(set(RULES)) == len(RULES)


WRONG: dict[str, Any] = {
    "arguments": {"arguments": (("0", "tensor"), ("1", "3"))},
    "shapes": {"inputs": (("float32", (9,)),)},
    "results of ops": {"outputs": ()},
    "producers": {"producers": (0, 0)},
    "lines": {"line": "module_programs.py:1"},
    "modules": {"module": "elsewhere"},
    "phases": {"phase": "optimizer"},
    "raised": {"error": "RuntimeError: it did not"},
    "threads": {"thread": "another"},
}


@pytest.mark.parametrize("fact", WRONG)
def test_a_wrong_fact_of_one_op_is_found(fact: str) -> None:
    """What the tests above would say of an engine that is wrong in one place."""
    seen = copy.deepcopy(observed("python", "mlp_in_training"))
    at = next(i for i, op in enumerate(seen.ops) if op.name == "aten.gelu.default")
    seen.ops[at] = replace(seen.ops[at], **WRONG[fact])
    left, _ = explain("python", "mlp_in_training", differences("python", "mlp_in_training", seen))
    # An op of another thread is another op.
    assert {"ops" if fact == "threads" else fact} <= {difference.fact for difference in left}


def test_a_missing_op_is_found() -> None:
    seen = copy.deepcopy(observed("python", "mlp_in_training"))
    at = next(i for i, op in enumerate(seen.ops) if op.name == "aten.gelu.default")
    del seen.ops[at]
    left, _ = explain("python", "mlp_in_training", differences("python", "mlp_in_training", seen))
    assert {("kernels", "-aten.gelu.default"), ("ops", "-aten.gelu.default")} <= {
        (difference.fact, difference.what) for difference in left
    }


def test_other_results_and_random_states_are_found() -> None:
    seen = copy.deepcopy(observed("python", "random_numbers"))
    seen.outcome.results.reverse()
    seen.outcome.rng["torch random"] = b""
    left, _ = explain("python", "random_numbers", differences("python", "random_numbers", seen))
    assert {difference.fact for difference in left} == {"results", "rng"}

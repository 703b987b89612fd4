"""A fixed sample of `make accuracy`: bugs planted in architectures and their ports."""

from __future__ import annotations

from dataclasses import replace

from accuracy.ports import everything
from accuracy.ports.planting import unmarked
from accuracy.ports.runs import Case, is_felt, outcome

# One architecture each, its bug, the layer it is in, and whether the port has it.
SAMPLE = (
    ("gpt2", "bias-dropped", 1, False), ("gpt2", "norm-eps", 0, False),
    ("vit", "scale-squared", 1, False), ("vit", "softmax-dim", 0, True),
    ("bert", "gelu-tanh", 0, True), ("moe", "correction-leaks", 0, False),
    # Errors near the noise grow a little on their way to what is missing.
    ("mamba", "residual-missing", 0, True),
)  # fmt: skip


def case(name: str, bug: str, layer: int, as_port: bool) -> Case:
    """Make a case of the sample."""
    (one,) = (known for known in everything.ALL if known.name == name)
    (planted,) = (known for known in one.bugs if known.name == bug)
    return Case("sample", one, ((layer, planted),), as_port=as_port)


def test_the_marked_line_is_named() -> None:
    found = [outcome(case(*one)) for one in SAMPLE]
    assert all(map(is_felt, found))
    assert [(one.name, one.said) for one in found if one.grade != "exact"] == []


def test_the_function_is_named_across_precisions() -> None:
    planted = ("gpt2", "norm-eps", 0, False), ("vit", "gelu-quick", 1, True)
    found = [outcome(replace(case(*one), types=everything.LOWER)) for one in planted]
    assert [(one.name, one.said) for one in found if one.grade in ("wrong", "silent")] == []
    clean = Case("sample", everything.KNOWN[3], as_port=True, types=everything.LOWER)
    assert outcome(clean).grade == "quiet"


def test_clean_pairs_raise_no_alarm() -> None:
    pairs = everything.clean("sample", everything.KNOWN[1:3])
    found = [*map(outcome, pairs)]
    found += [everything.refactored(one, everything.LOW[0]) for one in everything.REFACTORS[::5]]
    assert [(one.name, one.said) for one in found if one.grade != "quiet"] == []


def test_the_list_is_long_enough() -> None:
    names = [f"{one.name} {bug.name}" for one in everything.ALL for bug in one.bugs]
    assert len(names) == len(set(names)) >= 160
    assert len({name.split()[1] for name in names}) >= 80
    assert len(everything.ALL) >= 8
    assert unmarked(everything.ALL) == []

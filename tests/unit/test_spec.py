"""The shared spec: its cases, as Python's formats answer them, and that it is whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from clew import spec
from clew.events import vocabulary
from clew.events.number_text import (
    bytes_text,
    counted,
    measured,
    number_text,
    short_number,
    time_text,
)
from clew.views.families import class_family, op_family

SPEC = spec.read()
FORMATS: dict[str, Callable[..., str]] = {
    "count": short_number, "bytes": bytes_text, "time": time_text, "measured": measured,
    "whole": number_text, "counted": counted,
}  # fmt: skip
CASES = [(name, *case) for name, cases in SPEC["cases"].items() for case in cases]


def number(written: Any) -> Any:
    """Read a number that JSON cannot hold from its text."""
    return float(written) if written in ("NaN", "Inf", "-Inf", "-0") else written


@pytest.mark.parametrize("case", CASES, ids=str)
def test_formats_write_what_the_spec_says(case: tuple[Any, ...]) -> None:
    name, *given, text = case
    assert FORMATS[name](*map(number, given)) == text


def test_every_format_has_cases() -> None:
    assert set(FORMATS) == set(SPEC["cases"])


def test_kinds_and_phases_have_their_numbers() -> None:
    for name, number_of in (("COMPOSITE", 9), ("MODULE", 0), ("GRADIENT", 6)):
        assert getattr(vocabulary, name) == number_of
    assert vocabulary.KINDS[vocabulary.GRADIENT] == "grad"
    assert vocabulary.KINDS[vocabulary.COMPOSITE] == "composite"
    assert vocabulary.PHASES[vocabulary.OPTIMIZER] == "optimizer"
    assert len(vocabulary.KINDS) == vocabulary.COMPOSITE + 1
    assert len(vocabulary.PHASES) == vocabulary.DATA + 1


def test_families_are_those_of_the_spec() -> None:
    assert op_family("aten._unsafe_view.default") == "view"
    assert op_family("mylib.fast_linear.default") == "matmul"
    assert op_family("aten.neg.default") == "math"
    assert class_family("Conv1D") == "linear"
    assert class_family("Dropout") != class_family("Linear")
    assert class_family("Flatten") == class_family("Unflatten") == "pool"
    attentions = ("attn", "SelfAttn", "Attention", "MultiheadAttention")
    assert {class_family(name) for name in attentions} == {"attention"}
    assert class_family("MyNet") in {name for name, pattern in spec.CLASS_FAMILIES if not pattern}

"""The part of `make accuracy` about programs that differ from run to run, but for whole scripts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from accuracy import nondeterminism, steady
from accuracy.unsteady import SOURCES, Source


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source[0])
def test_what_differs_is_named_with_its_line_and_cause(source: Source) -> None:
    # Memory that nothing has written holds the same by chance, now and then.
    attempts = 5 if source[0].startswith("unwritten") else 1
    for _ in range(attempts):
        found = nondeterminism.outcome(source)
        if found.is_right:
            return
    pytest.fail(str(found))


@pytest.mark.parametrize("program", steady.STEADY, ids=lambda program: program.__name__)
def test_what_does_the_same_raises_no_alarm(program: Callable[[], Any]) -> None:
    assert nondeterminism.false_alarms([program]) == []


def test_the_list_is_long_enough() -> None:
    names = [name for name, *_ in SOURCES] + list(nondeterminism.SCRIPTS)
    assert len(names) == len(set(names)) >= 20

"""Changes far inside containers: seen whatever their size and depth, or said not to be."""

from __future__ import annotations

import warnings
from array import array
from collections import UserDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

import clew
from clew.keep import (
    changes,
    fast_summaries,  # noqa: F401 - which knows tensors
)
from clew.keep.changes import state_of


@dataclass
class Record:
    rows: list[Any] = field(default_factory=lambda: list(range(3000)))


class Odd(list[Any]):
    """A list whose own words must not be asked."""

    def __len__(self) -> int:
        raise AssertionError

    def __iter__(self) -> Any:
        raise AssertionError


def nested(value: Any, levels: int) -> list[Any]:
    for _ in range(levels):
        value = [value]
    return value  # type: ignore[no-any-return]


def innermost(value: Any) -> Any:
    while isinstance(value[0], list):
        value = value[0]
    return value


CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "long list": (lambda: list(range(100_000)), lambda x: x.__setitem__(50_000, -1)),
    "long dict": (lambda: {n: n for n in range(2000)}, lambda x: x.__setitem__(1500, 0)),
    "long tuple": (lambda: (*range(2000), [1]), lambda x: x[-1].append(2)),
    "subclass": (lambda: Odd(range(3000)), lambda x: list.__setitem__(x, 2500, 0)),
    "UserDict": (lambda: UserDict({n: n for n in range(2000)}), lambda x: x.pop(1500)),
    "inside a dataclass": (Record, lambda x: x.rows.__setitem__(2500, 0)),
    "type of a number": (lambda: [1] * 2000, lambda x: x.__setitem__(1500, True)),
    "sign of zero": (lambda: [0.0] * 2000, lambda x: x.__setitem__(1500, -0.0)),
    "many in few": (lambda: [[0] * 900, [0] * 900], lambda x: x[1].__setitem__(800, 1)),
    "deep": (lambda: nested([1], 20), lambda x: innermost(x).__setitem__(0, 2)),
    "deep tensor": (lambda: nested([torch.zeros(2)], 20), lambda x: innermost(x)[0].add_(1)),
    "many tensors": (lambda: [torch.zeros(2) for _ in range(1500)], lambda x: x[1400].add_(1)),
    "many arrays": (lambda: [np.zeros(2) for _ in range(1500)], lambda x: x[1400].fill(1)),
    "deque": (lambda: deque([1]), lambda x: x.append(2)),
    "deque of arrays": (lambda: deque([np.zeros(2)]), lambda x: x[0].fill(1)),
    "bytearray": (lambda: bytearray(b"ab"), lambda x: x.__setitem__(0, 0)),
    "array": (lambda: array("f", [1, 2]), lambda x: x.__setitem__(0, 0.0)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_change_is_seen_and_nothing_else_is(case: str) -> None:
    make, change = CASES[case]
    value = make()
    before = state_of(value)
    assert state_of(value) == before
    assert not before.cut
    change(value)
    after = state_of(value)
    assert after.same != before.same
    assert after.memory == before.memory
    assert changes.changes(before, after)


def test_equal_containers_look_the_same() -> None:
    one, other = ([float("nan"), "a", 2**70, None, b"x"] * 500 for _ in range(2))
    assert state_of(one).same == state_of(other).same


def test_a_container_in_itself_ends() -> None:
    value: list[Any] = [torch.ones(1)]
    value.append(value)
    before = state_of(value)
    assert state_of(value) == before
    value[0].add_(1)
    assert state_of(value).same != before.same


def test_what_is_too_large_or_too_deep_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert state_of(nested([torch.ones(1)], 3000)).cut
    monkeypatch.setattr(changes, "_MOST_BYTES", 10_000)
    assert not state_of(list(range(1500))).cut
    assert state_of(list(range(5000))).cut
    assert state_of([torch.ones(1) for _ in range(1500)]).cut


def test_a_watch_sees_far_inside_and_says_where_it_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @clew.watch("x", out=False)
    def change() -> None:
        x = list(range(5000))
        x[4000] = -1

    change()
    trace = change.watch.trace  # type: ignore[attr-defined]
    assert [event.name for event in trace.variables] == ["x", "x", "return"]
    assert list(trace.coverage) == []
    monkeypatch.setattr(changes, "_MOST_BYTES", 5_000)
    with pytest.warns(clew.ClewWarning, match="x: it is too large to be looked at whole"):
        change()
    [gap] = trace.coverage
    assert gap.remedy == "name a part of it, or keep it in an array"
    with warnings.catch_warnings():  # once is enough
        warnings.simplefilter("error")
        change()


class Grows(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = list(range(5000))
        seen[4000] = -1
        return x


def test_a_captured_variable_does_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Grows()
    with clew.trace(model, capture=["forward.seen"]) as trace:
        model(torch.ones(1))
    assert len(trace["forward.seen"]) == 2
    assert list(trace.coverage) == []
    monkeypatch.setattr(changes, "_MOST_BYTES", 5_000)
    with clew.trace(model, capture=["forward.seen"]) as trace:
        model(torch.ones(1))
    assert [(gap.what, gap.where) for gap in trace.coverage] == [
        ("changes of a variable", "forward.seen")
    ]

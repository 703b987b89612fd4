"""Values are walked along addresses without running any code of theirs."""

from __future__ import annotations

import enum
from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from clew.address import split
from clew.observe.variables.frames.paths import follow


class Slotted:
    __slots__ = ("a", "unset")

    def __init__(self) -> None:
        self.a = 1


@dataclass
class Data:
    k: Any
    _private: int = 0

    @property
    def trap(self) -> None:
        raise AssertionError("a property ran")


Point = namedtuple("Point", "x y")


class Module:
    """Keeps what nn.Module keeps, as nn.Module keeps it."""

    def __init__(self, **children: Any) -> None:
        self.__dict__["_parameters"] = {"weight": np.zeros(2), "bias": None}
        self.__dict__["_buffers"] = {"running_var": np.ones(2)}
        self.__dict__["_modules"] = children
        self.__dict__["training"] = True

    def __getattr__(self, name: str) -> Any:
        raise AssertionError("an attribute was asked for")


class Trap:
    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return super().__getattribute__(name)
        raise AssertionError(f"{name} was asked for")


class Color(enum.Enum):
    RED = 1


def paths(value: object, pattern: str, **limits: int) -> list[str]:
    return [path for path, _ in follow(value, split(pattern), **limits).places]


@pytest.mark.parametrize(
    ("value", "pattern", "expected"),
    [
        ({"k": [1, 2]}, "k.1", {"k.1": 2}),
        ({"k": [1, 2]}, "k[1]", {"k.1": 2}),
        ({"k": {"a.b": 3}}, "k['a.b']", {"k['a.b']": 3}),
        ({0: "int", "1": "text"}, "0", {"0": "int"}),
        ({0: "int", "1": "text"}, "[1]", None),
        ({0: "int", "1": "text"}, "1", {"1": "text"}),
        ({Color.RED: 1}, "['Color.RED']", {"['Color.RED']": 1}),
        ({"k": 1}, "l", {}),
        ([1, 2], "2", {}),
        ([1, 2], "*", {"0": 1, "1": 2}),
        ((1, [2, 3]), "**", {"0": 1, "1.0": 2, "1.1": 3}),
        (Point(1, 2), "*", {"x": 1, "y": 2}),
        (Point(1, 2), "y", {"y": 2}),
        (Point(1, 2), "1", {"1": 2}),
        (Data([5]), "k.0", {"k.0": 5}),
        (Data([5]), "*", {"k": [5]}),
        (Data([5], 7), "_*", {"_private": 7}),
        (Data([5], 7), "trap", {}),
        (Slotted(), "*", {"a": 1}),
        (Slotted(), "unset", {}),
        (OrderedDict(logits=1), "logits", {"logits": 1}),
        (defaultdict(list, a=1), "b", {}),
        (UserDict(ids=[1]), "ids.0", {"ids.0": 1}),
        (deque([4]), "0", {"0": 4}),
        ("text", "*", {}),
        ("text", "0", {}),
        (b"ab", "*", {}),
        ({1, 2}, "*", {}),
        (np.arange(3), "*", {}),
        (np.arange(3), "0", {}),
        (np.arange(3), "**", None),
        (3, "", {"": 3}),
    ],
)
def test_what_a_path_leads_to(value: Any, pattern: str, expected: dict[str, Any] | None) -> None:
    found = follow(value, split(pattern))
    assert found.cut is None
    if expected is None:
        assert len(found.places) == 1
    else:
        assert dict(found.places) == expected


def test_modules_are_walked_through_what_they_keep() -> None:
    model = Module(bn=Module(), layers=Module(**{"0": Module(), "1": Module()}))
    assert paths(model, "*.running_var") == ["bn.running_var", "layers.running_var"]
    assert paths(model, "layers.0.weight") == ["layers.0.weight"]
    assert paths(model, "layers.[01].weight") == ["layers.0.weight", "layers.1.weight"]
    assert len(paths(model, "**.running_var")) == 5
    assert paths(model, "bn.training") == ["bn.training"]
    assert "_parameters.weight" not in paths(model, "**")


def test_no_code_of_the_value_runs_and_no_iterator_moves() -> None:
    def numbers() -> Iterator[int]:
        yield from (1, 2)

    generator = numbers()
    value = {"g": generator, "t": Trap(), "d": Data(1), "z": zip([1], [2], strict=True)}
    for pattern in ("*", "**", "g.*", "g.0", "t.x", "t.*", "d.trap", "z.0", "z.*"):
        follow(value, split(pattern))
    assert list(generator) == [1, 2]
    assert list(value["z"]) == [(1, 2)]  # type: ignore[call-overload]


def test_an_object_that_holds_itself_ends() -> None:
    value: dict[str, Any] = {"a": 1}
    value["self"] = value
    value["list"] = [value]
    assert follow(value, ["**"]).places == (("a", 1),)
    assert paths(value, "**.a") == ["a"]


def test_limits_are_reported() -> None:
    wide = follow(list(range(1000)), ["*"], places=10)
    assert len(wide.places) == 10
    assert wide.cut == "more than 10 places"
    nested: list[Any] = [0]
    for _ in range(50):
        nested = [nested]
    deep = follow(nested, ["**"], depth=5)
    assert deep.places == ()
    assert deep.cut == "deeper than 5 steps"


def test_the_classes_attributes_are_found_but_not_run() -> None:
    class A:
        constant = 5

        def method(self) -> None: ...

    assert paths(A(), "constant") == ["constant"]
    assert paths(A(), "method") == paths(A, "method") == []
    assert paths(A, "constant") == ["constant"]

"""Functions are found by name, wherever they are and whatever decorates them."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

import pytest

from clew.address import parse
from clew.observe.variables.frames.functions import (
    Found,
    methods,
    missing,
    resolve,
    unwrap,
    variables,
)

TEXT = """
import functools

def opaque(function):
    def wrapper(*args):
        return function(*args)
    return wrapper

def honest(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)
    return wrapper

def get_item(index):
    video = index
    def decode(frame):
        pixels = frame
        return pixels
    return decode(video)

class Dataset:
    def get_item(self, index):
        video = index
        return video

    @staticmethod
    def load(path):
        raw = path
        return raw

    @classmethod
    def make(cls):
        made = cls()
        return made

    @property
    def size(self):
        counted = 1
        return counted

    @opaque
    def hidden(self):
        video = 1
        return video

    @honest
    @opaque
    def both(self):
        video = 2
        return video

class Child(Dataset):
    pass

@functools.lru_cache
def cached(n):
    table = n
    return table

partial = functools.partial(get_item, 3)

def outer():
    def kept():
        video = 1
        return video
    class Local:
        def method(self):
            video = 2
    kept.local = Local
    return kept
"""


@pytest.fixture
def module(tmp_path: Path) -> Iterator[ModuleType]:
    file = tmp_path / "clew_tests" / "dataset.py"
    file.parent.mkdir()
    file.write_text(TEXT)
    made = ModuleType("clew_tests.data")
    made.__file__ = str(file)
    sys.modules["clew_tests.data"] = made
    exec(compile(TEXT, str(file), "exec"), made.__dict__)
    yield made
    # All functions that exist are found, so those of this test must not.
    del sys.modules["clew_tests.data"]
    made.__dict__.clear()
    gc.collect()


def names(found: list[Found]) -> list[str]:
    return sorted({f"{f.function.__code__.co_name}>{f.inner}:{list(f.rest)}" for f in found})


def look(address: str) -> list[Found]:
    parsed = parse(address)
    assert parsed.kind == "function"
    return resolve(parsed.path, parsed.segments)


def test_by_file_and_by_module(module: ModuleType) -> None:
    for where in ("dataset.py", "clew_tests/dataset.py", "clew_tests.data"):
        found = look(f"{where}:get_item.video")
        assert [f.function for f in found] == [module.get_item]
        assert found[0].rest == ("video",)
    method = look("clew_tests.data:Dataset.get_item.video['k'][0]")
    assert [f.function for f in method] == [module.Dataset.get_item]
    assert method[0].rest == ("video", "k", 0)


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("load", "raw"),
        ("make", "made"),
        ("size", "counted"),
        ("hidden", "video"),
        ("both", "video"),
    ],
)
def test_methods_are_found_behind_what_decorates_them(
    module: ModuleType, name: str, variable: str
) -> None:
    (found,) = look(f"dataset.py:Dataset.{name}.{variable}")
    assert found.function.__code__.co_name == name
    assert variable in variables(found.function)
    assert [f.function for f in methods(module.Dataset, [name, variable])] == [found.function]
    assert [f.function for f in methods(module.Child(), [name])] == [found.function]


def test_wildcards_find_the_functions_that_hold_the_variable(module: ModuleType) -> None:
    assert names(look("dataset.py:Dataset.*.video")) == [
        "both>:['video']",
        "get_item>:['video']",
        "hidden>:['video']",
    ]
    everywhere = names(look("clew_tests.data:**.video"))
    assert "get_item>:['video']" in everywhere
    assert "outer>kept:['video']" in everywhere
    assert "cached>:['video']" not in everywhere
    assert len(methods(module.Dataset(), ["get_*", "video"])) == 1


def test_inner_functions_that_exist_and_those_to_come(module: ModuleType) -> None:
    assert names(look("dataset.py:get_item.decode.pixels")) == ["get_item>decode:['pixels']"]
    kept = module.outer()
    found = look("dataset.py:outer.kept.video")
    assert {(f.function, f.inner) for f in found} == {(module.outer, "kept"), (kept, "")}
    found = names(look("dataset.py:outer.Local.method.video"))
    assert found == ["method>:['video']", "outer>Local.method:['video']"]
    later, existing = methods(module, ["outer", "Local", "method"])
    assert (later.function, later.inner, later.rest) == (module.outer, "Local.method", ())
    assert existing.function.__qualname__ == "outer.<locals>.Local.method"


def test_redefined_and_aliased_functions(module: ModuleType) -> None:
    older = module.get_item
    exec("def get_item(index):\n    video = 0\n    return video", module.__dict__)
    module.alias = module.get_item  # type: ignore[attr-defined]
    found = {f.function for f in resolve("clew_tests.data", ["get_item", "video"])}
    assert found == {older, module.get_item}


def test_what_an_object_overrides_itself(module: ModuleType) -> None:
    def get_item(self: Any, index: int) -> int:
        video = index
        return video

    item = module.Dataset()
    item.get_item = MethodType(get_item, item)
    assert [f.function for f in methods(item, ["get_item", "video"])] == [get_item]
    item.get_item = functools.partial(get_item, item)
    assert [f.function for f in methods(item, ["get_item", "video"])] == [get_item]
    assert [f.function for f in methods(module.Dataset(), ["get_item"])] != [get_item]


def test_callables_of_all_kinds(module: ModuleType) -> None:
    class Called:
        def __call__(self) -> None: ...

    assert unwrap(module.partial) == [module.get_item]
    assert unwrap(module.cached) == [module.cached.__wrapped__]
    assert unwrap(Called()) == [Called.__call__]
    assert unwrap(len) == unwrap(int) == unwrap(None) == unwrap(3) == []
    loop: Any = lambda: None  # noqa: E731
    loop.__wrapped__ = loop
    assert unwrap(loop) == []


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("dataset.py:get_itm.video", "among the functions of dataset.py; nearest: 'get_item"),
        ("dataset.py:get_item.vidoe", "among the variables of get_item; nearest: 'video'"),
        (
            "datset.py:get_item.video",
            "among the files and modules that are loaded; nearest: 'data",
        ),
    ],
)
def test_what_is_not_found_names_what_is_near(
    module: ModuleType, address: str, message: str
) -> None:
    parsed = parse(address)
    assert message in str(missing(parsed.path, parsed.segments))


def test_nothing_runs_while_looking(module: ModuleType) -> None:
    class Trap:
        @property
        def method(self) -> FunctionType:
            raise AssertionError("a property ran")

        def __getattr__(self, name: str) -> object:
            raise AssertionError("an attribute was asked for")

    assert [f.function.__name__ for f in methods(Trap(), ["method"])] == ["method"]
    assert methods(Trap(), ["other"]) == []

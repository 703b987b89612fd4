"""The expression that failed, found in the source by line and columns, with its arguments."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

import pytest

from clew.analysis.crashes.failed_expression import FailedExpression, failed_expression
from clew.events.model import Source

needs_columns = pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no columns")


def failed(text: str, **names: Any) -> FailedExpression:
    """Run a source until it fails, and find the expression where it did."""
    caught = _traceback(text, names)
    code = caught.tb_frame.f_code
    places = list(code.co_positions())[caught.tb_lasti // 2]  # type: ignore[attr-defined]
    line, end_line, col, end_col = (0 if place is None else place for place in places)
    found = failed_expression(text, Source("f", line, end_line, col, end_col, "", ""))
    assert found is not None
    return found


def _traceback(text: str, names: dict[str, Any]) -> TracebackType:
    try:
        exec(compile(text, "f", "exec"), names)
    except Exception as error:
        assert error.__traceback__ is not None
        assert error.__traceback__.tb_next is not None
        return error.__traceback__.tb_next
    raise AssertionError("it did not fail")


class Fails:
    """Fails whatever is done with it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise ValueError

    def __getitem__(self, key: Any) -> Any:
        raise ValueError

    __setitem__ = __add__ = __iadd__ = __matmul__ = __call__  # type: ignore[assignment]


class Chain:
    """Methods that return the object they belong to, but for the last."""

    def good(self, *args: Any) -> Chain:
        return self

    bad = Fails()


@needs_columns
@pytest.mark.parametrize(
    ("text", "function", "operands"),
    [
        ("f(a, b=x)", "f", ["a", "x"]),
        ("y = 1 if 0 else f([a, g(x)], 1)", "f", ["a", "g(x)", "1"]),
        ("y = a + f @ x", "@", ["f", "x"]),
        ("f += x", "+", ["f", "x"]),
        ("y = f[x, 0]", "", ["f", "x", "0"]),
        ("f[x] = g(a)", "", ["f", "x", "g(a)"]),
        ("y = (\n  f(\n    a,\n    x,\n  )\n)", "f", ["a", "x"]),
        ("y = (\n  c.good(a)\n  .good()\n  .bad(\n    x\n  )\n)", "c.good(a).good().bad",
         ["c.good(a).good()", "x"]),
        ("for i in f(x):\n  print(i)", "f", ["x"]),
        ("é = 'ü'; f(a)", "f", ["a"]),
    ],
)  # fmt: skip
def test_arguments_are_found_by_position(text: str, function: str, operands: list[str]) -> None:
    found = failed(text, f=Fails(), g=lambda x: x, a=1, x=2, c=Chain())
    assert found.function == function
    assert [one.text for one in found.operands] == operands


@needs_columns
def test_positions_end_at_a_star() -> None:
    found = failed("f(a, *b, c, d=e)", f=Fails(), a=1, b=[], c=2, e=3)
    assert [one.text for one in found.positional] == ["a"]
    assert [one.keyword for one in found.keywords] == ["d"]


@needs_columns
def test_names_are_looked_up_by_steps() -> None:
    found = failed("f(a.b[0]['k'], a.c(x), a[x])", f=Fails(), a=_Anything(), x=0)
    assert found.names["a.b[0]['k']"] == (
        ("name", "a"), ("attribute", "b"), ("item", 0), ("item", "k"),
    )  # fmt: skip
    assert "a.c(x)" not in found.names
    assert "a[x]" not in found.names


class _Anything:
    def __getattr__(self, name: str) -> Any:
        return self

    def __getitem__(self, key: Any) -> Any:
        return self

    def __call__(self, *args: Any) -> Any:
        return self


def test_without_columns_a_line_with_one_call_is_enough() -> None:
    found = failed_expression("x = 1\nf(a)\n", Source("f", 2, 2, 0, 0, "", ""))
    assert found is not None
    assert found.function == "f"
    assert failed_expression("f(g(a))", Source("f", 1, 1, 0, 0, "", "")) is None


@pytest.mark.parametrize("text", ["", "x = (", "%matplotlib inline\nf(x)", "(" * 5000, "\0"])
def test_what_is_no_python_tells_nothing(text: str) -> None:
    assert failed_expression(text, Source("f", 1, 1, 0, 4, "", "")) is None

"""The exception tree: what catches what, what the messages say, and that they survive pickling."""

from __future__ import annotations

import builtins
import inspect
import pickle
import re

import pytest

from clew import errors
from clew.errors import (
    AddressSyntaxError,
    BuildError,
    ClewError,
    MissingDependency,
    NoMatch,
    NotRecorded,
    TraceStateError,
)

EXAMPLES = [
    ClewError("anything"),
    AddressSyntaxError("'inn' is not a role", "fc:inn", 3, "write ':in'"),
    NoMatch("encodr", ["encoder", "decoder"]),
    TraceStateError("the trace has not been started"),
    MissingDependency("to_pandas()", "pandas", "clew[pandas]"),
    NotRecorded("the values were not kept"),
    BuildError("there is no C++ compiler", "c++: not found\n"),
]


def test_the_drawn_tree_is_the_tree() -> None:
    assert errors.__doc__ is not None
    drawn = {
        name: base or None for name, base in re.findall(r"─ (\w+)(?: +\((\w+)\))?", errors.__doc__)
    }
    defined = {
        name: cls
        for name, cls in inspect.getmembers(errors, inspect.isclass)
        if issubclass(cls, ClewError) and cls is not ClewError
    }
    assert drawn.keys() == defined.keys()
    for name, base in drawn.items():
        bases = (ClewError,) if base is None else (ClewError, getattr(builtins, base))
        assert defined[name].__bases__ == bases


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling(error: ClewError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_a_syntax_error_shows_the_place_and_the_remedy() -> None:
    assert str(AddressSyntaxError("'inn' is not a role", "fc:inn", 3, "write ':in'")) == (
        "cannot read the address: 'inn' is not a role\n    fc:inn\n       ^\nwrite ':in'"
    )


@pytest.mark.parametrize("position", [0, 10, 100, 500, 990, 1000])
def test_a_long_address_is_cut_around_the_place(position: int) -> None:
    text = "a" * position + "!" + "a" * (1000 - position)
    _, shown, caret, _ = str(AddressSyntaxError("x", text, position, "y")).split("\n")
    assert shown[caret.index("^")] == "!"
    assert len(shown) <= 80


def test_unprintable_letters_do_not_break_the_lines() -> None:
    error = AddressSyntaxError("x", "a\nb\x1b[31m", 2, "y")
    assert str(error).splitlines()[1:3] == [
        "    a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}[31m",
        "      ^",
    ]


def test_a_miss_names_the_nearest() -> None:
    assert str(NoMatch("encodr", ["encoder", "decoder"], "the modules")) == (
        "nothing matches 'encodr' among the modules; nearest: 'encoder', 'decoder'"
    )
    assert str(NoMatch("encodr")) == "nothing matches 'encodr' among the recorded names"


def test_a_missing_package_answers_with_the_command() -> None:
    assert str(MissingDependency("to_pandas()", "pandas", "clew[pandas]")) == (
        'to_pandas() needs pandas, which is not installed. Run: pip install "clew[pandas]"'
    )

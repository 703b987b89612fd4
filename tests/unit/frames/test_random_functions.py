"""Random functions: instrumented, they do the same and tell every binding that really happens.

The reference is the same function with `log(...)` written after each binding by hand. It has the
same lines as the plain one, which is what is instrumented.
"""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from tests.no_torch.frames.seen import Seen, follow, program

NAMES = ("a", "b", "c")


class Text:
    """A function in the making, as lines of the reference and of the plain one."""

    def __init__(self) -> None:
        self.reference: list[str] = []
        self.plain: list[str] = []

    def add(self, depth: int, plain: str, reference: str | None = None) -> None:
        self.plain.append("    " * depth + plain)
        self.reference.append("    " * depth + (plain if reference is None else reference))

    def log(self, depth: int, *names: str) -> None:
        for name in names:
            self.add(depth, "", f"log({name!r}, {name})")


names = st.sampled_from(NAMES)
atoms = st.sampled_from(["0", "1", "2", "x", "[1, 2]", "{'k': 1}", "'s'", *NAMES])
expressions = st.one_of(
    atoms,
    st.tuples(atoms, st.sampled_from(["+", "*", "//", "=="]), atoms).map(" ".join),
    atoms.map("call({})".format),
    atoms.map("[a for a in range(2) if {}]".format),
    atoms.map("(lambda b: b)({})".format),
)

# A statement that binds at most two names, and which.
SIMPLE: dict[str, Callable[[str, str, str], tuple[str, tuple[str, ...]]]] = {
    "assign": lambda n, m, v: (f"{n} = {v}", (n,)),
    "chained": lambda n, m, v: (f"{n} = {m} = {v}", (n, m)),
    "tuple": lambda n, m, v: (f"{n}, *{m} = [{v}, 1, 2]", (n, m)),
    "augmented": lambda n, m, v: (f"{n} += {v}", (n,)),
    "annotated": lambda n, m, v: (f"{n}: int = {v}", (n,)),
    "import": lambda n, m, v: (f"import math as {n}", (n,)),
    "def": lambda n, m, v: (f"def {n}({m}={v}): return {m}", (n,)),
    "class": lambda n, m, v: (f"class {n}: {m} = {v}", (n,)),
    "subscript": lambda n, m, v: (f"{n}['k'] = {v}", ()),
    "delete": lambda n, m, v: (f"del {n}", ()),
    "call": lambda n, m, v: (f"call({v})", ()),
    "raise": lambda n, m, v: (f"raise ValueError({v})", ()),
    "return": lambda n, m, v: (f"return {v}", ()),
    "pass": lambda n, m, v: ("pass", ()),
    "break": lambda n, m, v: ("break", ()),
    "continue": lambda n, m, v: ("continue", ()),
    "yield": lambda n, m, v: (f"{n} = yield {v}", (n,)),
}
COMPOUND = ("if", "for", "while", "try", "finally", "with", "match", "walrus")


class Writer:
    """Writes random statements."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.text = Text()
        self.generator = draw(st.booleans())
        self.text.add(0, "def f(x, call, log):")
        if self.generator:
            self.text.add(1, "yield 0")
        self.block(1, 4, False)
        self.text.add(1, f"return {draw(expressions)}" if draw(st.booleans()) else "pass")

    def block(self, depth: int, size: int, in_loop: bool) -> None:
        kinds = [kind for kind in SIMPLE if kind not in ("break", "continue", "yield")]
        kinds += ["break", "continue"] * in_loop + ["yield"] * self.generator
        kinds += COMPOUND * 2 if depth < 4 else ()
        for _ in range(self.draw(st.integers(1, size))):
            kind = self.draw(st.sampled_from(kinds))
            name, value = self.draw(names), self.draw(expressions)
            # One name bound twice by one statement is told twice, with its last value.
            other = self.draw(st.sampled_from([n for n in NAMES if n != name]))
            if kind in SIMPLE:
                line, bound = SIMPLE[kind](name, other, value)
                self.text.add(depth, line)
                self.text.log(depth, *bound)
            else:
                getattr(self, f"write_{kind}")(depth, in_loop, name, other, value)

    def orelse(self, depth: int, in_loop: bool) -> None:
        if self.draw(st.booleans()):
            self.text.add(depth, "else:")
            self.block(depth + 1, 2, in_loop)

    def write_if(self, depth: int, in_loop: bool, name: str, other: str, value: str) -> None:
        self.text.add(depth, f"if {value}:")
        self.block(depth + 1, 2, in_loop)
        self.orelse(depth, in_loop)

    def write_walrus(self, depth: int, in_loop: bool, name: str, other: str, value: str) -> None:
        reference = f"if log({name!r}, ({name} := {value})) and call({other}):"
        self.text.add(depth, f"if ({name} := {value}) and call({other}):", reference)
        self.block(depth + 1, 2, in_loop)

    def write_for(self, depth: int, in_loop: bool, name: str, other: str, value: str) -> None:
        self.text.add(depth, f"for {name}, {other} in [({value}, 1), (2, 3)]:")
        self.text.log(depth + 1, name, other)
        self.block(depth + 1, 2, True)
        self.orelse(depth, in_loop)

    def write_while(self, depth: int, in_loop: bool, name: str, other: str, value: str) -> None:
        self.text.add(depth, "while call.again():")
        self.block(depth + 1, 2, True)
        self.orelse(depth, in_loop)

    def write_try(self, depth: int, in_loop: bool, name: str, other: str, value: str) -> None:
        self.text.add(depth, "try:")
        self.block(depth + 1, 2, in_loop)
        self.text.add(depth, f"except (ValueError, NameError) as {name}:")
        self.text.log(depth + 1, name)
        self.block(depth + 1, 2, in_loop)
        self.text.add(depth, "except TypeError:")
        self.block(depth + 1, 1, in_loop)
        self.orelse(depth, in_loop)

    def write_finally(self, depth: int, in_loop: bool, name: str, other: str, value: str) -> None:
        self.text.add(depth, "try:")
        self.block(depth + 1, 2, in_loop)
        self.text.add(depth, "finally:")
        self.text.add(depth + 1, f"{name} = {value}")
        self.text.log(depth + 1, name)

    def write_with(self, depth: int, in_loop: bool, name: str, other: str, value: str) -> None:
        first, last = f"call.context({value}) as {name}", f"call.context(1) as {other}"
        plain = f"with {first}, call.nothing(), {last}:"
        self.text.add(depth, plain, f"with {first}, call.nothing(log({name!r}, {name})), {last}:")
        self.text.log(depth + 1, other)
        self.block(depth + 1, 2, in_loop)

    def write_match(self, depth: int, in_loop: bool, name: str, other: str, value: str) -> None:
        self.text.add(depth, f"match {value}:")
        reference = f"case [{name}, *_] if call(log({name!r}, {name})):"
        self.text.add(depth + 1, f"case [{name}, *_] if call({name}):", reference)
        self.block(depth + 2, 1, in_loop)
        self.text.add(depth + 1, f"case {{'k': {name}}}:")
        self.text.log(depth + 2, name)
        self.block(depth + 2, 1, in_loop)
        self.text.add(depth + 1, f"case {other}:")
        self.text.log(depth + 2, other)
        self.block(depth + 2, 1, in_loop)


@st.composite
def functions(draw: st.DrawFn) -> Text:
    text = Writer(draw).text
    note("\n".join(text.plain))
    return text


class Call:
    """What the functions call: answers, and fails, by a fixed schedule."""

    def __init__(self, schedule: list[int]) -> None:
        self.schedule = list(schedule)
        self.rounds = 0

    def __call__(self, value: Any = None) -> Any:
        step = self.schedule.pop(0) if self.schedule else 0
        if step == 1:
            raise ValueError("scheduled")
        if step == 2 and isinstance(value, list):
            value.append(1)
        return value if step < 4 else 0

    def again(self) -> bool:
        self.rounds += 1
        return self.rounds < 4

    @contextlib.contextmanager
    def context(self, value: Any) -> Iterator[Any]:
        swallow = bool(self.schedule) and self.schedule[0] == 3
        try:
            yield value
        except ValueError:
            if not swallow:
                raise

    def nothing(self, value: Any = None) -> Any:
        return contextlib.nullcontext(value)


def show(value: object) -> str:
    """A value in words that do not change from run to run."""
    if isinstance(value, FunctionType | ModuleType | type | BaseException):
        return type(value).__name__
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}{[show(item) for item in value]}"
    return repr(value)


def outcome(function: Any, schedule: list[int], log: Any) -> tuple[str, list[int]]:
    """What a call gives or raises, and the lines of the function in the traceback."""
    try:
        found = function(0, Call(schedule), log)
        if hasattr(found, "send"):
            handed = [next(found)]
            with contextlib.suppress(StopIteration):
                handed += [found.send(number) for number in range(12)]
            found.close()
            found = handed
        return show(found), []
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno or 0 for frame in frames if frame.name == "f"]
        # Objects in the text have an address, and classes the name of their program.
        text = re.sub(r" at 0x\w+|cell_\d+", "", str(error))
        return f"{type(error).__name__}: {text}", lines


def variables(function: FunctionType) -> list[str]:
    """The order of `locals()`, but for the name that comprehensions use as well."""
    return [name for name in function.__code__.co_varnames if name != "a"]


schedules = st.lists(st.integers(0, 4), max_size=8)


@pytest.mark.parametrize("with_source", [True, False], ids=["rewritten", "without source"])
@settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    # To explain a failure, hypothesis watches lines itself; where its callback switches a line off,
    # Python 3.12 and 3.13 skip our event there once.
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
@given(text=functions(), schedule=schedules, polls=st.booleans())
def test_random_functions_do_the_same_and_tell_everything(
    with_source: bool, text: Text, schedule: list[int], polls: bool
) -> None:
    expected: list[tuple[str, str]] = []

    def log(name: str, value: Any) -> Any:
        expected.append((name, show(value)))
        return value

    reference = program("\n".join(text.reference))["f"]
    plain = program("\n".join(text.plain), with_source)["f"]
    told, lines = outcome(reference, schedule, log)
    untouched = outcome(plain, schedule, log)
    assert untouched == (told, lines)

    seen = Shown()
    order = variables(plain)
    with follow(seen, plain, *NAMES, polls=polls, returns=polls, lines=polls) as installed:
        assert bool(installed.fallbacks) is not with_source
        assert outcome(plain, schedule, log) == untouched
        assert variables(plain) == order
    assert seen.told == expected
    kinds = seen.kinds()
    assert kinds.count("entered") == kinds.count("left") == 1
    # Without the lines: 3.11 itself mistakes some once a function has run often or been traced.
    assert outcome(plain, schedule, log)[0] == told


class Shown(Seen):
    """Writes values down as they are at the time, for they may change later."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, str]] = []

    def bound(self, site: Any, value: object, owner: object) -> None:
        super().bound(site, None, owner)
        if site.kind == "bind":
            self.told.append((site.name, show(value)))

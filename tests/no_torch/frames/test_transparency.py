"""A followed function is the same to everybody else: debuggers, tracebacks, other probes."""

from __future__ import annotations

import bdb
import cProfile
import functools
import gc
import inspect
import pickle
import sys
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from clew.observe.variables.frames import Target, instrument
from tests.no_torch.frames.seen import Seen, follow, program, wanting
from tests.no_torch.frames.test_bindings import CASES
from tests.processes import HANG_GUARD

# A handler around the whole call shows its line where an exception leaves; and 3.10 counts a line
# anew that holds two contexts.
UNQUIET = ["with whose second item fails", "raise", "except*", "thread"]
if sys.version_info < (3, 11):
    UNQUIET.append("with")


def line_events(module: dict[str, Any], names: set[str]) -> list[tuple[str, int]]:
    """What a debugger is told of some functions."""
    found: list[tuple[str, int]] = []

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_name in names and frame.f_code.co_filename.startswith("<cell"):
            found.append((event, frame.f_lineno))
            return trace
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        module["run"]()
    finally:
        sys.settrace(before)
    return found


QUIET = [case[:2] for case in CASES if case[0] not in UNQUIET]


@pytest.mark.parametrize(("case", "text"), QUIET, ids=[case for case, _ in QUIET])
def test_a_debugger_sees_the_same_lines(case: str, text: str) -> None:
    module = program(text)
    functions = module.get("FOLLOWED") or [module["f"]]
    names = {function.__code__.co_name for function in functions}
    plain = line_events(module, names)
    with instrument([Target(f, wanting("y"), returns=True) for f in functions], Seen()):
        assert line_events(module, names) == plain


FAILING = """
import contextlib

def decorate(function):
    return function

class A:
    @decorate
    @decorate
    def f(self, x):
        '''A docstring
  with lines less indented.'''
        y = [
            x,
            self.deeper(x) +
            1 / x,
        ]
        return y

    def deeper(self, x):
        with contextlib.nullcontext() as a, contextlib.nullcontext() as b:
            for i in range(3):
                try:
                    y = {}["k"]
                except KeyError as error:
                    if i == x:
                        raise ValueError(
                            "no", i
                        ) from error
                finally:
                    x = x
        return 1
"""


def report(call: Callable[[], object]) -> str:
    try:
        call()
    except Exception as error:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__)[1:])
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("x", [0, 2])
@pytest.mark.parametrize("options", [{}, {"polls": True, "returns": True, "lines": True}])
def test_tracebacks_are_the_same(x: int, options: dict[str, bool]) -> None:
    module = program(FAILING)
    cls = module["A"]
    targets = [Target(f, wanting(), **options) for f in (cls.f, cls.deeper)]
    fails = functools.partial(cls().f, x)
    plain = report(fails)
    with instrument(targets, Seen()) as installed:
        assert installed.fallbacks == []
        assert report(fails) == plain
        assert inspect.getsource(cls.f).lstrip().startswith("@decorate")
    assert "__clew" not in plain


def test_the_code_keeps_its_name_place_and_shape() -> None:
    function = program(FAILING)["A"].f
    before = function.__code__
    with follow(Seen(), function, polls=True, returns=True):
        during = function.__code__
        assert during is not before
        for kept in (
            "co_name", "co_filename", "co_firstlineno", "co_varnames", "co_freevars", "co_flags",
            "co_argcount", "co_qualname",
        ):  # fmt: skip
            assert getattr(during, kept, None) == getattr(before, kept, None)
        assert during.co_consts[0] == before.co_consts[0]  # the docstring
        plain = (int, str, bytes, float, tuple, type(None), bool)
        assert all(isinstance(const, plain) for const in during.co_consts)
    assert function.__code__ is before


def test_sites_tell_where_in_the_file() -> None:
    module = program(
        """
        class A:
            @property
            def f(self, k=1):
                y = (
                    k
                ); x = [y := 2]
                for y in 'é', : pass
                return y
        """
    )
    seen = Seen()
    with follow(seen, module["A"].__dict__["f"].fget, "y", "k", returns=True):
        module["A"]().f
    places = [
        (site.kind, site.line, site.end_line, site.col, site.end_col)
        for site in seen.sites
        if site.kind in ("param", "bind", "return")
    ]
    assert places == [
        ("param", 3, 3, 16, 17),
        ("bind", 4, 6, 8, 9),
        ("bind", 6, 6, 16, 22),
        ("bind", 7, 7, 12, 13),
        ("return", 8, 8, 8, 16),
    ]
    site = seen.sites[0]
    assert (site.kind, site.line, site.function) == ("enter", 3, "A.f")
    assert site.code is module["A"].__dict__["f"].fget.__code__
    assert site.file == site.code.co_filename


def test_the_owner_is_the_first_parameter_whatever_its_name() -> None:
    module = program(
        """
        class A:
            def f(this, x): y = x
            def g(self, x): self = None; y = x
            def h(self, x): del self; y = x
            def i(*args): y = args
            def j(self, x): y = [self for self in x]
            def k(self, /, x): y = lambda: self
            async def l(self, x): y = x
        """
    )
    cls = module["A"]
    a = cls()
    for name, expected in {"f": a, "g": None, "h": None, "i": None, "j": None, "k": a}.items():
        seen = Seen()
        with follow(seen, getattr(cls, name), "y", returns=True):
            getattr(a, name)("x")
        assert set(map(id, seen.owners)) == {id(expected)}, name


# Several at once


def test_two_probes_end_in_any_order() -> None:
    text = "def f():\n    y = 1\n    x = 2\n    return x"
    for first_ends in (0, 1):
        function = program(text)["f"]
        before = function.__code__
        probes = [Seen(), Seen()]
        installed = [follow(probes[0], function, "y"), follow(probes[1], function, "x")]
        function()
        assert [probes[0].values("y"), probes[1].values("x")] == [[1], [2]]
        assert probes[0].values("x") == probes[1].values("y") == []
        installed[first_ends].uninstall()
        installed[first_ends].uninstall()
        function()
        assert len(probes[first_ends].values("yx"[first_ends])) == 1
        assert len(probes[1 - first_ends].values("yx"[1 - first_ends])) == 2
        installed[1 - first_ends].uninstall()
        assert function.__code__ is before


def test_two_targets_on_one_function_are_told_once() -> None:
    function = program("def f(x):\n    y = x\n    return y")["f"]
    seen = Seen()
    targets = [Target(function, wanting("y")), Target(function, wanting("y", "x"), returns=True)]
    with instrument(targets, seen):
        function(1)
    assert seen.kinds() == ["entered", "param", "bound", "returned", "left"]


def test_a_function_somebody_else_changed_meanwhile_is_left_alone() -> None:
    function = program("def f():\n    y = 1\n    return y")["f"]
    other = program("def f():\n    return 5")["f"].__code__
    installed = follow(Seen(), function, "y")
    function.__code__ = other
    installed.uninstall()
    assert function.__code__ is other


def test_an_error_while_installing_leaves_nothing_behind() -> None:
    module = program("def f():\n    y = 1\ndef g():\n    y = 2")
    before = module["f"].__code__

    def fails(name: str) -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        instrument([Target(module["f"], wanting("y")), Target(module["g"], fails)], Seen())
    assert module["f"].__code__ is before
    assert not [name for name in module if name.startswith("__clew")]


def test_code_that_still_runs_when_it_is_removed_goes_on_in_silence() -> None:
    module = program(
        """
        def f():
            y = 1
            yield y
            y = 2
            yield y
        """
    )
    seen = Seen()
    with follow(seen, module["f"], "y"):
        generator = module["f"]()
        assert next(generator) == 1
    count = len(seen.log)
    assert list(generator) == [2]
    assert len(seen.log) == count
    del generator
    assert not [name for name in module if name.startswith("__clew")]


def test_a_thread_that_runs_already_is_followed_in_its_next_call() -> None:
    module = program("def f(k):\n    y = k\n    return y")
    go, stop, seen = threading.Event(), threading.Event(), Seen()

    def work() -> None:
        go.wait(HANG_GUARD)
        module["f"](3)
        stop.set()

    thread = threading.Thread(target=work)
    thread.start()
    with follow(seen, module["f"], "y"):
        go.set()
        assert stop.wait(HANG_GUARD)
    thread.join()
    assert seen.values("y") == [3]


def test_a_method_bound_before_and_an_alias_are_followed() -> None:
    module = program("class A:\n    def f(self, k):\n        y = k\n        return y")
    method, alias = module["A"]().f, module["A"].f
    seen = Seen()
    with follow(seen, module["A"].f, "y"):
        method(1), alias(None, 2)
    assert seen.values("y") == [1, 2]


def test_functions_made_by_a_followed_one_are_set_right_afterwards() -> None:
    module = program(
        """
        def outer(k):
            def inner(a):
                y = a + k
                return y
            class Local:
                def method(self):
                    y = k
                    return y
            return inner, Local
        """
    )
    seen = Seen()
    targets = [Target(module["outer"], wanting("y"), inner=i) for i in ("inner", "Local.method")]
    older, _ = module["outer"](0)
    with instrument(targets, seen):
        inner, local = module["outer"](10)
        assert (inner(1), local().method(), older(5)) == (11, 10, 5)
    assert seen.values("y") == [11, 10]
    assert {site.function for site in seen.sites} == {
        "outer.<locals>.inner",
        "outer.<locals>.Local.method",
    }
    assert inner(2) == 12
    assert seen.values("y") == [11, 10]
    assert inner.__code__ is older.__code__
    assert not [name for name in module if name.startswith("__clew")]


def test_nothing_is_kept_alive() -> None:
    class Thing:
        pass

    quiet = Seen()
    quiet._note = lambda *args: None  # type: ignore[method-assign]
    for with_source in (True, False):
        module = program("def f(a):\n    y = a\n    print(end='')\n    y = 2\n", with_source)
        thing = Thing()
        alive = weakref.ref(thing)
        gc.disable()
        try:
            with follow(quiet, module["f"], polls=True, returns=True):
                module["f"](thing)
                del thing
                assert alive() is None
        finally:
            gc.enable()


def test_a_followed_function_pickles_and_its_hooks_fall_silent_elsewhere() -> None:
    module = program("def f():\n    y = 1\n    return y")
    with follow(Seen(), module["f"], "y"):
        hooks = next(value for name, value in module.items() if name.startswith("__clew"))
        copied = pickle.loads(pickle.dumps(hooks))
    copied.bound(None, 1, None)
    assert copied.binding(None, 5, None) == 5


def test_recompiling_warns_of_nothing(recwarn: pytest.WarningsRecorder) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = program("def f(x):\n    y = x is 1, '\\d'\n    return y")
    with follow(Seen(), module["f"], "y") as installed:
        module["f"](1)
        assert installed.fallbacks == []
    assert not recwarn.list


def test_a_file_that_is_no_longer_what_was_compiled_is_not_used(tmp_path: Any) -> None:
    file = tmp_path / "changed.py"
    file.write_text("def f(x):\n    y = x + 1\n    return y\n")
    namespace: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), namespace)
    file.write_text("def f(x):\n    y = x + 2\n    return y\n")
    seen = Seen()
    with follow(seen, namespace["f"], "y") as installed:
        assert "is not what was compiled" in installed.fallbacks[0][1]
        assert namespace["f"](1) == 2
    assert seen.values("y") == [2]


# With other tools


class Recorder(bdb.Bdb):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[int] = []

    def user_line(self, frame: FrameType) -> None:
        if frame.f_code.co_name == "f":
            self.lines.append(frame.f_lineno)


LOOP = "def f():\n    y = 0\n    for i in range(3):\n        y += i\n    return y"


@pytest.mark.parametrize("with_source", [True, False])
def test_a_debugger_started_before_sees_everything_and_so_do_we(with_source: bool) -> None:
    module = program(LOOP, with_source)
    plain, debugger, seen = Recorder(), Recorder(), Seen()
    plain.runcall(module["f"])

    def inside() -> None:
        with follow(seen, module["f"], "y"):
            module["f"]()

    debugger.runcall(inside)
    assert debugger.lines == plain.lines
    assert seen.values("y") == [0, 0, 1, 3]


@pytest.mark.parametrize("with_source", [True, False])
def test_a_profiler_keeps_working(with_source: bool) -> None:
    module, seen, profile = program(LOOP, with_source), Seen(), cProfile.Profile()
    with follow(seen, module["f"], "y"):
        profile.runcall(module["f"])
    assert seen.values("y") == [0, 0, 1, 3]
    assert "f" in [getattr(entry.code, "co_name", "") for entry in profile.getstats()]


@pytest.fixture
def tracing() -> Iterator[Callable[..., Any]]:
    def trace(frame: FrameType, event: str, arg: object) -> Any:
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    yield trace
    sys.settrace(before)


def test_the_trace_function_of_somebody_else_is_put_back(tracing: Callable[..., Any]) -> None:
    module = program(LOOP, with_source=False)

    def fails() -> None:
        with follow(Seen(), module["f"], "y"):
            module["f"]()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert sys.gettrace() is tracing


def test_variables_survive_a_debugger_that_looks_at_the_frame() -> None:
    # Before 3.13, reading a frame's locals leaves a copy that may later be written back.
    module = program(
        "def f():\n    a = 0\n    for i in range(20):\n        y = i\n        a += i\n    return a",
        with_source=False,
    )

    class Looks(bdb.Bdb):
        def user_line(self, frame: FrameType) -> None:
            pass

    def inside() -> int:
        with follow(Seen(), module["f"], "y"):
            found: int = module["f"]()
            return found

    assert Looks().runcall(inside) == sum(range(20))

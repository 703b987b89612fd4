"""Frames that run already, functions without source, and everything called below a place."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from types import CodeType, FrameType
from typing import Any

import pytest

from clew.observe.variables.frames import Target, follow_calls, follow_frame, instrument
from tests.no_torch.frames.seen import Seen, follow, program, wanting
from tests.processes import HANG_GUARD

MONITORED = sys.version_info >= (3, 12)


def test_a_lambda_is_followed() -> None:
    seen = Seen()
    function = eval("lambda x: (y := x) + (y := 2)")
    with follow(seen, function, "y", returns=True) as installed:
        assert function(1) == 3
    assert "lambda" in installed.fallbacks[0][1]
    assert seen.values("y") == [1, 2]
    assert seen.kinds() == ["entered", "bound", "bound", "returned", "left"]


def test_a_running_frame_is_followed_from_where_it_is() -> None:
    seen = Seen()
    y = 0
    with follow_frame(sys._getframe(), wanting("y"), seen, polls=False):
        y = 1
        y = y
        y += 2
        for y in range(2):  # noqa: B007
            pass
    y = 9
    assert seen.values("y") == [1, 1, 3, 0, 1]
    assert set(seen.kinds()) == {"bound"}
    assert y == 9


def test_only_that_frame_is_followed() -> None:
    module = program(
        """
        def f(n, follow):
            y = n
            if n == 1:
                handle = follow()
            if n:
                f(n - 1, follow)
            y = -n
            if n == 1:
                handle.stop()
            y = 100
        """
    )
    seen = Seen()

    def begin() -> Any:
        return follow_frame(sys._getframe(1), wanting("y"), seen, polls=False)

    module["f"](2, begin)
    assert seen.values("y") == [-1]
    assert sys.gettrace() is None or not MONITORED


def test_changes_in_place_are_polled_in_a_running_frame() -> None:
    seen = Seen()
    y: list[int] = []
    with follow_frame(sys._getframe(), wanting("y"), seen):
        y.append(1)
        y = [2]
    polled = [line for what, name, line, _ in seen.log if (what, name) == ("polled", "y")]
    here = test_changes_in_place_are_polled_in_a_running_frame.__code__.co_firstlineno
    assert here + 4 in polled


def test_a_module_level_frame_is_followed() -> None:
    seen = Seen()
    program("""
        import sys
        from clew.observe.variables.frames import follow_frame
        def begin(seen):
            return follow_frame(sys._getframe(1), lambda name: name == 'y', seen, polls=False)
    """)
    text = "handle = begin()\ny = 1\ny = 2\nhandle.stop()\ny = 3\n"

    def begin() -> Any:
        return follow_frame(sys._getframe(1), wanting("y"), seen, polls=False)

    exec(compile(text, "<script>", "exec"), {"begin": begin})
    assert seen.values("y") == [1, 2]


@pytest.mark.parametrize("with_source", [True, False])
def test_instrumenting_inside_the_very_function_follows_its_running_call(with_source: bool) -> None:
    module = program(
        """
        def f(begin):
            y = 1
            handle = begin()
            y = 2
            y = 3
            handle.uninstall()
            y = 4
            return y
        """,
        with_source,
    )
    seen = Seen()
    begin = lambda: instrument([Target(module["f"], wanting("y"))], seen)  # noqa: E731
    assert module["f"](begin) == 4
    assert seen.values("y") == [2, 3]
    before = module["f"].__code__
    module["f"](lambda: instrument([], seen))
    assert module["f"].__code__ is before
    assert sys.gettrace() is None or "clew" not in repr(sys.gettrace())


def test_an_exception_in_a_followed_frame_comes_out_and_ends_it() -> None:
    module = program(
        """
        def f(x):
            y = x
            raise KeyError(y)
        def g():
            try: f(1)
            except KeyError: pass
        """,
        with_source=False,
    )
    seen = Seen()
    with follow(seen, module["f"], "y", returns=True):
        module["g"]()
        with pytest.raises(KeyError):
            module["f"](2)
    assert seen.kinds() == ["entered", "bound", "raised", "left"] * 2
    assert [repr(value) for *_, value in seen.log if value] == [
        "1", "KeyError(1)", "2", "KeyError(2)",
    ]  # fmt: skip


def test_a_generator_without_source_is_told_as_one_with_source() -> None:
    text = """
        def inner():
            yield 'i'
        def f(n):
            for y in range(n):
                got = yield y
            yield from inner()
            return 5
        def run():
            return list(f(2))
        def closed():
            g = f(2)
            next(g)
            g.close()
        """
    logs = []
    for with_source in (True, False):
        module, seen = program(text, with_source), Seen()
        with follow(seen, module["f"], "y", "got", returns=True):
            assert module["run"]() == [0, 1, "i"]
            run = list(seen.log)
            module["closed"]()
        logs.append((run, seen.kinds()[len(run) :]))
    (plain, closed), (found, closed_too) = logs
    assert found == plain
    assert closed == ["entered", "bound", "yielded", "raised", "left"]
    # 3.10 tells of a generator being closed that it is resumed, 3.13 does not tell of it at all.
    assert [what for what in closed_too if what != "resumed"] == closed[: len(closed_too)]


# Everything below a place

PROGRAM = """
import threading

def root(q):
    e = middle(q)
    return e

def middle(a):
    b = a + 1
    c = helper(b)
    return c

def helper(x):
    d = [x]
    d.append(3)
    return d

def outside():
    e = helper(0)

def fails(q):
    e = q
    middle_fails(q)

def middle_fails(q):
    z = q
    1 / z

def parallel(q):
    thread = threading.Thread(target=helper, args=(q,))
    thread.start()
    thread.join()

def hot(n):
    s = 0
    for i in range(n):
        s += one(i)
    return s

def one(i):
    k = i
    return k

def gen(n):
    for i in range(n):
        yield helper(i)

def uses(n):
    total = [g for g in gen(n)]
    return total
"""


def in_cell(code: CodeType) -> bool:
    return code.co_filename.startswith("<cell")


def tree(seen: Seen) -> list[str]:
    """Who was called by whom, as indented names."""
    found, depth = [], 0
    for (what, *_), site in zip(seen.log, seen.sites, strict=True):
        if what == "entered":
            found.append("  " * depth + site.code.co_name)
        depth += {"entered": 1, "left": -1}.get(what, 0)
    assert depth == 0
    return found


@pytest.mark.parametrize("with_source", [True, False])
def test_all_functions_in_scope_below_the_root_are_seen(with_source: bool) -> None:
    module, seen = program(PROGRAM, with_source), Seen()
    with follow_calls(module["root"], in_cell, wanting(), seen):
        module["outside"]()
        assert module["root"](1) == [2, 3]
        module["outside"]()
    assert tree(seen) == ["root", "  middle", "    helper"]
    assert [seen.values(n) for n in "ebcd"] == [[[2, 3]], [2], [[2, 3]], [[2, 3]]]
    assert seen.values("x", "param") == [2]
    returned = [value for what, *_, value in seen.log if what == "returned"]
    assert returned == [[2, 3]] * 3
    count = len(seen.log)
    module["root"](1)
    assert len(seen.log) == count


def test_functions_out_of_scope_are_not_told() -> None:
    module, seen = program(PROGRAM), Seen()
    scope = lambda code: code.co_name != "middle"  # noqa: E731
    with follow_calls(module["root"], lambda c: in_cell(c) and scope(c), wanting(), seen):
        module["root"](1)
    assert tree(seen) == ["root", "  helper"]


def test_an_exception_leaves_all_calls_it_passes() -> None:
    module, seen = program(PROGRAM), Seen()
    with follow_calls(module["fails"], in_cell, wanting(), seen):
        with pytest.raises(ZeroDivisionError):
            module["fails"](0)
        module["outside"]()
    assert tree(seen) == ["fails", "  middle_fails"]
    assert [site.code.co_name for site in seen.sites if site.kind == "raise"] == [
        "middle_fails",
        "fails",
    ]


def test_threads_started_below_are_followed_and_older_ones_are_not() -> None:
    module, seen = program(PROGRAM), Seen()
    go, done = threading.Event(), threading.Event()

    def work() -> None:
        go.wait(HANG_GUARD)
        module["helper"]("older")
        done.set()

    older = threading.Thread(target=work)
    older.start()

    def root(q: int) -> None:
        go.set()
        done.wait(HANG_GUARD)
        module["parallel"](q)

    with follow_calls(root, in_cell, wanting(), seen):
        root(7)
    older.join()
    assert seen.values("x", "param") == [7]


def test_from_a_frame_everything_called_meanwhile_is_seen() -> None:
    module, seen = program(PROGRAM), Seen()
    with follow_calls(sys._getframe(), in_cell, wanting("result", "d"), seen):
        result = module["root"](4)
    module["root"](5)
    assert result == [5, 3]
    assert tree(seen) == ["root", "  middle", "    helper"]
    assert seen.values("result") == [[5, 3]]
    assert seen.values("d") == [[5, 3]]


def test_what_runs_very_often_stops_being_told_and_is_listed() -> None:
    module, seen = program(PROGRAM), Seen()
    with follow_calls(module["hot"], in_cell, wanting(), seen, budget=20) as following:
        assert module["hot"](500) == sum(range(500))
        spent = {(code.co_name, line) for code, line in following.spent}
    assert len(seen.values("s")) <= 21
    assert len(seen.values("k")) <= 20
    hot = module["hot"].__code__.co_firstlineno
    assert ("hot", hot + 3) in spent
    assert ("one", module["one"].__code__.co_firstlineno) in spent
    assert seen.kinds()[-2:] == ["returned", "left"]


def test_names_are_polled_wherever_they_may_have_a_value() -> None:
    module = program(
        """
        def late(given):
            first = 1
            held = [first]
            held.append(2)
            def inner():
                nonlocal cell
                cell = [1]
            inner()
            cell.append(3)
            cell = 4
            given.append(6)

        def often():
            for n in range(9):
                held = [n]
            held.append(n)
            return held

        def again(depth):
            if depth:
                again(depth - 1)
            held = [depth]
            held.append(depth)
            return held
        """
    )

    def polls(function: str, *args: Any, budget: int = 1000) -> list[tuple[str, int, Any]]:
        seen, names = Seen(), wanting("held", "cell", "given")
        with follow_calls(module[function], in_cell, names, seen, budget=budget):
            module[function](*args)
        first = module[function].__code__.co_firstlineno
        return [(name, at - first, value) for what, name, at, value in seen.log if what == "polled"]

    late = polls("late", [])
    assert ("held", 3, [1, 2]) in late
    assert ("cell", 7, [1, 3]) in late
    assert ("given", 10, [6]) in late
    # Where a binding runs too often to be told, what follows it is polled as before.
    assert ("held", 3, [8, 8]) in polls("often", budget=4)
    assert [6, 6] in [value for _, _, value in polls("again", 6, budget=2)]


def test_generators_below_are_followed_across_their_yields() -> None:
    module, seen = program(PROGRAM), Seen()
    with follow_calls(module["uses"], in_cell, wanting("d"), seen):
        module["uses"](2)
    assert len(seen.values("d")) == 2
    assert seen.kinds().count("yielded") == 2


def test_following_calls_leaves_another_trace_function_in_place() -> None:
    module, seen = program(PROGRAM), Seen()
    lines: list[str] = []

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        if in_cell(frame.f_code):
            lines.append(f"{frame.f_code.co_name} {event} {frame.f_lineno}")
        return trace

    before = sys.gettrace()

    def traced() -> list[str]:
        lines.clear()
        sys.settrace(trace)
        try:
            module["root"](1)
        finally:
            assert sys.gettrace() is trace or not MONITORED
            sys.settrace(before)
        return list(lines)

    plain = traced()
    sys.settrace(trace)
    try:
        lines.clear()
        with follow_calls(module["root"], in_cell, wanting(), seen):
            module["root"](1)
        found = list(lines)
        assert sys.gettrace() is trace
    finally:
        sys.settrace(before)
    assert found == plain
    assert seen.values("e") == [[2, 3]]


@pytest.mark.skipif(not MONITORED, reason="sys.monitoring came with 3.12")
def test_the_place_of_the_monitoring_tool_is_given_back() -> None:
    monitoring: Any = getattr(sys, "monitoring")  # noqa: B009 - absent before 3.12
    before = [monitoring.get_tool(n) for n in range(6)]
    module = program(PROGRAM, with_source=False)
    with follow(Seen(), module["root"], "e"):
        assert "clew" in [monitoring.get_tool(n) for n in range(6)]
        module["root"](1)
    assert [monitoring.get_tool(n) for n in range(6)] == before


@pytest.mark.skipif(not MONITORED, reason="sys.monitoring came with 3.12")
def test_where_no_tool_is_free_the_reason_is_given() -> None:
    monitoring: Any = getattr(sys, "monitoring")  # noqa: B009 - absent before 3.12
    taken = [n for n in range(6) if monitoring.get_tool(n) is None]
    for n in taken:
        monitoring.use_tool_id(n, "somebody")
    try:
        function = eval("lambda x: (y := x)")
        with follow(Seen(), function, "y") as installed:
            assert function(1) == 1
        assert "all tool ids" in installed.unseen[0][1]
    finally:
        for n in taken:
            monitoring.free_tool_id(n)


class Thing:
    """Something whose end can be seen."""


def test_a_frame_keeps_nothing_alive_once_it_is_followed_no_more() -> None:
    def work() -> None:
        thing = Thing()
        alive = weakref.ref(thing)
        with follow_frame(sys._getframe(), lambda name: name == "y", Seen()):
            y = 1
            y = y + 1
        del thing
        assert alive() is None
        assert y == 2

    gc.disable()
    try:
        work()
    finally:
        gc.enable()


def test_variables_that_the_program_looks_at_by_locals_stay_in_its_hands() -> None:
    def work(a: int) -> dict[str, object]:
        held = locals()
        with follow_frame(sys._getframe(), lambda name: name == "y", Seen()):
            y = 1
            y = y + a
        return held

    assert work(3)["a"] == 3

"""`clew.watch` where there is NumPy and no torch, on every Python that is supported."""

from __future__ import annotations

import asyncio
import importlib
import io
import logging
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew.events.tensor_text import tensor_text as facts
from tests.processes import HANG_GUARD

HIDE_TORCH = "import sys; sys.modules['torch'] = None\n"


def run(program: str) -> str:
    """Run a program in a fresh interpreter and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=HANG_GUARD,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def looks(trace: Any, name: str) -> list[str]:
    return [facts(e.outputs[""]) for e in trace.variables if e.name == name]


def test_neither_torch_nor_what_records_whole_traces_is_imported() -> None:
    program = (
        "import sys, numpy as np, clew\n"
        "@clew.watch('x')\n"
        "def f():\n    x = np.ones(2)\n    x = x * 2\n    return x\n"
        "f()\n"
        "with clew.watch():\n    y = np.ones(3)\n"
        "assert len(f.watch.trace.variables) == 3\n"
    )
    found = "print({'torch', 'clew.session.tracer', 'clew.session.session'} & set(sys.modules))\n"
    assert run(program + found).endswith("set()\n")
    assert "np.f64[2]" in run(HIDE_TORCH + program)


def test_a_saved_trace_of_a_watch_opens(tmp_path: Any) -> None:
    @clew.watch("x", out=False, values="full")
    def work() -> None:
        x = np.arange(3)
        x[0] = 5

    work()
    folder = work.watch.trace.save(tmp_path / "w.clew")  # type: ignore[attr-defined]
    found = [e.outputs[""].array().tolist() for e in clew.load(folder).variables if e.name == "x"]
    assert found == [[0, 1, 2], [5, 1, 2]]


def test_a_block_is_followed_from_where_it_is() -> None:
    before = np.zeros(2)
    stream = io.StringIO()
    with clew.watch(out=stream) as w:
        before += 1
        after = before * 2
    later = after + 1
    assert looks(w.trace, "before") == ["np.f64[2]", "np.f64[2]"]
    assert looks(w.trace, "after") == ["np.f64[2]"]
    assert looks(w.trace, "later") == []
    assert len(later) == 2
    assert "✎ [0 0] → [1 1]" in stream.getvalue()


def test_methods_have_their_class_in_their_address() -> None:
    class Loader:
        def load(self) -> Any:
            video = np.ones(2)
            return video

    @clew.watch("test_watch.py:*.Loader.load.video", "test_watch.py:Loader.load.video", out=False)
    def work() -> None:
        Loader().load()

    work()
    [event] = [e for e in work.watch.trace.variables if e.name == "video"]  # type: ignore[attr-defined]
    assert event.address.endswith("Loader.load.video#0")


def test_generators_tasks_and_threads() -> None:
    @clew.watch("x", out=False)
    def produce() -> Any:
        for n in range(2):
            x = np.full(2, n)
            yield x

    @clew.watch("x", out=False)
    async def task() -> Any:
        x = np.ones(1)
        await asyncio.sleep(0)
        x = x + 1
        return x

    def work() -> None:
        x = np.ones(4)
        del x

    @clew.watch("x", out=False)
    def threaded() -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    assert len(list(produce())) == 2
    assert asyncio.run(task())[0] == 2
    threaded()
    assert looks(produce.watch.trace, "x") == ["np.i64[2]"] * 2  # type: ignore[attr-defined]
    assert looks(task.watch.trace, "x") == ["np.f64[1]"] * 2  # type: ignore[attr-defined]
    assert looks(threaded.watch.trace, "x") == ["np.f64[4]"]  # type: ignore[attr-defined]


def test_what_is_installed_is_taken_away_after_an_exception() -> None:
    before = sys.gettrace()

    @clew.watch("x", out=False)
    def fail() -> None:
        x = np.ones(2)
        raise ValueError(len(x))

    with pytest.raises(ValueError, match="2"):
        fail()
    assert sys.gettrace() is before
    if sys.version_info >= (3, 12):
        assert all(sys.monitoring.get_tool(tool) != "clew" for tool in range(6))


def test_another_trace_function_goes_on() -> None:
    seen = []

    def tracer(frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code.co_name == "work":
            seen.append(event)
        return tracer

    def work() -> Any:
        x = np.ones(2)
        return x

    watched = clew.watch("x", out=False)(work)
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        watched()
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)
    assert seen.count("line") == 2
    assert looks(watched.watch.trace, "x") == ["np.f64[2]"]  # type: ignore[attr-defined]


def test_what_clew_itself_calls_is_not_followed() -> None:
    stream = io.StringIO()
    values = np.ones(3)
    with clew.watch(out=stream):
        values = values + 1
    assert "▶" not in stream.getvalue()


def test_a_handler_of_the_program_is_not_followed() -> None:
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            values = np.ones(2)
            lines.append(f"{len(values)} {record.getMessage()}")

    logger = logging.getLogger("watched.handler")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(Handler())

    @clew.watch(out=logger)
    def work() -> Any:
        x = np.ones(2)
        return x

    work()
    assert len(lines) == 3


def test_a_new_array_in_the_place_of_an_old_one_is_not_called_written() -> None:
    stream = io.StringIO()

    @clew.watch("x", out=stream, repeats=20)
    def work() -> Any:
        x = np.zeros(20)
        for n in range(5):
            x = x + n
        return x

    work()
    assert "✎" not in stream.getvalue()


def test_depth_says_how_far_to_go() -> None:
    def second() -> Any:
        x = np.ones(3)
        return x

    def first() -> Any:
        x = np.ones(2)
        return x, second()

    @clew.watch("x", out=False, depth=1)
    def work() -> Any:
        x = np.ones(1)
        return x, first()

    work()
    assert looks(work.watch.trace, "x") == ["np.f64[1]", "np.f64[2]"]  # type: ignore[attr-defined]


def test_a_trace_of_a_watch_prints_its_variables() -> None:
    @clew.watch("x", out=False)
    def work() -> None:
        x: Any = np.ones(3)
        x = x.astype(int)
        del x

    work()
    trace = work.watch.trace  # type: ignore[attr-defined]
    assert re.search(r"work.x ×2 +np.f64\[3\] → np.i64\[3\]", str(trace))
    assert repr(trace) == "<Trace 2 values of variables>"


def test_a_saved_trace_of_a_watch_is_the_same(tmp_path: Path) -> None:
    with clew.watch("x", out=False) as w:
        x = np.ones(3)
    assert x.sum() == 3
    loaded = clew.load(w.trace.save(tmp_path / "run.clew"))
    assert (str(loaded), repr(loaded)) == (str(w.trace), repr(w.trace))
    assert repr(loaded) == "<Trace 1 value of variables>"


def test_a_small_array_is_marked_as_a_large_one_is(capsys: pytest.CaptureFixture[str]) -> None:
    for size in (2, 2000):
        with clew.watch("x"):
            x = np.ones(size)
            x[0] = np.nan
        lines = [line for line in capsys.readouterr().out.splitlines() if "✎" in line]
        assert [f"NaN! 1/{size:,}" in line for line in lines] == [True]
    assert len(x) == size


def test_a_watch_that_met_nothing_says_so() -> None:
    with clew.watch("none", out=False) as w:
        pass
    first, why = str(w.trace).splitlines()
    assert first == "nothing was recorded: no variable that is watched was met"
    assert why.startswith("a variable to watch at none: nothing that ran has it")


def test_every_call_of_a_watched_function_begins_anew() -> None:
    stream = io.StringIO()

    def helper(value: Any) -> Any:
        return value * 2

    def other(y: Any) -> Any:
        return y

    @clew.watch("x", "nowhere", out=stream, budget=3)
    def work(hand_down: bool) -> None:
        for n in range(5):
            x = np.full(2, n)
        if hand_down:
            helper(x)
        other("y")

    told = []
    for hand_down in (True, False, True):
        work(hand_down)
        told.append(stream.getvalue())
        stream.seek(0)
        stream.truncate()
    trace = work.watch.trace  # type: ignore[attr-defined]
    # The budget is one of each call: three bindings, and the last one as a later line finds it.
    # The name that is missing is said once.
    assert len(looks(trace, "x")) == 3 * 4
    assert ["nowhere" in text for text in told] == [True, False, False]
    # What a function is given decides in each call whether it is followed.
    called = [[line for line in text.splitlines() if "▶" in line] for text in told]
    assert [len(lines) for lines in called] == [2, 1, 2]
    assert "helper" in called[0][1]
    assert "helper" in called[2][1]


def test_one_watch_inside_another_on_the_same_function() -> None:
    def work(n: int) -> Any:
        x = np.arange(n)
        x = x + 1
        return x

    outer = clew.watch("x", out=False)(work)
    inner = clew.watch("n", out=False)(outer)
    for _ in range(2):
        inner(3)
    names = [[e.name for e in f.watch.trace.variables] for f in (outer, inner)]  # type: ignore[attr-defined]
    assert names == [["x", "x", "return"] * 2, ["n", "return"] * 2]


@pytest.mark.parametrize("is_installed", [True, False])
def test_a_package_that_was_installed_elsewhere_is_not_the_program_s_own(
    is_installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by `pip install --target`: an installer writes down what it has put where."""
    package, record = tmp_path / "clew_extra", tmp_path / "clew_extra-1.dist-info" / "RECORD"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "work.py").write_text("def double(x):\n    y = x * 2\n    return y\n")
    record.parent.mkdir()
    record.write_text("clew_extra/work.py,sha256=0,0\n" if is_installed else "other.py,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    work = importlib.import_module("clew_extra.work")
    del sys.modules["clew_extra.work"], sys.modules["clew_extra"]
    with clew.watch(out=False) as block:
        work.double(np.ones(2))
    inside = [e.name for e in block.trace.variables if e.address.startswith("work.py:")]
    assert bool(inside) != is_installed
    double = clew.watch(out=False)(work.double)
    double(np.ones(2))
    assert "y" in [event.name for event in double.watch.trace.variables]


def test_what_the_program_drops_is_gone_at_once() -> None:
    """Also on the same line, and after a line that is followed no more."""
    gone: list[int] = []

    class Held:
        def __del__(self) -> None:
            gone.append(1)

    def follow() -> None:
        held = Held()
        y = np.ones(2); y = y * 2; del held; seen.append(len(gone))  # fmt: skip # noqa: E702

    def follow_in_a_loop() -> None:
        held = Held()
        for step in range(5):
            y = np.full(2, step)
        del held
        seen.append(len(gone))
        y += 1

    seen: list[int] = []
    clew.watch("y", out=False)(follow)()
    clew.watch("y", out=False, budget=3)(follow_in_a_loop)()
    with clew.watch("y", out=False):
        held = Held()
        y = np.ones(2); y = y * 2; del held; seen.append(len(gone))  # fmt: skip # noqa: E702
    assert seen == [1, 2, 3]


def test_a_watch_that_is_open_when_python_ends_says_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import clew\nclew.watch('y', out=False).__enter__()\n"],
        capture_output=True,
        text=True,
        timeout=HANG_GUARD,
    )
    assert (done.returncode, done.stderr) == (0, "")

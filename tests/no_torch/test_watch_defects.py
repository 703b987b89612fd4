"""What went wrong in Tensor Tracker, point by point, and must not go wrong here.

The numbers are those of the points in the study of that tool. NumPy is enough for all of them;
`tests/integration/test_watch.py` repeats what concerns tensors.
"""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from tests.processes import HANG_GUARD


def told(function: Any, *names: str, **options: Any) -> tuple[list[str], Any]:
    """What watching one call prints, and the watch."""
    stream = io.StringIO()
    watch = clew.watch(*names, out=stream, **options)
    watch(function)()
    return [line.rstrip() for line in stream.getvalue().splitlines()], watch


def of(watch: Any, name: str) -> list[Any]:
    return [event for event in watch.trace.variables if event.name == name]


@pytest.mark.parametrize(
    "value",
    [np.arange(3), np.array([True, False]), np.array([]), np.array([1 + 2j]), np.zeros((0, 4)),
     np.array(["a"]), np.array([None, 1], dtype=object), np.uint8(3), 7, True],
    ids=str,
)  # fmt: skip
def test_defect_1_whole_numbers_truths_empty_and_complex_arrays_do_not_crash(value: Any) -> None:
    def run() -> Any:
        x = value
        return x

    lines, watch = told(run, "x")
    assert len(of(watch, "x")) == 1
    assert any(line.startswith("│  x ") for line in lines)


def test_defect_2_arrays_lists_that_change_shape_and_mixed_sets_are_followed() -> None:
    def run() -> None:
        x: Any = np.ones(3)
        x = x * 2
        x = [np.ones(2), np.ones(3)]
        x[0] = np.ones((4, 4))
        x = {1, "a", (2, 3), None}
        x = {1, "b"}

    _, watch = told(run, "x")
    assert len(of(watch, "x")) == 6


def test_defect_3_a_watch_ends_with_its_call_and_leaves_outer_ones_alone() -> None:
    before = sys.gettrace()

    @clew.watch("v", out=False)
    def inner(v: int) -> int:
        v = v * 3
        return v

    @clew.watch("v", out=False)
    def outer() -> int:
        v = 1
        v = inner(v)
        v = v * 5
        v = v * 6
        return v

    assert outer() == 90
    seen = of(outer.watch, "v")  # type: ignore[attr-defined]
    own = [e.outputs[""].item() for e in seen if "outer.v" in e.address]
    assert own == [1, 3, 15, 90]

    @clew.watch("v", out=False)
    def fails() -> None:
        v = 1
        raise KeyError(v)

    with pytest.raises(KeyError):
        fails()
    assert sys.gettrace() is before


def test_defect_4_nan_is_equal_to_itself_and_no_change_is_too_small() -> None:
    def run() -> Any:
        nan = np.full(30, np.nan)
        small = np.full(30, 1e-7)
        done = 1
        done = 2
        small = small + 8.9e-6
        turned = np.ones((5, 6))
        turned = turned.T
        done = len(nan) + len(turned) + len(small) + done
        last = np.full(2, done)
        return None if last is nan else turned

    _, watch = told(run)
    assert len(of(watch, "nan")) == 1
    assert len(of(watch, "small")) == 2
    assert len(of(watch, "turned")) == 2
    assert len(of(watch, "last")) == 1
    lines = {e.source.text.strip() for e in of(watch, "small")}
    assert lines == {"small = np.full(30, 1e-7)", "small = small + 8.9e-6"}


class Outer:
    class Inner:
        def method(self) -> Any:
            x = np.ones(2)
            return x


def test_defect_5_the_header_names_the_users_function_and_its_class() -> None:
    stream = io.StringIO()
    inner = Outer.Inner()
    clew.watch("x", out=stream)(Outer.Inner.method)(inner)
    first = stream.getvalue().splitlines()[0]
    assert first.startswith("▶ Inner.method  test_watch_defects.py:")
    assert " ← test_watch_defects.py:" in first
    assert "watching.py" not in first


def test_defect_6_every_kind_of_argument_and_result_is_told() -> None:
    stream = io.StringIO()

    @clew.watch(out=stream)
    def run(a: int, *args: Any, flag: bool = True, **more: Any) -> Any:
        return {"n": a, "none": None, "pair": (1, np.ones(2))}

    run(1, 2, np.ones(3), name="x")
    text = stream.getvalue()
    assert "│  a      1" in text
    assert "│  args   (2, np.f64[3]  [1 1 1])" in text
    assert "│  flag   True" in text
    assert "│  more   {name: 'x'}" in text
    assert "◀ {n: 1, none: None, pair.0: 1, pair.1: np.f64[2]  [1 1]}" in text
    for result in (3, None, "text"):
        lines, _ = told(lambda result=result: result)
        assert lines[-1].startswith(f"◀ {result!r}")


def test_defect_7_a_logger_says_each_line_once(caplog: pytest.LogCaptureFixture) -> None:
    def run() -> Any:
        x = np.ones(2)
        return x

    logger = logging.getLogger("watched.program")
    with caplog.at_level(logging.INFO, "watched.program"):
        clew.watch("x", out=logger)(run)()
        clew.watch("x", out=logger)(run)()
    assert len([r for r in caplog.records if "x      = np.f64[2]" in r.getMessage()]) == 2


def test_defect_8_lines_of_the_function_itself_and_of_callees_at_their_depth() -> None:
    def below() -> int:
        n = 1
        return n

    def run() -> int:
        m = below()
        return m

    lines, _ = told(run, "nothing_here", lines=True)
    shown = [line for line in lines if not line.startswith("clew:")]
    assert shown[1].startswith("│")
    assert shown[1].endswith("m = below()")
    assert shown[2].startswith("├─▶ ")
    assert "below" in shown[2]
    assert shown[3].startswith("│  │")
    assert shown[3].endswith("n = 1")
    assert shown[5].startswith("│  ◀ 1")
    assert shown[-1].startswith("◀ 1")


def test_defect_9_generators_are_followed_and_builtins_refused() -> None:
    def produce() -> Any:
        for n in range(2):
            x = np.full(1, n)
            yield x

    watch = clew.watch("x", out=False)
    assert len(list(watch(produce)())) == 2
    assert len(of(watch, "x")) == 2
    with pytest.raises(clew.ClewError, match="sum is built in"):
        clew.watch()(sum)


def test_defect_10_an_import_writes_nothing_and_text_can_be_switched_off(tmp_path: Path) -> None:
    program = (
        "import numpy as np, clew\n"
        "@clew.watch('x', out=False)\n"
        "def f():\n    x = np.ones(2)\n    return x\n"
        "f()\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, timeout=HANG_GUARD,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_defect_11_nothing_is_cloned_unless_data_is_asked_for() -> None:
    import tracemalloc

    def run() -> None:
        x = np.zeros(4_000_000)
        for n in range(4):
            x[n] = 1

    clew.watch("x", values="meta", out=False)(run)()
    tracemalloc.start()
    watch = clew.watch("x", values="meta", out=False)
    watch(run)()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(of(watch, "x")) == 5
    assert peak < 2 * 32_000_000

"""The native library that passes over functions nobody follows: what it leaves as it was.

It is for Python 3.10 and 3.11, where `clew.watch` uses a trace function. Each program runs in a
Python of its own, with a library that is built here, and without torch.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest

from tests.processes import HANG_GUARD

_COMPILERS = shlex.split(os.environ.get("CXX", ""))[:1] or ["c++", "g++", "clang++"]
pytestmark = [
    pytest.mark.skipif(sys.version_info >= (3, 12), reason="uses sys.monitoring"),
    pytest.mark.skipif(sys.platform != "linux", reason="the library is for Linux"),
    pytest.mark.skipif(
        not any(map(shutil.which, _COMPILERS))
        or not Path(sysconfig.get_path("include"), "Python.h").exists(),
        reason="there is no C++ compiler here, or no headers of Python",
    ),
]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the library, built by a Python that has no torch."""
    folder = tmp_path_factory.mktemp("native")
    program = "import sys; sys.modules['torch'] = None; from clew.cli.main import main"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; sys.exit(main(['build', '--to', {str(folder)!r}]))"],
        capture_output=True, text=True, timeout=HANG_GUARD,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"set CLEW_NATIVE={folder}" in done.stdout
    assert "_clew_tracing." in done.stdout
    return folder


_BEFORE = """
import sys
import clew
from clew.observe.variables.frames import tracing

def is_native():
    return getattr(tracing._tracer.passed_over, "__name__", "") == "_clew_tracing"

def values(trace, name):
    return [e.outputs[""].array().item() for e in trace.variables if e.name == name]

"""


def printed(libraries: Path, program: str, **environment: str) -> list[str]:
    """Run a program that must not fail, from a file of its own; the lines that it prints."""
    file = libraries / "program.py"
    file.write_text(_BEFORE + textwrap.dedent(program))
    env = {name: value for name, value in os.environ.items() if name != "CLEW_ENGINE"}
    env |= {"CLEW_NATIVE": str(libraries), **environment}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(file)],
        capture_output=True, text=True, timeout=HANG_GUARD, env=env,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("engine", ["auto", "python"])
def test_it_is_used_where_it_is_built(libraries: Path, engine: str) -> None:
    program = """
        with clew.watch("y", out=False):
            print(is_native(), "torch" in sys.modules)
        """
    expected = f"{engine == 'auto'} False"
    assert printed(libraries, program, CLEW_ENGINE=engine) == [expected]


def test_without_it_the_trace_function_is_of_python(tmp_path: Path) -> None:
    program = """
        with clew.watch("y", out=False) as w:
            print(is_native())
            y = 1
            y = 2
        print(values(w.trace, "y"))
        """
    assert printed(tmp_path, program) == ["False", "[1, 2]"]


def test_code_is_passed_over_after_its_first_call(libraries: Path) -> None:
    program = """
        from collections import Counter
        calls = Counter()
        chosen = tracing._Tracer._choose

        def choose(self, frame, event, arg, before):
            calls[frame.f_code.co_name] += 1
            return chosen(self, frame, event, arg, before)

        tracing._Tracer._choose = choose

        def other():
            return 1

        def has_y():
            y = other()
            return y

        with clew.watch("y", out=False):
            for _ in range(50):
                has_y()
                other()
        print(calls["has_y"], calls["other"] <= 3)
        """
    assert printed(libraries, program) == ["50 True"]


def test_calls_out_of_code_that_is_passed_over_are_followed(libraries: Path) -> None:
    program = """
        import contextlib

        def has_y(value):
            y = value
            return y

        class Item:
            def __getitem__(self, index):
                y = index
                return y

            @property
            def size(self):
                y = 10
                return y

            def __eq__(self, other):
                y = 20
                return True

        def numbers():
            for index in (30, 31):
                y = index
                yield y

        @contextlib.contextmanager
        def block():
            y = 40
            try:
                yield
            finally:
                y = 41

        def fails():
            y = 50
            raise ValueError

        item = Item()

        def other():
            has_y(0)
            item[1], item.size, item == 1
            sorted([2], key=has_y)
            list(numbers())
            with block():
                pass
            with contextlib.suppress(ValueError):
                fails()
            return [has_y(3) for _ in range(1)]

        def outer():
            return other()

        for _ in range(100):  # so that Python has learned how to make these calls
            outer()
        with clew.watch("y", out=False) as w:
            for _ in range(3):
                outer()
        found = values(w.trace, "y")
        print(found[:len(found) // 3])
        print(found == found[:len(found) // 3] * 3)
        """
    once = [0, 1, 10, 20, 2, 30, 31, 40, 41, 50, 3]
    assert printed(libraries, program) == [str(once), "True"]


def test_a_function_is_followed_after_it_was_passed_over(libraries: Path) -> None:
    program = """
        import numpy as np

        def scaled(frames):
            frames = frames * 2
            return frames

        with clew.watch("video", out=False) as w:
            for _ in range(20):
                scaled(np.ones(2))
            video = np.ones(3)
            scaled(video)  # is given what a watched variable holds
        print([event.address for event in w.trace.variables])
        """
    (line,) = printed(libraries, program)
    names = ("video#0", "scaled.frames#0", "scaled.frames#1", "scaled.return#0")
    assert line == str([f"program.py:{name}" for name in names])


def test_the_stack_is_enough_for_deep_recursion(libraries: Path) -> None:
    """Python 3.11 recurses without the C stack, which calls through the library use."""
    deep = 25_000 if sys.version_info >= (3, 11) else 3_000
    program = f"""
        sys.setrecursionlimit(1_000_000)

        def down(n):
            if n:
                return down(n - 1)
            return has_y(7)

        def has_y(value):
            y = value
            return y

        with clew.watch("y", out=False, budget=10) as w:
            has_y(1)
            down(10)
            native = is_native()
            down({deep})
            has_y(2)
        down({deep})
        print(native, values(w.trace, "y"))
        with clew.watch("y", out=False) as w:
            down(10)
        print(values(w.trace, "y"))
        """
    assert printed(libraries, program) == ["True [1, 7, 7, 2]", "[7]"]


def test_a_trace_function_of_the_program_receives_everything(libraries: Path) -> None:
    program = """
        def small():
            return 1

        def other():
            small()
            return small()

        def begins():
            before = sys.gettrace()
            sys.settrace(theirs)
            other()
            sys.settrace(before)

        def has_y(value):
            y = value
            return y

        events = []

        def theirs(frame, event, arg):
            events.append((frame.f_code.co_name, event))
            return theirs

        def alone():
            begins()
            small()

        alone()
        expected = list(events)
        with clew.watch("y", out=False) as w:
            print(is_native())
            for _ in range(5):
                other()
            has_y(1)
            events.clear()
            alone()
            print(events == expected, len(events) > 8)
            has_y(2)
        print(values(w.trace, "y"), sys.gettrace())
        """
    assert printed(libraries, program) == ["True", "True True", "[1, 2] None"]


def test_a_profiler_of_the_program_receives_everything(libraries: Path) -> None:
    program = """
        def small():
            return 1

        def other():
            small()
            return has_y(3)

        def has_y(value):
            y = value
            return y

        def profiled():
            calls = []
            sys.setprofile(lambda frame, event, arg: calls.append((frame.f_code.co_name, event)))
            other()
            sys.setprofile(None)
            return [call for call in calls if call[0] in ("other", "small", "has_y")]

        expected = profiled()
        with clew.watch("y", out=False) as w:
            for _ in range(5):
                other()
            found = profiled()
            other()
        print(found == expected, len(found))
        print(values(w.trace, "y"))
        """
    assert printed(libraries, program) == ["True 6", str([3] * 7)]


def test_threads_are_followed(libraries: Path) -> None:
    program = """
        import threading

        def has_y(value):
            y = value
            return y

        def other(value):
            return has_y(value)

        def work(value):
            for _ in range(3):
                other(value)

        with clew.watch("y", out=False) as w:
            other(0)
            threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            other(4)
        print(sorted(values(w.trace, "y")))
        """
    assert printed(libraries, program) == ["[0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4]"]


def test_an_interrupt_reaches_the_program(libraries: Path) -> None:
    program = """
        import signal, time

        class Alarm(Exception):
            pass

        def handler(number, frame):
            raise Alarm

        def has_y(value):
            y = value
            return y

        def work():
            while True:
                has_y(1)

        signal.signal(signal.SIGALRM, handler)
        came = 0
        for _ in range(20):
            try:
                with clew.watch("y", out=False, budget=10**9):
                    signal.setitimer(signal.ITIMER_REAL, 0.02)
                    work()
            except Alarm:
                came += 1
        print(came, sys.gettrace())
        """
    assert printed(libraries, program) == ["20 None"]

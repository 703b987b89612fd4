"""Each way to bind a name is seen, by rewriting and without source, and changes no result."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import pytest

from clew.observe.variables.frames import Site, Target, instrument
from tests.no_torch.frames.seen import Seen, follow, program, wanting

# Name, text that defines `run`, and the values of `y` in the functions named in FOLLOWED (or
# `f`), in order.
CASES: list[tuple[str, str, list[Any]]] = [
    ("assign", "def f():\n    y = 1\n    return y\nrun = f", [1]),
    ("tuple", "def f():\n    (x, y), *z = (1, 2), 3\n    return z\nrun = f", [2]),
    ("star", "def f():\n    x, *y = 1, 2, 3\n    return x\nrun = f", [[2, 3]]),
    ("chained", "def f():\n    x = y = 4\n    return x\nrun = f", [4]),
    ("augmented", "def f():\n    y = 1\n    y += 2\n    return y\nrun = f", [1, 3]),
    ("annotated", "def f():\n    y: int\n    y: int = 5\n    return y\nrun = f", [5]),
    ("walrus", "def f():\n    if (y := 3) and (y := 4): pass\n    return y\nrun = f", [3, 4]),
    (
        "walrus in a comprehension",
        "def f(n=2):\n    x = [(y := i) for i in range(n)]\n    return x, y\nrun = f",
        [0, 1],
    ),
    (
        "walrus in a generator expression, in a method",
        """
        class A:
            def f(self):
                return any((y := i) > 0 for i in range(5)), y
        f = A.f
        run = A().f
        """,
        [0, 1],
    ),
    ("for", "def f():\n    for y in range(3): pass\n    return y\nrun = f", [0, 1, 2]),
    (
        "for with tuple and else",
        "def f():\n    for x, y in [(1, 2)]: pass\n    else: y = 9\n    return y\nrun = f",
        [2, 9],
    ),
    ("while", "def f():\n    y = 0\n    while y < 2: y += 1\n    return y\nrun = f", [0, 1, 2]),
    (
        "with",
        """
        import contextlib
        def f():
            with contextlib.nullcontext(1) as y: pass
            with contextlib.nullcontext(2) as x, contextlib.nullcontext((3, 4)) as (y, z): pass
            return y
        run = f
        """,
        [1, 3],
    ),
    (
        "with whose second item fails",
        """
        import contextlib
        def f():
            with contextlib.nullcontext(1) as y, undefined as z: pass
        def run():
            try: f()
            except NameError as error: return str(error)
        """,
        [1],
    ),
    (
        "except",
        """
        def f():
            try: {}['k']
            except KeyError as y: pass
            return 'y' in locals()
        run = f
        """,
        [KeyError("k")],
    ),
    ("import", "def f():\n    import math as y\n    import os.path\nrun = f", ["math"]),
    ("from import", "def f():\n    from math import pi as y, e\n    return y\nrun = f", [3.14]),
    (
        "match",
        """
        def f(s):
            match s:
                case [1, y] if y > 5: return 'big'
                case [1, *y]: return 'rest'
                case {'k': 1, **y}: return 'map'
                case str() as y: return 'str'
                case y: return 'any'
        def run(): return [f(s) for s in ([1, 9], [1, 2], {'k': 1, 'l': 2}, 'a', 0)]
        """,
        [9, 2, [2], {"l": 2}, "a", 0],
    ),
    ("branch", "def f(c=0):\n    if c: y = 1\n    else: y = 2\n    return y\nrun = f", [2]),
    ("same object again", "def f():\n    y = []\n    y = y\n    return y\nrun = f", [[], []]),
    ("one line", "def f():\n    y = 1; y = 2; y = 3\n    return y\nrun = f", [1, 2, 3]),
    (
        "many lines",
        "def f():\n    y = max(\n        1,\n        2,\n    )\n    return y\nrun = f",
        [2],
    ),
    (
        "comprehensions with a variable of that name",
        """
        def f():
            y = [y for y in range(3)]
            z = {y: 1 for y in range(2)}, {y for y in 'a'}, list(y for y in 'b')
            return y, z
        run = f
        """,
        [[0, 1, 2]],
    ),
    (
        "def and class",
        "def f():\n    def y(): pass\n    class y: pass\n    return 1\nrun = f",
        [...] * 2,
    ),
    (
        "generator",
        """
        def f(n):
            for i in range(n):
                y = yield i
            return y
        def run():
            g = f(2); first = next(g); second = g.send(5)
            try: g.send(6)
            except StopIteration as stop: return first, second, stop.value
        """,
        [5, 6],
    ),
    (
        "async, two tasks in turn",
        """
        import asyncio
        async def f(k):
            y = k
            await asyncio.sleep(0)
            y = k + 1
            return y
        async def both(): return await asyncio.gather(f(10), f(20))
        def run(): return asyncio.run(both())
        """,
        [10, 20, 11, 21],
    ),
    (
        "async for and with",
        """
        import asyncio, contextlib
        async def items():
            yield 1
            yield 2
        @contextlib.asynccontextmanager
        async def context(): yield 3
        async def f():
            async for y in items(): pass
            async with context() as y: pass
            return [y async for y in items()]
        def run(): return asyncio.run(f())
        """,
        [1, 2, 3],
    ),
    (
        "async generator",
        """
        import asyncio
        async def f():
            y = 1
            z = yield y
            y = 2
            return
        async def read(): return [item async for item in f()]
        def run(): return asyncio.run(read())
        """,
        [1, 2],
    ),
    (
        "recursion",
        "def f(n=2):\n    y = n\n    if n: f(n - 1)\n    y = -n\n    return y\nrun = f",
        [2, 1, 0, 0, -1, -2],
    ),
    (
        "thread",
        """
        import threading
        def f(): y = 7
        def run():
            t = threading.Thread(target=f); t.start(); t.join()
        """,
        [7],
    ),
    (
        "closure cell",
        "def f():\n    y = 1\n    g = lambda: y\n    y = 2\n    return g()\nrun = f",
        [1, 2],
    ),
    (
        "nonlocal",
        """
        def outer():
            y = 1
            def f():
                nonlocal y
                y += 1
                return y
            return f
        f = outer()
        run = f
        """,
        [3],
    ),
    (
        "super and private names",
        """
        class A:
            def m(self): return 1
        class B(A):
            __k = 5
            def m(self):
                y = super().m() + self.__k
                __z = y
                return __z
        f = B.m
        run = B().m
        """,
        [6],
    ),
    (
        "static, class method and property",
        """
        class A:
            @staticmethod
            def s(): y = 1; return y
            @classmethod
            def c(cls): y = 2; return y
            @property
            def p(self): y = 3; return y
        FOLLOWED = [A.__dict__['s'].__func__, A.__dict__['c'].__func__, A.__dict__['p'].fget]
        def run(): return A.s(), A.c(), A().p
        """,
        [1, 2, 3],
    ),
    (
        "try and finally",
        """
        def f():
            try:
                y = 1
                return y
            finally:
                y = 2
        run = f
        """,
        [1, 2],
    ),
    (
        "raise",
        """
        def f():
            y = 1
            raise ValueError(y)
        def run():
            try: f()
            except ValueError as error: return str(error)
        """,
        [1],
    ),
    ("global", "def f():\n    global y\n    y = 8\n    return y\nrun = f", [8]),
    (
        "keyword-only and defaults",
        "def f(a=1, *, y=2, **k):\n    y += a\n    return y\nrun = f",
        [3],
    ),
    (
        "deleted and bound anew",
        "def f():\n    y = 1\n    del y\n    y = 2\n    return y\nrun = f",
        [1, 2],
    ),
    ("last before the end", "def f(x=1):\n    x += 1\n    y = x\nrun = f", [2]),
    (
        "future annotations",
        """
        from __future__ import annotations
        def f(x: nothing = 1):
            y: nowhere = x
            return y
        run = f
        """,
        [1],
    ),
    (
        "locals() is what it was",
        "def f(a):\n    y = a\n    return dict(locals())\ndef run(): return f(3)",
        [3],
    ),
]
if sys.version_info >= (3, 11):
    CASES.append(
        (
            "except*",
            """
            def f():
                try: raise ExceptionGroup('g', [ValueError(1), KeyError(2)])
                except* ValueError as y: pass
                except* KeyError: pass
            run = f
            """,
            [...],
        )
    )
if sys.version_info >= (3, 12):
    CASES += [
        ("type alias", "def f():\n    type y = int\n    return y.__value__\nrun = f", [...]),
        (
            "generic",
            "def f[T](x: T = 1) -> T:\n    y: T = x\n    return y, T.__name__\nrun = f",
            [1],
        ),
    ]


def alike(value: object, expected: object) -> bool:
    if expected is ...:
        return True
    if isinstance(expected, BaseException):
        return repr(value) == repr(expected)
    if isinstance(expected, str) and not isinstance(value, str):
        return getattr(value, "__name__", None) == expected
    if isinstance(expected, float):
        return abs(value - expected) < 0.01  # type: ignore[operator]
    return value == expected and type(value) is type(expected)


@pytest.mark.parametrize("with_source", [True, False], ids=["rewritten", "without source"])
@pytest.mark.parametrize("polls", [False, True], ids=["", "polled"])
@pytest.mark.parametrize(("text", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_every_binding_is_seen(
    text: str, expected: list[Any], polls: bool, with_source: bool
) -> None:
    module = program(text, with_source)
    plain = module["run"]()
    seen = Seen()
    functions = module.get("FOLLOWED") or [module["f"]]
    codes = [function.__code__ for function in functions]
    targets = [Target(f, wanting("y"), polls=polls, returns=polls) for f in functions]
    with instrument(targets, seen) as installed:
        assert bool(installed.fallbacks) is not with_source
        assert installed.unseen == []
        again = module["run"]()
    values = seen.values("y")
    assert len(values) == len(expected), values
    assert all(map(alike, values, expected)), values
    if "nonlocal" not in text:  # there each call counts on
        assert repr(again) == repr(plain)
    # Everything is back as it was.
    seen.log.clear()  # an exception in it keeps its frames, and they the code
    del values
    module["run"]()
    assert seen.log == []
    assert all(f.__code__ is code for f, code in zip(functions, codes, strict=True))
    assert not [name for name in module if name.startswith("__clew")]
    assert sys.gettrace() is None or "clew" not in repr(sys.gettrace())


def test_names_below_which_is_written_are_polled_and_others_are_not() -> None:
    module = program(
        """
        class A:
            def f(self, y, other):
                y['k'] = 1
                y['k'] += 1
                self.a = y
                self.a['z'] = 2
                del y['k']
                y.get('k').b = 1 if other else None
                for y[0] in 'a': pass
                (x, self.c), *y['r'] = (1, 2), 3
                other.clear()
        """
    )
    seen = Seen()
    a = module["A"]()
    with follow(seen, module["A"].f, "y", "self"):
        with pytest.raises(AttributeError):
            a.f({}, {})
    polled = [(name, line) for what, name, line, _ in seen.log if what == "polled"]
    assert polled == [("y", 3), ("y", 4), ("self", 5), ("self", 6), ("y", 7)]


class Lengths(Seen):
    """Writes down how long the polled list is, at the time."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths: list[tuple[int, int]] = []

    def polled(self, site: Site, value: Any, owner: object) -> None:
        self.lengths.append((site.line, len(value)))


def test_polls_follow_every_statement_that_may_change_an_object() -> None:
    module = program(
        """
        def f(y):
            y.append(1)
            x = 1 + 2
            if y.append(2): pass
            while not y.append(3) and len(y) < 4: x = 0
            with open('/dev/null') as z: y.append(4)
            return y.append(5)
        """
    )
    seen = Lengths()
    with follow(seen, module["f"], "y", polls=True):
        module["f"]([])
    lengths = seen.lengths
    changes = [pair for i, pair in enumerate(lengths) if not i or pair[1] != lengths[i - 1][1]]
    assert changes == [(2, 1), (4, 2), (5, 3), (5, 4), (6, 5), (7, 6)]


def test_a_change_by_a_statement_that_raised_is_polled_at_its_line() -> None:
    text = """
        def f(y, caught):
            def grow():
                y.append(1)
                raise ValueError
            if caught:
                try:
                    x = 1
                    grow()
                except ValueError:
                    return 1
            grow()
        """
    for caught, line in ((True, 8), (False, 11)):
        module = program(text)
        seen = Lengths()
        with follow(seen, module["f"], "y", polls=True):
            with contextlib.suppress(ValueError):
                module["f"]([], caught)
        assert next(at for at, length in seen.lengths if length) == line


def test_a_name_without_a_value_is_not_polled() -> None:
    module = program(
        """
        def f(c):
            print(end='')
            if c:
                y = 1
            print(end='')
            for i in range(c):
                print(end='')
                z = 1
            print(end='')
            if c: del y
            print(end='')
            return print(end='')
        """
    )
    for c, lines in ((0, []), (1, [5, 6, 6, 7, 9])):
        seen = Seen()
        with follow(seen, module["f"], "y", polls=True):
            module["f"](c)
        polled = [line for what, name, line, _ in seen.log if (what, name) == ("polled", "y")]
        assert sorted(set(polled)) == sorted(set(lines))

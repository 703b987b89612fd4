"""Walks frames in many places and compares: `python frame_programs.py FOLDER_OF_WALKER`.

Needs no package, as it runs on every Python that is found. Prints a line for each program, and how
many frames were compared.
"""

from __future__ import annotations

import asyncio
import functools
import sys
import threading

sys.path.insert(0, sys.argv[1])
import walker

PROGRAMS = []
compared = 0


def program(function):
    PROGRAMS.append(function)
    return function


def check(least=1):
    """Compare what both ways find; the frames of `check` itself are among them."""
    global compared
    mine, theirs = walker.both()
    assert [row[:2] for row in mine] == [row[:2] for row in theirs], (mine, theirs)
    assert len(mine) > least, mine
    # Python has made an object of each frame by now, and the walk finds them.
    again = [row[2] for row in walker.walk()]
    assert again == [row[2] for row in theirs], (again, theirs)
    compared += len(mine)
    return len(mine)


@program
def plain_calls():
    def outer(x):
        return inner(x) + 1

    def inner(x):
        y = x
        check(4)
        return y

    assert outer(1) == 2


@program
def closures():
    seen = 1

    def inner():
        nonlocal seen
        check()
        seen += 1

        def innermost():
            check(4)
            return seen

        return innermost()

    assert inner() == 2


@program
def generators():
    def numbers():
        check()
        for i in range(3):
            yield i
            check(3)

    assert list(numbers()) == [0, 1, 2]

    def delegates():
        check()
        yield from numbers()
        check()

    running = delegates()
    next(running)
    next(running)
    check()
    running.close()
    received = sends()
    next(received)
    received.send(2)
    try:
        received.throw(KeyError)
    except KeyError:
        check()


def sends():
    while True:
        try:
            got = yield
        except KeyError:
            check(3)
            raise
        check(3)
        assert got == 2


@program
def coroutines():
    async def ticks():
        for i in range(2):
            check(4)
            await asyncio.sleep(0)
            yield i

    class Manager:
        async def __aenter__(self):
            check(4)

        async def __aexit__(self, *error):
            check(4)

    async def work(n):
        async with Manager():
            async for _ in ticks():
                check(4)
        return [i async for i in ticks() if check()]

    async def main():
        check()
        return await asyncio.gather(work(1), work(2))

    asyncio.run(main())


@program
def comprehensions():
    found = [check() for _ in range(2)]
    found += list({check() for _ in range(1)}) + list({n: check() for n in range(1)}.values())
    found += list(check() for _ in range(2))  # noqa: C400 - a generator
    nested = [[check(1) for _ in range(2)] for _ in range(2)]
    assert all(found)
    assert all(map(all, nested))


class Made:
    seen = check()

    def __init__(self, *args, **kwargs):
        self.depth = check(2)

    def __call__(self):
        return check(2)

    def __enter__(self):
        check(2)
        return self

    def __exit__(self, *error):
        check(2)

    def __getattr__(self, name):
        return check(2)

    def __add__(self, other):
        return check(2)

    def __del__(self):
        check(2)

    def __repr__(self):
        return str(check(2))

    @property
    def prop(self):
        return check(2)


@program
def inits_and_special_methods():
    class Child(Made):
        check(2)

        def __init__(self):
            check(2)
            super().__init__(1, a=2)

        def __new__(cls):
            check(2)
            return super().__new__(cls)

    # Often enough for 3.11 and later to put special instructions in place of the calls.
    for _ in range(30):
        one = Child()
        one()
        with one:
            check()
        assert all((one.prop, one.other, one + 1, repr(one)))
        Made(1, a=2)
        del one


@program
def class_bodies():
    class Meta(type):
        def __new__(mcs, name, bases, namespace):
            check(2)
            return super().__new__(mcs, name, bases, namespace)

        def __call__(cls, *args):
            check(2)
            return super().__call__(*args)

    class Outer(metaclass=Meta):
        check()

        class Inner:
            check(3)

        def __init__(self):
            check(3)

    for _ in range(20):
        Outer()


@program
def code_run_as_text():
    space = {"check": check}
    exec("check(2)\ndef f():\n    return check(2)\nf()", space)
    eval("check(2)", space)
    eval("(lambda: check(3))()", space)
    exec("check(2)", space, {})
    exec("import abc\nclass A(abc.ABC):\n    at = check(3)\n", space)


@program
def deep_recursion():
    def down(n):
        if n == 0:
            return check(900)
        return down(n - 1)

    before = sys.getrecursionlimit()
    sys.setrecursionlimit(3000)
    try:
        assert down(2000) > 2000

        # Through C at every step.
        def through_c(n):
            return check() if n == 0 else max(map(through_c, [n - 1]))

        through_c(200)
    finally:
        sys.setrecursionlimit(before)


@program
def calls_from_c():
    assert sorted([3, 1, 2], key=lambda n: n * bool(check())) == [1, 2, 3]
    assert max([1, 2], key=lambda n: check(2) and n) == 2
    assert list(map(functools.partial(lambda a, b: check(2) and a, 1), [1, 2])) == [1, 1]
    assert functools.reduce(lambda a, b: a + b * bool(check(2)), [1, 2, 3]) == 6
    assert functools.lru_cache(lambda n: check(2) and n)(4) == 4
    import re

    assert re.sub("a", lambda found: "b" * bool(check(2)), "aa") == "bb"


@program
def exceptions():
    def raises():
        try:
            raise ValueError
        except ValueError:
            check(2)
            raise
        finally:
            check(2)

    for _ in range(10):
        try:
            raises()
        except ValueError as error:
            check()
            try:
                raise KeyError from error
            except KeyError:
                check()


@program
def other_threads():
    found = []

    def work(n):
        for _ in range(200):
            list(map(lambda m: found.append(check(2)), [n]))  # noqa: C417 - through C

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 800


@program
def with_a_trace_function():
    events = []

    def tracer(frame, event, argument):
        check()
        events.append(event)
        return tracer

    def work():
        x = 1
        check()
        return x

    sys.settrace(tracer)
    try:
        work()
    finally:
        sys.settrace(None)
    assert "call" in events
    sys.setprofile(lambda *args: check())
    try:
        sorted([2, 1], key=lambda n: n)
    finally:
        sys.setprofile(None)


@program
def locals_of_frames():
    if not walker.reads_memory:
        return

    def inner(first, *rest, late=None, **named):
        names = inner_code.co_varnames
        found = {}
        for at, name in enumerate(names):
            found[name] = walker.local(0, at)
        assert found["first"] is first
        assert found["rest"] is rest
        assert found["named"] is named
        assert found["late"] is late
        assert found["never"] is NotImplemented
        outer_names = outer.__code__.co_varnames
        assert walker.local(1, outer_names.index("mark")) == "outer"
        if late == 5:
            never = 1
            return never
        return first

    inner_code = inner.__code__

    def outer():
        mark = "outer"
        value = object()
        assert inner(value, 1, 2, late=mark, other=3) is value
        return mark

    outer()

    def generator():
        mark = object()
        yield walker.local(0, generator.__code__.co_varnames.index("mark")) is mark

    assert next(generator())


def main():
    for function in PROGRAMS:
        # A second time with instructions that the interpreter has specialised.
        for _ in range(3):
            function()
        print("same:", function.__name__)
    print("frames:", compared)


main()

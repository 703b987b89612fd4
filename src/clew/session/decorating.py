"""`clew.trace` as a decorator: functions, generators and coroutines that run inside a trace.

Generators and coroutines are recorded whenever they are not suspended.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

_F = TypeVar("_F", bound=Callable[..., Any])
_Block = AbstractContextManager[Any]


def inside(block: _Block, function: _F) -> _F:
    """Return a function that runs inside a block each time it is called."""
    if inspect.iscoroutinefunction(function):
        wrap = _coroutine
    elif inspect.isasyncgenfunction(function):
        wrap = _async_generator
    elif inspect.isgeneratorfunction(function):
        wrap = _generator
    else:
        wrap = _function
    return cast(_F, functools.wraps(function)(wrap(block, function)))


def _function(block: _Block, function: Callable[..., Any]) -> Any:
    def traced(*args: Any, **kwargs: Any) -> Any:
        with block:
            return function(*args, **kwargs)

    return traced


def _generator(block: _Block, function: Callable[..., Any]) -> Any:
    def traced(*args: Any, **kwargs: Any) -> Any:
        return (yield from _driven(block, function(*args, **kwargs)))

    return traced


def _coroutine(block: _Block, function: Callable[..., Any]) -> Any:
    async def traced(*args: Any, **kwargs: Any) -> Any:
        return await _Driven(_driven(block, function(*args, **kwargs)))

    return traced


def _async_generator(block: _Block, function: Callable[..., Any]) -> Any:
    async def traced(*args: Any, **kwargs: Any) -> Any:
        inner = function(*args, **kwargs)
        resume = inner.asend(None)
        try:
            while True:
                try:
                    item = await _Driven(_driven(block, resume))
                except StopAsyncIteration:
                    return
                try:
                    resume = inner.asend((yield item))
                except Exception as error:
                    resume = inner.athrow(error)
        finally:
            await inner.aclose()

    return traced


class _Driven:
    """A generator as something to await."""

    def __init__(self, steps: Generator[Any, Any, Any]) -> None:
        self._steps = steps

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._steps


def _driven(block: _Block, inner: Any) -> Generator[Any, Any, Any]:
    """Run a generator or coroutine, inside the block whenever it is not suspended."""
    resume, value = inner.send, None
    while True:
        try:
            with block:
                item = resume(value)
        except StopIteration as stop:
            return stop.value
        try:
            resume, value = inner.send, (yield item)
        except GeneratorExit:
            inner.close()
            raise
        except BaseException as error:
            resume, value = inner.throw, error

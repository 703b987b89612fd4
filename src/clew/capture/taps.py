"""Taps and prefixes: values and stretches of a run that the program itself names.

`tap` is called in the user's code whether or not anything records, so it costs about a function
call when nothing does. Must not import torch.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Protocol, TypeVar

_T = TypeVar("_T")


class TapListener(Protocol):
    """Somebody who records taps."""

    def tapped(
        self, name: str, value: Any, module: Any, reduce: Any, frame: FrameType
    ) -> None: ...
    def prefixed(self, prefix: str) -> None: ...


# A list that changes in place: compiled code is compiled anew when somebody begins to listen.
_listeners: list[TapListener] = []
_prefixes: list[str] = []


def tap(
    name: str, value: _T, module: Any = None, *, reduce: str | Callable[[Any], Any] | None = None
) -> _T:
    """Mark a value from inside the program, and return it unchanged.

    Its address is the path of `module`, or of the module that is running, followed by `name`.
    `reduce` keeps less than the whole value: a function of it, or the name of one of
    `clew.callbacks`, such as `"norm"`. Outside a trace nothing happens.

    >>> import torch, clew
    >>> class Net(torch.nn.Module):
    ...     def forward(self, x):
    ...         return clew.tap("doubled", x * 2, self) + 1
    >>> net = Net()
    >>> with clew.trace(net) as t:
    ...     y = net(torch.ones(3))
    >>> t["doubled"].value.tolist()
    [2.0, 2.0, 2.0]
    """
    if not _listeners:
        return value
    frame = sys._getframe(1)
    for listener in _listeners:
        listener.tapped(name, value, module, reduce, frame)
    return value


@contextlib.contextmanager
def prefix(name: str) -> Iterator[None]:
    """Name a stretch of the run; each event in it has the name as its `prefix`.

    >>> import torch, clew
    >>> with clew.trace() as t:
    ...     with clew.prefix("warmup"), clew.prefix("a"):
    ...         x = torch.ones(2) * 2
    >>> t.ops[-1].prefix
    'warmup.a'
    """
    _prefixes.append(name)
    _tell_prefix()
    try:
        yield
    finally:
        _prefixes.pop()
        _tell_prefix()


def current_prefix() -> str:
    """The names of all open stretches, outermost first."""
    return ".".join(_prefixes)


def _tell_prefix() -> None:
    for listener in _listeners:
        listener.prefixed(current_prefix())


def listen(listener: TapListener) -> Callable[[], None]:
    """Tell somebody of taps and prefixes; returns what ends it."""
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)

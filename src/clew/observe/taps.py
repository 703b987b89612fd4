"""Let the program name values (`tap`) and stretches of a run (`prefix`).

User code calls `tap` whether or not anything records, so that it costs about a function call when
nothing does. Must not import torch.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import FrameType
from typing import Any, Protocol, TypeVar
from weakref import ref

_T = TypeVar("_T")


class TapListener(Protocol):
    """Records taps and prefixes."""

    def tapped(
        self, name: str, value: Any, module: Any, reduce: Any, frame: FrameType | None
    ) -> None: ...
    def missed(self, name: str) -> None: ...
    def prefixed(self, prefix: str) -> None: ...
    def paths(self) -> dict[int, str]: ...


# Changed in place: Dynamo guards on the list, and compiles anew when someone begins to listen.
_listeners: list[TapListener] = []
# Listeners that were added in this thread or task, the newest first.
_own: ContextVar[tuple[ref[TapListener], ...]] = ContextVar("own_listeners", default=())
_prefixes: list[str] = []
# The paths of modules by their ids, for compiled code.
_paths: dict[int, str] = {}
# The module that is loaded when the first tap is compiled, and then learns these paths.
COMPILED_OPS = "clew.observe.compiled_ops"


def _is_compiling() -> bool:
    """Return whether Dynamo traces this code; `listen` replaces this by torch's function."""
    return False


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
    if _is_compiling():
        _tap_compiled(name, value, module, reduce)
        return value
    frame = sys._getframe(1)
    for listener in listeners():
        listener.tapped(name, value, module, reduce, frame)
    return value


def _tap_compiled(name: str, value: Any, module: Any, reduce: Any) -> None:
    """Run where Dynamo traces: it knows tensors."""
    # Here, as Dynamo runs it while it traces; programs that compile nothing do without it.
    from clew.observe import compiled_ops

    if callable(reduce):
        value, reduce = reduce(value), None
    path = None if module is None else _paths.get(id(module), "")
    compiled_ops.tap(name, value, path, reduce or "")


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
    """Return the names of all open prefixes, outermost first."""
    return ".".join(_prefixes)


def _tell_prefix() -> None:
    for listener in listeners():
        listener.prefixed(current_prefix())


def listeners() -> tuple[TapListener, ...]:
    """Return the listeners, each once, in the order in which they were added."""
    return tuple(dict.fromkeys(_listeners))


def innermost(kind: type[_T]) -> _T | None:
    """Return the newest listener of a kind added in this thread or task; else the newest of all."""
    found = [listener for listener in listeners() if isinstance(listener, kind)]
    own = [listener for listener in (known() for known in _own.get()) if listener in found]
    return next(iter(own or reversed(found)), None)


def learn_paths() -> None:
    """Learn the paths of modules, which compiled code is given as it is traced."""
    for listener in listeners():
        _paths.update(listener.paths())


def listen(listener: TapListener, is_compiling: Callable[[], bool], paths: dict[int, str]) -> None:
    """Report taps and prefixes to a listener, until `unlisten`.

    A listener that is added twice is called once per tap, until it was removed twice.
    """
    global _is_compiling
    _is_compiling = is_compiling
    _paths.update(paths)
    _listeners.append(listener)
    _own.set((ref(listener), *_own.get()))


def unlisten(listener: TapListener) -> None:
    """Report nothing more to a listener; do nothing if it is none, as `listen` was interrupted."""
    if listener in _listeners:
        _listeners.remove(listener)
    own, this = list(_own.get()), ref(listener)
    if this in own:  # it may end in another thread or task
        own.remove(this)
        _own.set(tuple(own))
    if not _listeners:
        _paths.clear()

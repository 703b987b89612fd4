"""Call the user's functions on the program's values without changing anything in the program.

Autograd, dispatch modes, function modes, the recording itself and the random number generators
are after the call what they were before it.
"""

from __future__ import annotations

import contextlib
import operator
import random
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, no_grad

from clew.events.model import Gap
from clew.keep.identity import PLAIN
from clew.program_errors import pass_on
from clew.record.recorder import Recorder
from clew.torch_compat import local_part, unobserved, without_mode_stack, without_modes

# The module of Clew's callbacks, which draw no random numbers.
_OWN = "clew.request.callbacks"


class IsolatedCall:
    """Calls functions that neither autograd nor a mode sees; if one fails it adds a gap."""

    def __init__(self, recorder: Recorder, on_gap: Callable[[Gap], Any]) -> None:
        self._recorder = recorder
        self._on_gap = on_gap
        # Restores random states once, after the last of several calls. Whether they are saved yet.
        self._together: contextlib.ExitStack | None = None
        self._is_guarded = False

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Restore random states once, after all calls in the block."""
        try:
            with contextlib.ExitStack() as self._together:
                yield
        finally:
            self._together, self._is_guarded = None, False

    def call(self, function: Callable[[Any], Any], value: Any, where: str, otherwise: Any) -> Any:
        """Return what a function makes of a value; `otherwise`, and add a gap, if it fails."""
        thread = self._recorder.thread()
        mute = thread.mute
        thread.set_mute(True)
        try:
            # Only the local part of a DTensor: the ranks would have to agree to make the whole.
            with unobserved(), without_modes():
                local = local_part(value) if isinstance(value, Tensor) else value
            with self._guard(function), no_grad(), unseen(local):
                return function(local.detach() if isinstance(local, Tensor) else local)
        except Exception as error:
            pass_on(error)
            called = getattr(function, "__name__", type(function).__name__)
            self._on_gap(
                Gap("a reduced value", where, f"{called} raised {type(error).__name__}: {error}",
                    "the value itself was kept")
            )  # fmt: skip
            return otherwise
        finally:
            thread.set_mute(mute)

    def _guard(self, function: Any) -> contextlib.AbstractContextManager[None]:
        """Return a context that restores the random states that a function changes."""
        if self._is_guarded or getattr(function, "__module__", None) == _OWN:
            return contextlib.nullcontext()
        if self._together is None:
            return _restored()
        self._is_guarded = True
        self._together.enter_context(_restored())
        return contextlib.nullcontext()


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Hide a block of user code from autograd and modes, and restore the random states after it."""
    with _restored(), no_grad(), unseen(None):
        yield


@contextlib.contextmanager
def unseen(value: Any) -> Iterator[None]:
    """Hide what is done with a value from all modes."""
    if isinstance(value, Tensor) and type(value) not in PLAIN:
        # Its class implements its ops by dispatch, which has to stay on.
        with without_mode_stack():
            yield
    else:
        with unobserved(), without_modes():
            yield


@contextlib.contextmanager
def _restored() -> Iterator[None]:
    """Restore the states of the random number generators after the block."""
    before = [(generator, generator[0]()) for generator in _generators()]
    try:
        yield
    finally:
        for (read, write, same), state in before:
            # Write only a state that has changed: another thread may draw at the same time.
            if not same(read(), state):
                write(state)


_Generator: TypeAlias = tuple[
    Callable[[], Any], Callable[[Any], Any], Callable[[Any, Any], bool]
]  # reads its state, writes its state, compares two states


def _generators() -> list[_Generator]:
    found: list[_Generator] = [
        (_hidden(torch.get_rng_state), _hidden(torch.set_rng_state), _hidden(torch.equal)),
        (random.getstate, random.setstate, operator.eq),
        (np.random.get_state, np.random.set_state, _same_numpy),
    ]
    if torch.cuda.is_initialized():
        cuda = torch.cuda
        found.append((_hidden(cuda.get_rng_state), _hidden(cuda.set_rng_state), torch.equal))
    return found


def _hidden(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a torch function so that no mode sees its calls."""

    def hidden(*args: Any) -> Any:
        with unobserved(), without_modes():
            return function(*args)

    return hidden


def _same_numpy(now: Any, before: Any) -> bool:
    return bool(np.array_equal(now[1], before[1])) and now[2:] == before[2:]

"""Functions of the user's, run on the program's values without leaving a trace in the program.

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
from clew.record.recorder import Recorder
from clew.torch_compat import local_part, unobserved, without_mode_stack, without_modes

# Functions of ours, which draw no random numbers.
_OWN = "clew.request.callbacks"


class Quiet:
    """Calls functions unseen; a failure of one costs nothing but a gap."""

    def __init__(self, recorder: Recorder, on_gap: Callable[[Gap], Any]) -> None:
        self._recorder = recorder
        self._on_gap = on_gap
        # Puts random numbers back after the last of several calls, once the first is made.
        self._together: contextlib.ExitStack | None = None
        self._is_guarded = False

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """A context for several calls, after which random numbers are put back once."""
        try:
            with contextlib.ExitStack() as self._together:
                yield
        finally:
            self._together, self._is_guarded = None, False

    def call(self, function: Callable[[Any], Any], value: Any, where: str, otherwise: Any) -> Any:
        """What a function makes of a value; `otherwise` if it fails, with a gap that says so."""
        lane = self._recorder.lane()
        mute = lane.mute
        lane.mute = True
        try:
            # Of a DTensor the part that is here: the whole would take the ranks to agree.
            with unobserved(), without_modes():
                local = local_part(value) if isinstance(value, Tensor) else value
            with self._guard(function), no_grad(), unseen(local):
                return function(local.detach() if isinstance(local, Tensor) else local)
        except Exception as error:
            called = getattr(function, "__name__", type(function).__name__)
            self._on_gap(
                Gap("a reduced value", where, f"{called} raised {type(error).__name__}: {error}",
                    "the value itself was kept")
            )  # fmt: skip
            return otherwise
        finally:
            lane.mute = mute

    def _guard(self, function: Any) -> contextlib.AbstractContextManager[None]:
        """Keeps a function from moving random numbers for the program."""
        if self._is_guarded or getattr(function, "__module__", None) == _OWN:
            return contextlib.nullcontext()
        if self._together is None:
            return _restored()
        self._is_guarded = True
        self._together.enter_context(_restored())
        return contextlib.nullcontext()


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """A block of the user's own that neither autograd nor a mode sees, and that draws nothing."""
    with _restored(), no_grad(), unseen(None):
        yield


@contextlib.contextmanager
def unseen(value: Any) -> Iterator[None]:
    """A context in which no mode sees what is done with a value."""
    if isinstance(value, Tensor) and type(value) not in PLAIN:
        # Its class implements its ops by dispatch, which has to stay on.
        with without_mode_stack():
            yield
    else:
        with unobserved(), without_modes():
            yield


@contextlib.contextmanager
def _restored() -> Iterator[None]:
    """Random numbers as if nobody had drawn any."""
    before = [(generator, generator[0]()) for generator in _generators()]
    try:
        yield
    finally:
        for (read, write, same), state in before:
            # Written only where it has moved: another thread may draw at the same time.
            if not same(read(), state):
                write(state)


_Generator: TypeAlias = tuple[
    Callable[[], Any], Callable[[Any], Any], Callable[[Any, Any], bool]
]  # how to read its state, how to write it, whether two are the same


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
    """A function of torch's that no mode sees."""

    def hidden(*args: Any) -> Any:
        with unobserved(), without_modes():
            return function(*args)

    return hidden


def _same_numpy(now: Any, before: Any) -> bool:
    return bool(np.array_equal(now[1], before[1])) and now[2:] == before[2:]

"""Keep the values of ops that were asked for by address, and call callbacks with them.

Comes in: each call of such an op, as the native engine tells of it when the op has ended. Goes out:
data of its tensors, and named values. The engine asks once whether values of an op are wanted.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor

from clew.callbacks.apply import Named
from clew.record.native_arguments import EngineOps, op_call_of
from clew.record.recorder import Recorder
from clew.stream.records import Token


class AskedOps:
    """What a recording wants of single ops; its functions are called with the GIL held."""

    def __init__(self, recorder: Recorder, named: Named) -> None:
        # Both have the engine, which has this.
        self._recorder = weakref.ref(recorder)
        self._named = weakref.ref(named)
        self._interest = named.interest
        self._ops = EngineOps()

    def wants(self, op: int) -> bool:
        """Return whether values of the calls of an op are asked for."""
        return any(self._interest.of_op(self._ops[op]))

    def ran(
        self, op: int, words: bytes, texts: list[str], tensors: list[Any], values: list[int]
    ) -> None:
        """Keep what is asked for of an op that has run, and call callbacks.

        For each hole in `words` comes a tensor, None if it is gone, and the number of its value.
        """
        recorder, named = self._recorder(), self._named()
        if recorder is None or named is None or recorder.halted:
            return
        func = self._ops[op]
        args, kwargs, out = op_call_of(words, texts, tensors, self._ops)
        table, keeper = recorder.values.tensors, recorder.values.keeper
        numbers = {id(tensor): value for tensor, value in zip(tensors, values, strict=True)}

        def known(tensor: Tensor) -> Token:
            number = numbers.get(id(tensor))
            found: Token = (
                table.current(tensor) if number is None else table.token_of(number, tensor)
            )
            return found

        if keeper is not None and self._interest.keeps_ops:
            keeper.keep_op(func, "in", {**dict(enumerate(args)), **kwargs}, known)
            keeper.keep_op(func, "out", out, known)
        if self._interest.takes_ops:
            named.ran(func, args, kwargs, out)

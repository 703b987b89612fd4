"""Give Python observers the values that the native engine has numbered.

Comes in: a live tensor. Goes out: a token that has the number of its value. The engine knows who is
who and writes the rows of values; nothing about a tensor is recorded here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from clew.keep.identity import name_tensors, odd_facts, shape_of
from clew.stream.records import NativeRows, NumberedToken, Token
from clew.torch_compat import unobserved

if TYPE_CHECKING:
    from clew.record.module_registry import ModuleTable


class NativeTensors:
    """Stands for the `TensorTable` of a recording whose ops the native engine records."""

    def __init__(self, modules: ModuleTable) -> None:
        # Records of values that are no tensors.
        self.values: list[Any] = []
        self.live: dict[int, Any] = {}
        self.generator_names: list[str] = []
        # The recording of the native engine, once there is one.
        self.recording: Any = None
        # Called with the limits that have left something out, a bit for each.
        self.on_limit: Callable[[int], None] = lambda reached: None
        # Called with what failed in the engine.
        self.on_faults: Callable[[list[str]], None] = lambda faults: None
        self._names_of = modules.tensor_names
        name_tensors(modules, self.forget)
        # number of a value -> its token, so that the same value always has the same one
        self._tokens: dict[int, NumberedToken] = {}
        # Facts of tensors that only Python can read -> their number
        self._odd: dict[tuple[Any, ...], int] = {}
        self._odd_taken = 0
        # Constants of module calls that are neither numbers nor texts, by their text and class.
        self._constants: dict[tuple[type, str], tuple[int, Any]] = {}
        self._constants_taken = 0

    def known(self, tensor: Tensor) -> Token:
        """Return the token of a tensor that is used."""
        return self.token_of(self.recording.value(tensor), tensor)

    def current(self, tensor: Tensor, producer: int = -1) -> Token:
        """Return the token of a tensor; a new one names the call `producer` as its producer."""
        return self.token_of(self.recording.value(tensor, producer), tensor)

    credited = current

    def produced(self, tensor: Tensor, producer: int, *facts: Any) -> Token:
        """Return the token of the result of a call; its `facts` are read by the engine."""
        return self.token_of(self.recording.made(tensor, producer), tensor)

    def renewed(self, tensor: Tensor) -> Token:
        """Return a new token for a tensor that was written to without a new version."""
        return self.token_of(self.recording.written(tensor, -1), tensor)

    def token_of(self, number: int, tensor: Tensor) -> Token:
        """Return the token of a value that the engine has numbered."""
        token = self._tokens.get(number)
        if token is None:
            with unobserved():
                token = self._tokens[number] = NumberedToken(shape_of(tensor))
            token.number = number
        return token

    def odd_meta(self, tensor: Tensor) -> int:
        """Return the number of the facts of a tensor that only Python can read."""
        with unobserved():
            shape, stride, device, extra = odd_facts(tensor)
            key = (type(shape), tuple(shape), stride, tensor.dtype, device, extra)
        return self._odd.setdefault(key, len(self._odd))

    def constant(self, value: Any) -> int:
        """Return the number of a constant; equal ones have the same."""
        key = (type(value), repr(value))
        known = self._constants.get(key)
        if known is None:
            known = self._constants[key] = (len(self._constants), value)
        return known[0]

    def forget(self, tensor: Tensor) -> None:
        """Drop every weak reference to a tensor."""
        if self.recording is not None:
            self.recording.forget(tensor)

    def sweep(self) -> list[Token]:
        """Return the tokens of all values that may be used again."""
        return list(self._tokens.values())

    def release(self) -> None:
        """Drop every weak reference."""
        self._tokens.clear()
        if self.recording is not None:
            self.recording.release()

    def take_memory(self) -> tuple[list[Any], dict[int, tuple[int, int]]]:
        """Return nothing: the rows of the engine say which memory was freed."""
        return [], {}

    def take(self, held: list[int], are_last: bool) -> NativeRows:
        """Take the rows out of the engine; open calls have taken the values `held`.

        With the last ones the engine drops what it knows of tensors.
        """
        reached, faults, unnamed, generators, *rows_of_engine = self.recording.take(held, are_last)
        if reached:
            self.on_limit(reached)
        if faults:
            self.on_faults(faults)
        self.generator_names[:] = generators
        odd = list(self._odd)[self._odd_taken :]
        self._odd_taken = len(self._odd)
        constants = [value for _, value in list(self._constants.values())[self._constants_taken :]]
        self._constants_taken = len(self._constants)
        names = self._names_of(unnamed)
        rows = NativeRows._make((*rows_of_engine, names, odd, constants))
        if self._tokens:
            for number in rows.gone_numbers():
                self._tokens.pop(number, None)
        return rows

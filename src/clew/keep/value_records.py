"""Record the values of one recording: a token for each in the event records, and what is kept.

Comes in: live values. Goes out: tokens; the value records wait here until they are handed over.
Must not import torch.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

from clew.events.vocabulary import KeepLevel
from clew.keep import python_values
from clew.keep.budget import Budget
from clew.keep.changes import ValueState, state_of
from clew.keep.nesting import describe, is_tensor
from clew.stream.records import (
    Made,
    NativeRows,
    Records,
    Shape,
    Token,
    UnknownShape,
    tokens_in,
)

if TYPE_CHECKING:
    from torch import Tensor

    from clew.callbacks.samples import Sample
    from clew.keep.keeper import Keeper

_REMEMBERED = 4096
# So many tensors may be remembered before those that are gone are looked for.
_MANY = 256


class ValueRecords:
    """Turns values into tokens; `tensors` is a `TensorTable`, or `NoTensors` without torch."""

    def __init__(self, tensors: Any, budget: Budget) -> None:
        self.tensors = tensors
        self.budget = budget
        # What is kept of values beyond their facts: pairs of token and `Made`.
        self.kept: list[Any] = []
        # Keeps the data of single values and, with `keeps_every`, more than facts of all tensors.
        self.keeper: Keeper | None = None
        self.keeps_every = False
        self._make_keeper: Callable[[], Keeper] | None = None
        # id of a token -> (token, content), of tensors in variables, taps and the like
        self._contents: dict[int, tuple[Token, Any]] = {}

    def keep(self, make: Callable[[], Keeper], every: bool) -> None:
        """Have a keeper made with the first value that it keeps.

        With `every`, it is made here, and keeps more than facts of each tensor version.
        """
        self._make_keeper, self.keeps_every = make, every
        if every:
            self.keeper = self.tensors.keep = make()

    def described(self, value: Any, now: ValueState | None = None) -> Any:
        """Return a value with a token for each leaf, whose data is kept.

        `now` is the fresh state of the value, if the caller has one.
        """

        def keep(leaf: Any) -> Token:
            return self.leaf(leaf, KeepLevel.FULL, now if leaf is value else None)[0]

        return describe(value, keep, 0, keep)

    def leaf(
        self, value: Any, level: KeepLevel, now: ValueState | None = None
    ) -> tuple[Token, Made | None]:
        """Return the token of a value that is no container, and what is kept of it.

        `now` is the fresh state of the value, if the caller has one.
        """
        if not is_tensor(value):
            token, made = python_values.record(value, self.tensors.values, level, self.budget)
            if made is not None:
                self.kept.append((token, made))
            return token, made
        if self.keeper is None and self._make_keeper is not None:
            self.keeper = self._make_keeper()
        token = self._token_of_content(value, (now or state_of(value)).content)
        if self.keeper is not None and level > KeepLevel.META:
            return token, self.keeper.keep(token, value, level)
        return token, None

    def _token_of_content(self, tensor: Tensor, content: Any) -> Token:
        """Return the token of a tensor, a new one if its content changed without a new version."""
        token: Token = self.tensors.current(tensor)
        known = self._contents.get(id(token))
        if known is not None and known[1] != content:
            token = self.tensors.renewed(tensor)
        if len(self._contents) > _REMEMBERED:
            self._contents.clear()
        self._contents[id(token)] = (token, content)
        return token

    def gathered(self, sample: Sample) -> Any:
        """Return the tokens of a value that was gathered from some rank."""
        out: dict[str, Token] = {}
        for leaf in sample.leaves:
            token = UnknownShape([-1]) if leaf.shape is None else Shape(leaf.shape)
            self.tensors.values.extend(
                (token, 0, None, leaf.stride, leaf.dtype, leaf.device, leaf.extra, False, -1, None,
                 None)
            )  # fmt: skip
            payload = leaf.payload
            if payload is not None and self.budget.has_room(prod(payload.shape), len(payload.data)):
                self.kept.append((token, leaf.kept))
            out[leaf.path] = token
        return out[""] if list(out) == [""] else out

    def take_kept(self) -> tuple[list[Any], int]:
        """Return what was kept since the last call, and about how many bytes it is."""
        kept = self.kept[:]
        del self.kept[: len(kept)]
        size, self.budget.pending = self.budget.pending, 0
        if self.keeper is not None:
            self.keeper.forget()
        return kept, size

    def take_native(self, held: list[int], are_last: bool) -> NativeRows | None:
        """Take what the native engine recorded, None if it does not record.

        Open calls have taken the values `held`. After the last rows it knows of no tensor.
        """
        take = getattr(self.tensors, "take", None)
        return None if take is None else take(held, are_last)

    def take_into(self, records: Records) -> None:
        """Move the records of values, and what was seen of their memory, into `records`."""
        values = self.tensors.values
        records.values = values[:]
        del values[: len(records.values)]
        records.gone, records.sizes = self.tensors.take_memory()

    def forget_all_but(self, surviving: list[Any]) -> None:
        """Forget tensors that are gone, once there are many; `surviving` has the other tokens."""
        keeper = self.keeper
        if len(self._contents) + (0 if keeper is None else keeper.remembered) > _MANY:
            alive = {id(token) for token in tokens_in(surviving)}
            for key in [key for key in list(self._contents) if key not in alive]:
                self._contents.pop(key, None)
            if keeper is not None:
                keeper.forget_all_but(alive)

"""Named values on their way into a recording: variables, taps, gradients, values of calls.

Input: values and the names the program or an address gives them. Output: events whose subject is a
`Label`. The callbacks of an address are called here, whatever kind of value it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from clew.address import Key, join, written
from clew.callbacks.isolation import IsolatedCall
from clew.events.labels import OP_STEM, role_of
from clew.events.model import Gap
from clew.events.vocabulary import RECOMPUTE, SAVED, VARIABLE, Label
from clew.keep.changes import ValueState
from clew.keep.nesting import at_path, describe
from clew.record.module_registry import ModuleEntry
from clew.record.recorder import Recorder, Where
from clew.record.steps import Steps
from clew.record.thread_state import NAME, NODE, NUMBER, Call
from clew.request.callbacks import Callbacks
from clew.request.interest import Asked, Interest
from clew.torch_compat import is_compiled, is_recomputing

_ABSENT = object()


class Named:
    """Records values by name, as the callbacks of their addresses say."""

    def __init__(
        self,
        recorder: Recorder,
        interest: Interest,
        steps: Steps,
        training: Callable[[], bool | None],
        on_gap: Callable[[Gap], Any],
    ) -> None:
        self._recorder = recorder
        self.interest = interest
        self._ledger = interest.ledger
        self._steps = steps
        self._training = training
        self._isolated = IsolatedCall(recorder, on_gap)
        # Takes a value that is needed again, for a gather or at the end.
        self.collect: Callable[[Label, Callbacks, Any], None] = lambda label, how, value: None
        # The first address with callbacks that names a label.
        self._of_label: dict[Label, tuple[Asked, Callbacks] | None] = {}
        # Label -> the event it was recorded in last.
        self._last: dict[Label, int] = {}

    def record(self, label: Label, value: Any, where: Where, now: ValueState | None = None) -> None:
        """Record a value that has a name; `now` is its fresh `ValueState`, if there is one."""
        found = self._with_callbacks(label)
        if found is None:
            self._recorder.named(label, value, where, now)
        elif self._is_due(*found):
            _, callbacks = found
            value = self._saved(callbacks, label, value)
            if value is not _ABSENT:
                if callbacks.keep:
                    self._recorder.named(label, value, where)
                self.collect(label, callbacks, value)

    def _with_callbacks(self, label: Label) -> tuple[Asked, Callbacks] | None:
        """Return the first address with callbacks that names a label."""
        known: Any = self._of_label.get(label, _ABSENT)
        if known is _ABSENT:
            asked = self.interest.of_label(label)
            self._ledger.came.update(a.address.text for a in asked)
            found = ((a, a.callbacks) for a in asked if a.callbacks is not None)
            known = self._of_label[label] = next(found, None)
        return known  # type: ignore[no-any-return]

    @property
    def only(self) -> str | None:
        """Return the kind of steps that all callbacks are for, None if there is no single one."""
        kinds = {a.callbacks.only for a in self.interest.asked if a.callbacks is not None}
        return kinds.pop() if len(kinds) == 1 else None

    def callbacks_of(self, label: Label) -> Callbacks | None:
        """Return what gets the values of a label, None if nothing does."""
        found = self._with_callbacks(label)
        return None if found is None else found[1]

    def is_due(self, label: Label) -> bool:
        """Return whether a value would be recorded if it came now."""
        found = self._with_callbacks(label)
        return found is None or self._is_due(*found)

    def entered(self, call: Call, args: Any, kwargs: dict[str, Any]) -> None:
        """Record what callbacks want of the inputs of a module call that begins."""
        if not self.interest.takes_inputs:
            return
        entry: ModuleEntry = call[NAME].entry  # type: ignore[union-attr]
        module = entry.ref()
        if entry.wrapper and module is not None and not is_compiled(module):
            return  # the module inside gets them too
        self._called(call, "in", _inputs(args, kwargs))

    def left(self, call: Call, result: Any) -> None:
        """Record what callbacks want of the result of a module call that ends."""
        self._called(call, "out", result)

    def ran(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Record what callbacks want of an op that ran."""
        recorded: set[tuple[int, Label]] = set()
        for asked in self.interest.of_op(func).with_callbacks:
            side = _inputs(args, kwargs or {}) if asked.address.role == "in" else out
            self._value_of(asked, OP_STEM + str(func), str(func), None, side, -1, recorded)

    def _called(self, call: Call, side: str, value: Any) -> None:
        name: Any = call[NAME]
        entry: ModuleEntry = name.entry
        found = self.interest.of_module(name)
        wanted = found.given if side == "in" else found.returned
        if not wanted or call[NODE].phase == RECOMPUTE:
            return
        recorded: set[tuple[int, Label]] = set()
        for asked, path in wanted:
            if asked.address.call in (None, call[NUMBER]):
                inside = call[0] if entry.wrapper else -1
                last = path.rpartition(".")[2]
                self._value_of(asked, written(path), last, path, value, inside, recorded)

    def _value_of(
        self, asked: Asked, stem: str, name: str, module: str | None, value: Any, inside: int,
        recorded: set[tuple[int, Label]],
    ) -> None:  # fmt: skip
        """Record a side of a call; not if the call wraps another that has recorded it since.

        Nor if it was `recorded`: two addresses with the same callbacks may name it.
        """
        address, callbacks = asked.address, asked.callbacks
        assert callbacks is not None
        label = Label(VARIABLE, stem, name, role_of(address), module, stage=SAVED)
        if self._last.get(label, -1) > inside >= 0:
            return
        if address.field:
            value = _at(value, [str(segment) for segment in address.field])
            if value is _ABSENT:
                return
        elif address.role == "in" and len(value) == 1:
            (value,) = value.values()
        self._ledger.came.add(address.text)
        is_due, known = self._is_due(asked, callbacks), (id(callbacks), label)
        if known in recorded:
            return
        recorded.add(known)
        if not is_due:
            # Nor has a wrapper, which may end in another step, anything to record.
            self._last[label] = next(self._recorder.buffer.ids)
            return
        value = self._saved(callbacks, label, value)
        if value is not _ABSENT and asked.records and callbacks.keep:
            self._last[label] = self._recorder.named(label, value, None)
        else:
            self._last[label] = next(self._recorder.buffer.ids)
        if value is not _ABSENT:
            self.collect(label, callbacks, value)

    def _is_due(self, asked: Asked, callbacks: Callbacks) -> bool:
        due = not is_recomputing() and callbacks.is_due(self._steps, self._training)
        (self._ledger.due if due else self._ledger.not_due).add(asked.address.text)
        return due

    def _saved(self, callbacks: Callbacks, label: Label, value: Any) -> Any:
        save = callbacks.save
        if save is None or isinstance(save, str):  # names of reductions are functions by now
            return value
        where = label.stem + (f":{label.role}" if label.role else "")
        if callbacks.with_address:
            save = functools.wraps(save)(functools.partial(save, address=where))
        found = self._isolated.call(save, value, where, value)
        return _ABSENT if found is None else found


def _inputs(args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs of a call by position and name."""
    return {**{str(n): arg for n, arg in enumerate(args)}, **kwargs}


def _at(value: Any, path: list[str]) -> Any:
    """Return what is at a path inside a value, `_ABSENT` if nothing is."""
    found = at_path(value, path)
    if not found and path[0] == "0":
        found = at_path(value, path[1:])  # one result alone
    return describe(found[0], lambda tensor: tensor, 0, lambda leaf: leaf) if found else _ABSENT


def stem_of(path: str | None, name: str) -> str:
    """Return the address of a named value of a module; a name that needs quotes gets them."""
    own = join([Key(name)])
    return own if not path else path + own if own.startswith("[") else f"{path}.{own}"

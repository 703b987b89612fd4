"""Named values on their way into a recording: variables, taps, gradients, values of calls.

In come values and the names the program or an address gives them, out go events whose subject is
a `Label`. What callbacks are to make of them happens here, whatever kind of value it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from clew.address import Address, Key, compile_pattern, join, matches_op, written
from clew.callbacks.isolation import Quiet
from clew.events.labels import OP_STEM, is_made_of, is_named, role_of
from clew.events.model import Gap
from clew.events.records import RECOMPUTE, SAVED, VARIABLE, Label
from clew.keep.changes import Look
from clew.keep.nesting import at_path, describe
from clew.record.module_registry import ModuleEntry
from clew.record.recorder import Recorder, Where
from clew.record.steps import Steps
from clew.record.thread_state import NAME, NODE, NUMBER, Call
from clew.torch_compat import is_compiled, is_recomputing

_ABSENT = object()


class Treatment(Protocol):
    """What is made of the values of an address; `clew.Callbacks` is one."""

    @property
    def save(self) -> Any: ...
    @property
    def before_gather(self) -> Any: ...
    @property
    def after_gather(self) -> Any: ...
    @property
    def end(self) -> Any: ...
    @property
    def every(self) -> int: ...
    @property
    def only(self) -> str | None: ...
    @property
    def with_address(self) -> bool: ...
    @property
    def keep(self) -> bool: ...
    def is_due(self, steps: Steps, training: Callable[[], bool | None]) -> bool: ...


@dataclass(slots=True)
class Treated:
    """An address whose values are treated.

    `records` says whether values of calls become events here; otherwise they are kept with the
    call, and only collected.
    """

    address: Address
    treatment: Treatment
    records: bool
    was_due: bool = False


class Named:
    """Records values by name, as the callbacks of their addresses say."""

    def __init__(
        self,
        recorder: Recorder,
        treated: Iterable[Treated],
        steps: Steps,
        training: Callable[[], bool | None],
        on_gap: Callable[[Gap], Any],
    ) -> None:
        self._recorder = recorder
        self._treated = list(treated)
        self._steps = steps
        self._training = training
        self._quiet = Quiet(recorder, on_gap)
        sided = [t for t in self._treated if t.address.role in (None, "in", "out")]
        self.calls = [t for t in sided if t.address.kind == "path"]
        self.ops = [t for t in sided if t.address.kind == "op"]
        self._takes_inputs = any(t.address.role == "in" for t in self.calls)
        # Takes a value that is needed again, for a gather or at the end.
        self.collect: Callable[[Label, Treatment, Any], None] = lambda label, how, value: None
        self.matched: set[str] = set()
        self._of_label: dict[Label, Treated | None] = {}
        self._of_entry: dict[tuple[int, int], list[tuple[Treated, str]]] = {}
        self._of_op: dict[int, list[Treated]] = {}
        # Label -> the event it was recorded in last.
        self._last: dict[Label, int] = {}

    def record(self, label: Label, value: Any, where: Where, now: Look | None = None) -> None:
        """Record a value that has a name; `now` is a fresh look at it, if there is one."""
        treated = self.treated(label)
        if treated is None:
            self._recorder.named(label, value, where, now)
        elif self._is_due(treated):
            value = self._saved(treated, label, value)
            if value is not _ABSENT:
                if treated.treatment.keep:
                    self._recorder.named(label, value, where)
                self.collect(label, treated.treatment, value)

    def treated(self, label: Label) -> Treated | None:
        """The first address with callbacks that names a label."""
        known: Any = self._of_label.get(label, _ABSENT)
        if known is _ABSENT:
            test = is_named if label.stage is None else is_made_of
            known = next((t for t in self._treated if test(t.address, label)), None)
            self._of_label[label] = known
            if known is not None:
                self.matched.add(known.address.text)
        return known  # type: ignore[no-any-return]

    @property
    def only(self) -> str | None:
        """The kind of steps that all callbacks are about, None if they are about both."""
        kinds = {t.treatment.only for t in self._treated}
        return kinds.pop() if len(kinds) == 1 else None

    def treatment_of(self, label: Label) -> Treatment | None:
        """What is made of the values of a label, None if nothing is."""
        treated = self.treated(label)
        return None if treated is None else treated.treatment

    def is_due(self, label: Label) -> bool:
        """Whether a value would be recorded if it came now."""
        treated = self.treated(label)
        return treated is None or self._is_due(treated)

    def entered(self, call: Call, args: Any, kwargs: dict[str, Any]) -> None:
        """A module call begins: record what callbacks want of its inputs."""
        if not self._takes_inputs:
            return
        entry: ModuleEntry = call[NAME].entry  # type: ignore[union-attr]
        module = entry.ref()
        if entry.wrapper and module is not None and not is_compiled(module):
            return  # the module inside gets them too
        self._called(call, "in", _inputs(args, kwargs))

    def left(self, call: Call, result: Any) -> None:
        """A module call ends: record what callbacks want of its result."""
        self._called(call, "out", result)

    def ran(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """An op ran: record what callbacks want of it."""
        found = self._of_op.get(id(func))
        if found is None:
            found = [t for t in self.ops if matches_op(t.address.path, str(func))]
            self._of_op[id(func)] = found
        told: set[tuple[int, Label]] = set()
        for treated in found:
            side = _inputs(args, kwargs or {}) if treated.address.role == "in" else out
            self._value_of(treated, OP_STEM + str(func), str(func), None, side, -1, told)

    def missed(self) -> Iterator[Gap]:
        """Say of which addresses values came only in steps that were not to be recorded."""
        for treated in self._treated:
            how = treated.treatment
            if treated.address.text in self.matched and not treated.was_due:
                only = f", only={how.only!r}" if how.only else ""
                yield Gap(
                    "an address to capture", treated.address.text,
                    f"none of the steps in which it ran was due (every={how.every}{only})",
                    "mark the steps with Trace.step(), or record more of them",
                )  # fmt: skip

    def _called(self, call: Call, side: str, value: Any) -> None:
        name: Any = call[NAME]
        entry: ModuleEntry = name.entry
        key = name.index, len(entry.names)
        wanted = self._of_entry.get(key)
        if wanted is None:
            paths = [name.path, *entry.paths]
            named = [(t, filter(compile_pattern(t.address.path), paths)) for t in self.calls]
            first = [(t, next(found, None)) for t, found in named]
            wanted = self._of_entry[key] = [(t, path) for t, path in first if path is not None]
        if not wanted or call[NODE].phase == RECOMPUTE:
            return
        told: set[tuple[int, Label]] = set()
        for treated, path in wanted:
            address = treated.address
            if (address.role or "out") == side and address.call in (None, call[NUMBER]):
                inside = call[0] if entry.wrapper else -1
                last = path.rpartition(".")[2]
                self._value_of(treated, written(path), last, path, value, inside, told)

    def _value_of(
        self, treated: Treated, stem: str, name: str, module: str | None, value: Any, inside: int,
        told: set[tuple[int, Label]],
    ) -> None:  # fmt: skip
        """Record a side of a call; not if the call wraps another that has recorded it since.

        Nor if it was `told`: two addresses with the same callbacks may name it.
        """
        address = treated.address
        label = Label(VARIABLE, stem, name, role_of(address), module, stage=SAVED)
        if self._last.get(label, -1) > inside >= 0:
            return
        if address.field:
            value = _at(value, [str(segment) for segment in address.field])
            if value is _ABSENT:
                return
        elif address.role == "in" and len(value) == 1:
            (value,) = value.values()
        self.matched.add(address.text)
        is_due, known = self._is_due(treated), (id(treated.treatment), label)
        if known in told:
            return
        told.add(known)
        if not is_due:
            # Nor has a wrapper, which may end in another step, anything to record.
            self._last[label] = next(self._recorder.buffer.ids)
            return
        value = self._saved(treated, label, value)
        if value is not _ABSENT and treated.records and treated.treatment.keep:
            self._last[label] = self._recorder.named(label, value, None)
        else:
            self._last[label] = next(self._recorder.buffer.ids)
        if value is not _ABSENT:
            self.collect(label, treated.treatment, value)

    def _is_due(self, treated: Treated) -> bool:
        if is_recomputing():
            return False
        due = treated.treatment.is_due(self._steps, self._training)
        treated.was_due = treated.was_due or due
        return due

    def _saved(self, treated: Treated, label: Label, value: Any) -> Any:
        save = treated.treatment.save
        if save is None:
            return value
        where = label.stem + (f":{label.role}" if label.role else "")
        if treated.treatment.with_address:
            save = functools.wraps(save)(functools.partial(save, address=where))
        found = self._quiet.call(save, value, where, value)
        return _ABSENT if found is None else found


def _inputs(args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The inputs of a call by position and name."""
    return {**{str(n): arg for n, arg in enumerate(args)}, **kwargs}


def _at(value: Any, path: list[str]) -> Any:
    """What lies at a path inside a value, `_ABSENT` if nothing does."""
    found = at_path(value, path)
    if not found and path[0] == "0":
        found = at_path(value, path[1:])  # one result alone
    return describe(found[0], lambda tensor: tensor, 0, lambda leaf: leaf) if found else _ABSENT


def stem_of(path: str | None, name: str) -> str:
    """The address of a named value of a module; a name that needs quotes gets them."""
    own = join([Key(name)])
    return own if not path else path + own if own.startswith("[") else f"{path}.{own}"

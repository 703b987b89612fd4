"""What is wanted of ops, module calls, parameters and named values, compiled from addresses.

Input: the addresses of a `Request`. Output: an `Interest`: observers ask it what is wanted of an
op, of a module by its paths, of a parameter or buffer by its path, or of a label. Each answer is
computed once and cached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from clew.address import Address, compile_pattern, matches_op
from clew.events.labels import is_made_of, is_named
from clew.events.records import Label
from clew.request.callbacks import Callbacks
from clew.request.ledger import Ledger
from clew.request.request import Request

# Roles of the gradients of module calls, and of the tensors that a module owns.
CALL_GRADIENTS = ("grad", "grad_in")
TENSOR_ROLES = ("grad", "param", "buffer", "update", "state")
_SIDES = (None, "in", "out")


@dataclass(frozen=True, slots=True)
class Asked:
    """One address, and what is done with the values it names.

    `keeps` says whether the data of calls and ops is kept with them. `callbacks` are None where a
    value is recorded as it is. With `records` values of calls become events of their own.
    """

    address: Address
    keeps: bool = False
    callbacks: Callbacks | None = None
    records: bool = False


class NamedModule(Protocol):
    """A module as `record.module_registry` knows it: all its names."""

    @property
    def names(self) -> Sequence[Any]: ...
    @property
    def paths(self) -> list[str]: ...


class NameOfModule(Protocol):
    """One of the names of a module, by its number in a recording."""

    @property
    def index(self) -> int: ...
    @property
    def path(self) -> str: ...
    @property
    def entry(self) -> NamedModule: ...


class ModuleInterest(NamedTuple):
    """What is wanted of the calls of one module; an address may be about one call alone.

    `given` and `returned` have callbacks, with the path of the module that each address names.
    """

    kept_inputs: tuple[Address, ...]
    kept_outputs: tuple[Address, ...]
    gradients: tuple[Address, ...]
    given: tuple[tuple[Asked, str], ...]
    returned: tuple[tuple[Asked, str], ...]


class OpInterest(NamedTuple):
    """What is wanted of one op."""

    kept_inputs: tuple[Address, ...]
    kept_outputs: tuple[Address, ...]
    with_callbacks: tuple[Asked, ...]


class Interest:
    """What a recording wants, by op, module, tensor and label; in `ledger` what became of it."""

    def __init__(self, asked: Iterable[Asked] = ()) -> None:
        self.asked = tuple(asked)
        self.ledger = Ledger(a.address for a in self.asked)
        sided = [a for a in self.asked if a.address.role in _SIDES]
        self._paths = [a for a in sided if a.address.kind == "path"]
        self._ops = [a for a in sided if a.address.kind == "op"]
        paths = [a.address for a in self.asked if a.address.kind == "path"]
        self._call_gradients = [a for a in paths if a.role in CALL_GRADIENTS]
        self._tensors = [(a, compile_pattern(a.path)) for a in paths if a.role in TENSOR_ROLES]
        # Whether anything is wanted at all, so that nobody has to ask for each op or call.
        self.keeps_calls = any(a.keeps for a in self._paths)
        self.keeps_ops = any(a.keeps for a in self._ops)
        self.takes_inputs = any(_has_callbacks(a, "in") for a in self._paths)
        self.takes_calls = any(a.callbacks is not None for a in self._paths)
        self.takes_ops = any(a.callbacks is not None for a in self._ops)
        self.follows_tensors = bool(self._tensors or self._call_gradients)
        # By number and count of names: a module that gets another name is asked about anew.
        self._of_module: dict[tuple[int, int], ModuleInterest] = {}
        # By id, with the op, so that no other gets its id.
        self._of_op: dict[int, tuple[Any, OpInterest]] = {}
        self._of_label: dict[Label, tuple[Asked, ...]] = {}

    def of_module(self, name: NameOfModule) -> ModuleInterest:
        """Return what is wanted of the calls of a module."""
        key = name.index, len(name.entry.names)
        found = self._of_module.get(key)
        if found is None:
            found = self._of_module[key] = self._find_module([name.path, *name.entry.paths])
        return found

    def of_op(self, op: Any) -> OpInterest:
        """Return what is wanted of an op, whose text is its name."""
        known = self._of_op.get(id(op))
        if known is None:
            known = self._of_op[id(op)] = op, self._find_op(str(op))
        return known[1]

    def of_tensor(self, path: str) -> list[Address]:
        """Return the addresses, each with a role, that name a parameter or buffer."""
        return [address for address, is_meant in self._tensors if is_meant(path)]

    def of_label(self, label: Label) -> tuple[Asked, ...]:
        """Return what names a variable, tap or gradient, or what was made of one."""
        found = self._of_label.get(label)
        if found is None:
            test = is_named if label.stage is None else is_made_of
            found = tuple(a for a in self.asked if test(a.address, label))
            self._of_label[label] = found
        return found

    def _find_module(self, paths: list[str]) -> ModuleInterest:
        meant = [(a, path) for a in self._paths if (path := _first(a.address, paths)) is not None]
        return ModuleInterest(
            tuple(a.address for a, _ in meant if _is_kept(a, "in")),
            tuple(a.address for a, _ in meant if _is_kept(a, "out")),
            tuple(a for a in self._call_gradients if _first(a, paths) is not None),
            tuple((a, path) for a, path in meant if _has_callbacks(a, "in")),
            tuple((a, path) for a, path in meant if _has_callbacks(a, "out")),
        )

    def _find_op(self, name: str) -> OpInterest:
        meant = [a for a in self._ops if matches_op(a.address.path, name)]
        return OpInterest(
            tuple(a.address for a in meant if _is_kept(a, "in")),
            tuple(a.address for a in meant if _is_kept(a, "out")),
            tuple(a for a in meant if a.callbacks is not None),
        )


def interest_of(request: Request, is_variable: Callable[[Address], bool]) -> Interest:
    """Compile the addresses of a request.

    `is_variable` says of an address that it can name a variable alone, so that no call keeps data
    for it.
    """
    keeps_calls = request.level != "values"
    callbacks = Callbacks() if request.gather is not None or not keeps_calls else None
    with_callbacks = [Asked(a, callbacks=c, records=True) for a, c in request.followed.values()]
    kept = [
        Asked(address, keeps_calls and not is_variable(address), callbacks, not keeps_calls)
        for address in request.capture
        if address.text not in request.followed
    ]
    # The first that names a value says which callbacks get it.
    return Interest([*with_callbacks, *kept])


def _is_kept(asked: Asked, side: str) -> bool:
    return asked.keeps and (asked.address.role or "out") == side


def _has_callbacks(asked: Asked, side: str) -> bool:
    return asked.callbacks is not None and (asked.address.role or "out") == side


def _first(address: Address, paths: list[str]) -> str | None:
    """Return the first path that an address names."""
    return next(filter(compile_pattern(address.path), paths), None)

"""What is wanted of ops, module calls, parameters and named values, compiled from addresses.

Input: the addresses of a `Request`. Output: an `Interest`: observers ask it what is wanted of an
op, of a module by its paths, of a parameter or buffer by its path, or of a label. Each answer is
computed once and cached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

from clew.address import Address, compile_path, matches_op
from clew.events.labels import is_made_of, is_named
from clew.events.vocabulary import Label
from clew.request.callbacks import Callbacks
from clew.request.ledger import Ledger
from clew.request.request import Request

# Roles of the gradients of module calls, and of the tensors that a module owns.
CALL_GRADIENTS = ("grad", "grad_in")
TENSOR_ROLES = ("grad", "param", "buffer", "update", "state")
_SIDES = (None, "in", "out")
_ADDRESS = attrgetter("address")


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


class _Modules:
    """What is wanted of the calls of modules, by the paths of these."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.gradients: list[Address] = []
        # By number and count of names: a module that gets another name is asked about anew.
        self._known: dict[tuple[int, int], ModuleInterest] = {}

    def add(self, asked: Asked) -> None:
        if asked.address.role in _SIDES:
            self.asked.append(asked)
        if asked.address.role in CALL_GRADIENTS:
            self.gradients.append(asked.address)

    def of(self, name: NameOfModule) -> ModuleInterest:
        key = name.index, len(name.entry.names)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._find([name.path, *name.entry.paths])
        return found

    def _find(self, paths: list[str]) -> ModuleInterest:
        meant = [(a, path) for a in self.asked if (path := _first(a.address, paths)) is not None]
        return ModuleInterest(
            tuple(a.address for a, _ in meant if _is_kept(a, "in")),
            tuple(a.address for a, _ in meant if _is_kept(a, "out")),
            tuple(a for a in self.gradients if _first(a, paths) is not None),
            tuple((a, path) for a, path in meant if _has_callbacks(a, "in")),
            tuple((a, path) for a, path in meant if _has_callbacks(a, "out")),
        )


class _Ops:
    """What is wanted of ops, by their names."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        # By id, with the op, so that no other gets its id.
        self._known: dict[int, tuple[Any, OpInterest]] = {}

    def add(self, asked: Asked) -> None:
        if asked.address.role in _SIDES:
            self.asked.append(asked)

    def of(self, op: Any) -> OpInterest:
        known = self._known.get(id(op))
        if known is None:
            known = self._known[id(op)] = op, self._find(str(op))
        return known[1]

    def names(self) -> list[str]:
        """Return the names of the ops that it was asked about, which are all that ran."""
        return [str(op) for op, _ in self._known.values()]

    def _find(self, name: str) -> OpInterest:
        meant = [a for a in self.asked if matches_op(a.address.path, name)]
        return OpInterest(
            tuple(a.address for a in meant if _is_kept(a, "in")),
            tuple(a.address for a in meant if _is_kept(a, "out")),
            tuple(a for a in meant if a.callbacks is not None),
        )


class Interest:
    """What a recording wants, by op, module, tensor and label; in `ledger` what became of it."""

    def __init__(self, asked: Iterable[Asked] = ()) -> None:
        self.asked = tuple(asked)
        self.ledger = Ledger(map(_ADDRESS, self.asked))
        self._modules = _Modules()
        self._ops = _Ops()
        self._tensors: list[tuple[Address, Callable[[str], bool]]] = []
        self._of_label: dict[Label, tuple[Asked, ...]] = {}
        # Whether anything is wanted at all, so that nobody has to ask for each op or call.
        self.keeps_calls = self.keeps_ops = False
        self.takes_inputs = self.takes_calls = self.takes_ops = False
        # Loops and no generators: most traces ask for nothing.
        for asked_for in self.asked:
            self._add(asked_for)
        for call in self._modules.asked:
            self.keeps_calls |= call.keeps
            self.takes_inputs |= _has_callbacks(call, "in")
            self.takes_calls |= call.callbacks is not None
        for op in self._ops.asked:
            self.keeps_ops |= op.keeps
            self.takes_ops |= op.callbacks is not None
        self.follows_tensors = bool(self._tensors or self._modules.gradients)

    def _add(self, asked: Asked) -> None:
        address = asked.address
        if address.kind == "op":
            self._ops.add(asked)
        elif address.kind == "path":
            self._modules.add(asked)
            if address.role in TENSOR_ROLES:
                self._tensors.append((address, compile_path(address.path)))

    def of_module(self, name: NameOfModule) -> ModuleInterest:
        """Return what is wanted of the calls of a module."""
        return self._modules.of(name) if self.asked else _NO_CALLS

    def of_op(self, op: Any) -> OpInterest:
        """Return what is wanted of an op, whose text is its name."""
        return self._ops.of(op) if self.asked else _NO_OPS

    def ops_that_ran(self) -> list[str]:
        """Return the names of the ops that ran, if any op was asked for."""
        return self._ops.names()

    def of_tensor(self, path: str) -> list[Address]:
        """Return the addresses, each with a role, that name a parameter or buffer."""
        return [address for address, is_meant in self._tensors if is_meant(path)]

    def of_label(self, label: Label) -> tuple[Asked, ...]:
        """Return what names a variable, tap or gradient, or what was made of one."""
        if not self.asked:
            return ()
        found = self._of_label.get(label)
        if found is None:
            test = is_named if label.stage is None else is_made_of
            found = tuple(a for a in self.asked if test(a.address, label))
            self._of_label[label] = found
        return found


_NO_CALLS = ModuleInterest((), (), (), (), ())
_NO_OPS = OpInterest((), (), ())
# Of most traces; nothing is ever noted in it, as it has no address.
_NOTHING = Interest()


def interest_of(request: Request, is_variable: Callable[[Address], bool]) -> Interest:
    """Compile the addresses of a request.

    `is_variable` says of an address that it can name a variable alone, so that no call keeps data
    for it.
    """
    if not (request.capture or request.followed):
        return _NOTHING
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
    return next(filter(compile_path(address.path), paths), None)

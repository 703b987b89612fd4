"""A variable that an address names in one function, and the module whose method that function is.

Usually the module is the first argument. Static methods, class methods and functions inside a
method are called without it: then it is the innermost module that runs and has the function.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from clew.address import Segment, segment_matches
from clew.events.vocabulary import VARIABLE, Label
from clew.observe.variables.frames.functions import methods
from clew.record.recorder import Recorder
from clew.record.thread_state import NAME

RETURN = "return"


@dataclass(frozen=True, slots=True)
class WantedVariable:
    """A variable of one function, by its name or a pattern, and the path to follow inside it.

    `address` is the text that asks for it, `called` the name that the address has for the variable
    where that is not its own: `self`; `function` is the function as addresses name it. `owners` are
    the modules whose method it is, by id, with the path of each; None for any caller. `gets_owner`
    says whether the function is called with one of them as its first argument.
    """

    address: str
    name: Segment
    inside: tuple[Segment, ...]
    called: str = ""
    function: str = ""
    owners: dict[int, str] | None = None
    gets_owner: bool = False

    def path_of(self, owner: object, function: FunctionType, recorder: Recorder) -> str | None:
        """Return the path of the module whose function runs; None if it is not an owner."""
        if self.owners is None:
            return ""
        if self.gets_owner:
            return self.owners.get(id(owner))
        for call in reversed(recorder.thread().stack):
            module = None if call[NAME] is None else call[NAME].entry.ref()
            if id(module) in self.owners:
                return self.owners[id(module)]
            if self._has(module, function):
                return None
        return next(iter(self.owners.values()))

    def path_in_compiled(self, path: str, function: FunctionType, recorder: Recorder) -> str | None:
        """Return the same in compiled code, which knows the first argument's path and no stack."""
        if self.owners is None:
            return ""
        paths = list(self.owners.values())
        if self.gets_owner:
            return path if path in paths else None
        entries = recorder.modules.entries.values()
        is_shared = sum(self._has(entry.ref(), function) for entry in entries) > 1
        return None if is_shared else paths[0]

    def _has(self, module: Any, function: FunctionType) -> bool:
        found = methods(module, self.function.split(".")[:1])
        return any(match.function is function for match in found)


class WantedVariables:
    """The variables that are wanted of one function."""

    def __init__(self, wanted: Iterable[WantedVariable] = ()) -> None:
        self.all = list(wanted)
        self._named: dict[str, tuple[WantedVariable, ...]] = {}

    def add(self, wanted: WantedVariable) -> bool:
        """Add a variable, or the owners of one that is here already; return whether it is new."""
        for known in self.all:
            if (known.address, known.name, known.inside) == (
                wanted.address, wanted.name, wanted.inside,
            ):  # fmt: skip
                if known.owners is not None and wanted.owners is not None:
                    known.owners.update(wanted.owners)
                return False
        self.all.append(wanted)
        self._named.clear()
        return True

    def named(self, name: str) -> tuple[WantedVariable, ...]:
        """Return what is wanted of the variable of this name."""
        found = self._named.get(name)
        if found is None:
            found = tuple(wanted for wanted in self.all if segment_matches(wanted.name, name))
            self._named[name] = found
        return found


@dataclass(frozen=True, slots=True)
class Function:
    """A function whose variables are followed.

    `owner` is the path of the module whose method it is, None for any other. `name` is what comes
    after that, or after the file, in an address: `forward`, `Dataset.load`, "" for the top level.
    """

    file: str
    package: str
    owner: str | None
    name: str
    _labels: dict[str, Label] = field(default_factory=dict)

    def label(self, variable: str) -> Label:
        """Return the label of a variable: `layers.0.forward.attn`, `data.py:load.video`."""
        label = self._labels.get(variable)
        if label is None:
            if self.owner is not None:
                stem = join_names(self.owner, self.name, variable)
                label = Label(VARIABLE, stem, variable, module=self.owner)
            else:
                stem = f"{os.path.basename(self.file)}:{join_names(self.name, variable)}"
                label = Label(VARIABLE, stem, variable, file=self.file, package=self.package)
            self._labels[variable] = label
        return label


def join_names(*names: str) -> str:
    """Join names with dots, except before a bracket; leave out empty ones."""
    text = ""
    for name in names:
        text += name if not text or not name or name.startswith("[") else f".{name}"
    return text

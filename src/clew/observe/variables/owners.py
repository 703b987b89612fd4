"""The module that a running method belongs to, where several modules have the method.

Usually it is the first argument. Static methods, class methods and functions inside a method are
called without their module: then it is the innermost module that runs and has the function.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import FunctionType
from typing import Any

from clew.address import Address, Segment
from clew.observe.variables.frames.functions import methods
from clew.record.recorder import Recorder
from clew.record.thread_state import NAME


@dataclass(slots=True)
class WantedVariable:
    """What an address asks of one function: a variable, and a path inside it.

    `stem` is the function as an address names it. `owners` are the modules whose method it is, by
    id, with the path of each; None for any caller. `gets_owner` says whether the function is called
    with one of them as its first argument. `called` is what the address calls the variable, if not
    by its name: `self`.
    """

    address: Address
    name: Segment
    rest: tuple[Segment, ...]
    stem: str
    owners: dict[int, str] | None
    gets_owner: bool
    called: str = ""

    def path_of(self, owner: object, function: FunctionType, recorder: Recorder) -> str | None:
        """Return the path of the module whose function runs; None if it is not one of `owners`."""
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
        found = methods(module, self.stem.split(".")[:1])
        return any(match.function is function for match in found)

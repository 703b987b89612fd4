"""Find the model that gives the names, by the name it has in the program, once it exists.

Input: `model`, `trainer.model` or `package.module:model`. Output: a module. The program is only
looked at: no property of it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from torch import nn

from clew.events.model import Gap
from clew.frame_locals import some_locals
from clew.record.module_registry import ModuleTable


class LateModel:
    """A model that the program makes while it is recorded.

    A name without a module is a global of `__main__`, or a variable of a function that runs when a
    module is called; of several, that of the outermost function.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        module, _, path = name.rpartition(":")
        self._module = module or "__main__"
        self._is_anywhere = not module
        self._path = path.split(".")
        self._is_found = False

    def name_in(self, modules: ModuleTable) -> None:
        """Use the names of the model, if it exists by now."""
        if not self._is_found:
            model = self._find()
            if model is not None:
                self._is_found = True
                modules.give_late(model, "")

    def gap(self) -> Gap | None:
        """Return what is missing if there never was such a model."""
        if self._is_found:
            return None
        of_program = vars(sys.modules.get("__main__", object))
        there = sorted(name for name, found in of_program.items() if isinstance(found, nn.Module))
        others = f"; modules in __main__: {', '.join(there[:5])}" if there else ""
        return Gap(
            f"model {self._name!r}",
            "",
            "no module had this name when one was called",
            "give the name of a variable in the program, or package.module:name; without --model "
            f"modules are named by their class{others}",
        )

    def _find(self) -> nn.Module | None:
        first, *rest = self._path
        for holder in self._holders(first):
            found = holder
            for name in rest:
                found = _attribute(found, name)
            if isinstance(found, nn.Module):
                return found
        return None

    def _holders(self, name: str) -> Iterator[Any]:
        """Yield what has a name: the global, then variables of functions, the outermost first."""
        yield vars(sys.modules.get(self._module, object)).get(name)
        if self._is_anywhere:
            frames: list[FrameType] = []
            frame: FrameType | None = sys._getframe(1)
            while frame is not None:
                if name in frame.f_code.co_varnames or name in frame.f_code.co_cellvars:
                    frames.append(frame)
                frame = frame.f_back
            for frame in reversed(frames):
                yield some_locals(frame, (name,))[0]


def _attribute(holder: Any, name: str) -> Any:
    """Return an attribute or a part of a module, without running a property."""
    held = getattr(holder, "__dict__", {})
    if name in held:
        return held[name]
    parts = held.get("_modules")
    return parts.get(name) if isinstance(parts, dict) else None

"""Module calls as they end, told to somebody and recorded nowhere, at the price of a hook.

In come calls of `nn.Module`s, by the global hook that leaves fused fast paths on; out go the
modules, or their paths where compiled code ran, which tells of them by an operator. Also which of
its names a module is being called by.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from clew.capture.compiled import silence_extra_call
from clew.capture.sources import first_argument
from clew.capture.torch_compat import WRAPPED_CALL

_numbers = itertools.count()
# Who listens, by number: compiled code that outlives its listener tells nobody.
listeners: dict[int, Callable[[Any], None]] = {}


def listen(paths: Mapping[int, str], ended: Callable[[Any], None]) -> Callable[[], None]:
    """Tell of each module call that ends, well or with an error; returns what ends it.

    `ended` gets the module, on the thread of the call. Inside compiled code it gets the path that
    `paths` has for the module's id; modules without one are not told of there.
    """
    is_compiling = torch.compiler.is_dynamo_compiling
    number = next(_numbers)

    def leave(module: nn.Module, args: Any, result: Any) -> None:
        if is_compiling():
            path = paths.get(id(module))
            if path is not None:
                _tell_compiled([result, args], number, path)
            return
        ended(module)

    listeners[number] = ended
    audible = silence_extra_call()
    handle = register_module_forward_hook(leave, always_call=True)

    def end() -> None:
        handle.remove()
        audible()
        listeners.pop(number, None)

    return end


def _tell_compiled(values: list[Any], number: int, path: str) -> None:
    """What Dynamo traces instead; it runs this import as it traces."""
    from clew.capture import compiled_taps

    compiled_taps.called(values, number, path)


class CalledNames:
    """The names of models' modules; one in several places goes by that which is being called."""

    def __init__(self) -> None:
        self._names: WeakKeyDictionary[nn.Module, list[str]] = WeakKeyDictionary()
        # By the ids of their hooks, which the replicas that nn.DataParallel makes have in common.
        self._originals: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()

    def add(self, model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
        """Know a model's modules; out comes each of them under each of its names."""
        modules: Iterator[tuple[str, nn.Module]] = model.named_modules(remove_duplicate=False)
        for name, module in modules:
            known = self._names.setdefault(module, [])
            if name not in known:
                known.append(name)
            self._originals[id(module._forward_hooks)] = module
            yield name, module

    def original(self, module: nn.Module) -> nn.Module | None:
        """The module that is known: this one, or the one that it replicates."""
        if module in self._names:
            return module
        return self._originals.get(id(module._forward_hooks))

    def of(self, module: nn.Module) -> str:
        """The name within the module that is calling this one, the nearest if there are several."""
        names = self._names.get(module) or [""]
        if len(names) == 1:
            return names[0]
        caller = _caller_of(module)
        above = "" if caller is None else self.of(caller)
        inside = [name for name in names if name.startswith(above and above + ".")]
        return min(inside or names[:1], key=len)


def _caller_of(module: nn.Module) -> Any:
    """The module whose call the running call of `module` is in, None outside any."""
    frame: FrameType | None = sys._getframe(1)
    running = False
    while frame is not None:
        if frame.f_code is WRAPPED_CALL:
            found = first_argument(frame)
            if running and found is not module:
                return found
            running = running or found is module
        frame = frame.f_back
    return None

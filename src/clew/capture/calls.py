"""Module calls as they end, told to somebody and recorded nowhere, at the price of a hook.

In come calls of `nn.Module`s, by the global hook that leaves fused fast paths on, and out of
compiled code by an operator; out go the paths of the modules, each that by which it is called.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable
from types import FrameType, MethodType
from typing import Any
from weakref import WeakKeyDictionary, WeakMethod, WeakValueDictionary, finalize

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from clew.capture.compiled import silence_extra_call
from clew.capture.sources import first_argument
from clew.capture.torch_compat import WRAPPED_CALL

numbers = itertools.count()
# Who listens, by number: compiled code that outlives its listener tells nobody.
listeners: dict[int, Callable[[str], None]] = {}


def listen(known: KnownModules, ended: Callable[[str], None]) -> Callable[[], None]:
    """Tell the path of each known module whose call ends, well or with an error.

    On the thread of the call; returns what ends it. A method's object is free to go, and hears no
    more then.
    """
    is_compiling = torch.compiler.is_dynamo_compiling
    number = next(numbers)

    def leave(module: nn.Module, args: Any, result: Any) -> None:
        if is_compiling():
            compiled = known.paths.get(id(module))
            if compiled is not None:
                tell_compiled([result, args], number, compiled)
            return
        path = known.path_of(module)
        if path is not None:
            tell(path)

    def end() -> None:
        if listeners.pop(number, None) is not None:
            handle.remove()
            audible()

    tell = _weakly(ended, end) if isinstance(ended, MethodType) else ended
    listeners[number] = tell
    audible = silence_extra_call()
    handle = register_module_forward_hook(leave, always_call=True)
    return end


def _weakly(ended: MethodType, end: Callable[[], None]) -> Callable[[str], None]:
    reference = WeakMethod(ended, lambda gone: end())

    def tell(path: str) -> None:
        method = reference()
        if method is not None:
            method(path)

    return tell


def tell_compiled(values: list[Any], number: int, path: str) -> None:
    """What Dynamo traces to tell a listener as the code runs; it runs this import as it traces."""
    from clew.capture import compiled_taps

    compiled_taps.called(values, number, path)


class KnownModules:
    """Some modules of models, by the path that each is being called by; `root` is a model's own.

    `paths` has the first path of each by its id, for as long as the module lives.
    """

    def __init__(self, root: str = "") -> None:
        self._root = root
        self.paths: dict[int, str] = {}
        self._names: WeakKeyDictionary[nn.Module, list[str]] = WeakKeyDictionary()
        # By the ids of their hooks, which the replicas that nn.DataParallel makes have in common.
        self._originals: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()
        # Ids of modules that have several names.
        self._shared: set[int] = set()

    def add(
        self, model: nn.Module, classes: Iterable[type[nn.Module]] = (nn.Module,),
        names: Iterable[str] | None = None, without: Iterable[str] | None = None,
    ) -> list[tuple[str, nn.Module]]:  # fmt: skip
        """Know modules of a model: of some classes, with one of some names anywhere in the path.

        `without` are names that none of them may have. Each comes out under each of its paths.
        """
        classes, unwanted = tuple(classes), list(without or ())
        wanted = [""] if names is None else list(names)
        found = []
        for name, module in model.named_modules(remove_duplicate=False):
            self._learn(name, module)
            path = name or self._root
            is_named = any(part in path for part in wanted)
            is_named = is_named and not any(part in path for part in unwanted)
            if is_named and isinstance(module, classes):
                found.append((path, module))
                if id(module) not in self.paths:
                    self.paths[id(module)] = path
                    # An id is a module's only while the module lives.
                    finalize(module, self.paths.pop, id(module), None).atexit = False
        return found

    def _learn(self, name: str, module: nn.Module) -> None:
        names = self._names.setdefault(module, [])
        if name not in names:
            names.append(name)
            if len(names) > 1:
                self._shared.add(id(module))
        self._originals[id(module._forward_hooks)] = module

    def path_of(self, module: Any) -> str | None:
        """The path a module, or the one that it replicates, is called by; None if not known.

        Compiled code hands over a path instead of the module, an empty one if it knows none.
        """
        path = self.paths.get(id(module))
        if path is not None and id(module) not in self._shared:
            return path
        if not isinstance(module, nn.Module):
            return (module or None) if isinstance(module, str) else None
        original: nn.Module | None = module
        if module not in self._names:
            original = self._originals.get(id(module._forward_hooks))
        if original is None or id(original) not in self.paths:
            return None
        return self._name_of(original) or self._root

    def _name_of(self, module: nn.Module) -> str:
        """The name within the module that is calling this one, the nearest if there are several."""
        names = self._names.get(module) or [""]
        if len(names) == 1:
            return names[0]
        caller = _caller_of(module)
        above = "" if caller is None else self._name_of(caller)
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

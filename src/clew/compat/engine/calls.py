"""Report module calls as they end to a listener, and record none: the cost is that of a hook.

Input: calls of `nn.Module`s, by the global hook that leaves fused fast paths on, and from compiled
code by an operator. Output: the paths of the modules, each the one by which it is called.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable
from types import FrameType, MethodType
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary, WeakValueDictionary, finalize, ref

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from clew.frame_locals import first_argument
from clew.observe.compiled import silence_extra_call
from clew.torch_compat import WRAPPED_CALL, forward_hooks

_Names: TypeAlias = "WeakKeyDictionary[nn.Module, list[str]]"
numbers = itertools.count()
# Listeners by number: compiled code that outlives its listener calls nobody.
listeners: dict[int, Callable[[str], None]] = {}


def listen(known: KnownModules, ended: Callable[[str], None]) -> Callable[[], None]:
    """Call `ended` with the path of each known module whose call ends, well or with an error.

    `ended` runs on the thread of the call. Return a function that stops this. If `ended` is a
    method, its object is referenced weakly, and this stops when the object is gone.
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
    """Call a method for as long as its object lives, and `end` when it goes.

    Not by a `WeakMethod`, which fails when it is collected in one cycle with its object.
    """
    method, owner = ended.__func__, ref(ended.__self__, lambda gone: end())

    def tell(path: str) -> None:
        found = owner()
        if found is not None:
            method(found, path)

    return tell


def tell_compiled(values: list[Any], number: int, path: str) -> None:
    """Call a listener as compiled code runs; Dynamo traces this."""
    # Here, as Dynamo runs it while it traces; programs that compile nothing do without it.
    from clew.compat.engine import compiled_calls

    compiled_calls.called(values, number, path)


def is_wanted(
    module: nn.Module, path: str,
    classes: type[nn.Module] | Iterable[type[nn.Module]] = nn.Module,
    names: Iterable[str] | None = None, without: Iterable[str] | None = None,
) -> bool:  # fmt: skip
    """Return whether a module is of some classes and has a wanted name in its path.

    A name may be anywhere in the path; the path must have none of the names in `without`.
    """
    return (
        isinstance(module, classes if isinstance(classes, type) else tuple(classes))
        and (names is None or any(part in path for part in names))
        and not any(part in path for part in without or ())
    )


class KnownModules:
    """Some modules of models, by the path that each is being called by; `root` is a model's own.

    `paths` has the first path of each by its id, for as long as the module lives. One that is made
    known again has the path that it has then.
    """

    def __init__(self, root: str = "") -> None:
        self._root = root
        self.paths: dict[int, str] = {}
        # The names in the model that a module was made known with.
        self._names: WeakKeyDictionary[nn.Module, _Names] = WeakKeyDictionary()
        # By the ids of their hooks, which the replicas that nn.DataParallel makes have in common.
        self._originals: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()
        # Ids of modules that have several names.
        self._shared: set[int] = set()

    def add(
        self, model: nn.Module, wanted: Callable[..., bool] = is_wanted, *how: Any
    ) -> list[tuple[str, nn.Module]]:
        """Add those modules of a model that are wanted, each with the first path that is.

        `wanted` is called with a module, a path and whatever else is given here.
        """
        names: _Names = WeakKeyDictionary()
        for name, module in model.named_modules(remove_duplicate=False):
            names.setdefault(module, []).append(name)
        found = []
        for module, own in list(names.items()):
            paths = [name or self._root for name in own]
            path = next((path for path in paths if wanted(module, path, *how)), None)
            if path is not None:
                self._learn(module, path, names)
                found.append((path, module))
        return found

    def _learn(self, module: nn.Module, path: str, names: _Names) -> None:
        if module not in self._names:
            # An id is a module's only while the module lives.
            finalize(module, self.paths.pop, id(module), None).atexit = False
        self.paths[id(module)] = path
        self._names[module] = names
        self._originals[id(forward_hooks(module))] = module
        (self._shared.add if len(names[module]) > 1 else self._shared.discard)(id(module))

    def modules(self) -> list[nn.Module]:
        """Return the modules that are known now."""
        return [module for module in self._names if id(module) in self.paths]

    def path_of(self, module: Any) -> str | None:
        """Return the path a module, or the one it replicates, is called by; None if not known."""
        path = self.paths.get(id(module))
        if path is not None and id(module) not in self._shared:
            return path
        if not isinstance(module, nn.Module):
            return None
        original: nn.Module | None = module
        if module not in self._names:
            original = self._originals.get(id(forward_hooks(module)))
        if original is None or id(original) not in self.paths:
            return None
        return _name_of(original, self._names[original]) or self._root


class Hook:
    """A module whose calls are reported until `remove`."""

    def __init__(self, known: KnownModules, module: nn.Module) -> None:
        self._known, self._module = known, ref(module)

    def remove(self) -> None:
        """Stop reporting calls of the module."""
        self._known.paths.pop(id(self._module()), None)


class CallHooks(list[Hook]):
    """A hook for each module whose calls are reported."""

    def __init__(self, root: str = "") -> None:
        self._known = KnownModules(root)
        self._end: Callable[[], None] | None = None

    def hear(
        self, model: nn.Module, found: Iterable[tuple[str, nn.Module]], ended: Callable[[str], None]
    ) -> None:
        """Report calls of some more modules of a model, given with their paths, to `ended`."""
        wanted = set(found)
        self._known.add(model, lambda module, path: (path, module) in wanted)
        self[:] = [Hook(self._known, module) for module in self._known.modules()]
        if self._end is None:
            self._end = listen(self._known, ended)

    def end(self) -> None:
        """Remove all."""
        while self:
            self.pop().remove()
        if self._end is not None:
            self._end()
            self._end = None


def _name_of(module: nn.Module, names: _Names) -> str:
    """Return the name within the module that calls this one, the nearest if there are several."""
    own = names.get(module) or [""]
    if len(own) == 1:
        return own[0]
    caller = _caller_of(module)
    above = "" if caller is None else _name_of(caller, names)
    inside = [name for name in own if name.startswith(above and above + ".")]
    return min(inside or own[:1], key=len)


def _caller_of(module: nn.Module) -> Any:
    """Return the module whose call the running call of `module` is in, None outside any."""
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

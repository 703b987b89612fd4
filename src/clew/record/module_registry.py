"""Name modules and parameters: every module met, every path it has, every parameter it owns.

Input: modules. Output: `ModuleName`s, which records reference. Only weak references to modules are
held.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from torch import nn

# Attributes under which a wrapper holds its module; they add nothing to the module's path.
_WRAPPED = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "module"}
_WRAPPER_CLASSES = {
    "DataParallel",
    "DistributedDataParallel",
    "FullyShardedDataParallel",
    "DeepSpeedEngine",
}


class ModuleEntry:
    """One module object: what all its names share."""

    __slots__ = (
        "calls", "failed", "names", "names_set", "number", "recomputed", "ref", "settings",
        "training", "turn", "wrapper",
    )  # fmt: skip

    def __init__(self, number: int, module: nn.Module, wrapper: bool) -> None:
        self.number = number
        self.ref = weakref.ref(module)
        self.wrapper = wrapper
        self.names: list[ModuleName] = []
        self.calls = 0
        self.failed = 0
        self.recomputed = 0
        # Its attributes when they were last read, and the turn in which that was.
        self.names_set: tuple[str, ...] = ()
        self.settings: tuple[Any, ...] | None = None
        self.training: bool | None = None
        self.turn = -1

    @property
    def paths(self) -> list[str]:
        return [name.path for name in self.names]


class ModuleName:
    """One name of one module; call records reference it."""

    __slots__ = ("cls", "entry", "index", "parent", "path")

    def __init__(self, index: int, path: str, parent: str | None, cls: str, entry: ModuleEntry):
        self.index = index
        self.path = path
        self.parent = parent
        self.cls = cls
        self.entry = entry


# A module, the attribute that holds a parameter or buffer, and the path of that tensor.
_TensorName: TypeAlias = tuple[ModuleEntry, str, str]


class TensorNames:
    """Parameters and buffers of named modules: their paths, and how many elements they have."""

    def __init__(self) -> None:
        # id of a tensor -> its name, which holds while the module has the tensor
        self.by_id: dict[int, _TensorName] = {}
        # Further names of tensors that have several.
        self._others: list[_TensorName] = []
        # Called with tensors that got a name after they may have been recorded.
        self.on_late: Callable[[Any], None] = lambda tensor: None
        # Called with each tensor that gets a name.
        self.on_name: Callable[[str, Any], None] | None = None
        # Returns the number of elements of a parameter, None while it has no shape.
        self.size_of: Callable[[Any], int | None] = lambda tensor: int(tensor.numel())
        self._parameters: list[tuple[str, int, int]] = []
        # Path, owner and attribute of parameters of lazy modules, which get a size at a call.
        self._sizeless: list[tuple[str, ModuleName, str]] = []

    def path(self, tensor: Any) -> str | None:
        """Return the path of a tensor whose id is known, None if it is another by now."""
        entry, attribute, path = self.by_id[id(tensor)]
        module = entry.ref()
        if module is None:
            return None
        return path if _owned(module, attribute) is tensor else None

    def tensors(self) -> list[tuple[str, Any]]:
        """Return every tensor that is still there, with each of its paths."""
        found = []
        for entry, attribute, path in [*self.by_id.values(), *self._others]:
            module = entry.ref()
            if module is not None:
                owned = _owned(module, attribute)
                found += [] if owned is None else [(path, owned)]
        return found

    def parameters(self) -> list[tuple[str, int, int]]:
        """Return path, owner's name index and number of elements of each; shared ones once."""
        pending, self._sizeless = self._sizeless, []
        for path, name, attribute in pending:
            module = name.entry.ref()
            parameter = None if module is None else _owned(module, attribute)
            if parameter is not None:
                self._measure(path, name, attribute, parameter)
        return self._parameters

    def add(self, module: nn.Module, owner: ModuleName, is_new: bool, is_late: bool) -> None:
        """Name the tensors that a module owns; count parameters only if the module `is_new`.

        `is_late` says that they may have been recorded before.
        """
        prefix = owner.path + "." if owner.path else ""
        entry = owner.entry
        if is_late:
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                if tensor is not None:
                    self.on_late(tensor)
        counted = owner if is_new else None
        for attribute, parameter in module._parameters.items():
            if parameter is not None:
                self._name(parameter, (entry, attribute, prefix + attribute), counted)
        for attribute, buffer in module._buffers.items():
            if buffer is not None:
                self._name(buffer, (entry, attribute, prefix + attribute), None)

    def _name(self, tensor: Any, name: _TensorName, owner: ModuleName | None) -> None:
        """Add a name of a tensor; with an `owner`, count it as a parameter if it had no name."""
        _, attribute, path = name
        if id(tensor) in self.by_id and self.path(tensor) is not None:
            self._others.append(name)
        else:  # or a tensor with the same id that is gone
            self.by_id[id(tensor)] = name
            if owner is not None:
                self._measure(path, owner, attribute, tensor)
        if self.on_name is not None:
            self.on_name(path, tensor)

    def _measure(self, path: str, name: ModuleName, attribute: str, parameter: Any) -> None:
        size = self.size_of(parameter)
        if size is None:
            self._sizeless.append((path, name, attribute))
        else:
            self._parameters.append((path, name.index, size))


def _owned(module: nn.Module, attribute: str) -> Any:
    """Return the parameter or buffer of a module, None if it has none of this name."""
    for tensors in (module._parameters, module._buffers):
        if attribute in tensors:
            return tensors[attribute]
    return None


class GivenModel:
    """A model whose names a recording uses; `names` are there once one was asked for."""

    __slots__ = ("cls", "names", "path", "ref")

    def __init__(self, model: nn.Module, path: str) -> None:
        self.path = path
        self.cls = type(model).__name__
        self.ref = weakref.ref(model)
        self.names: list[ModuleName] = []

    def module(self) -> nn.Module | None:
        """Return the model, or the one that has its name now; None if both are gone."""
        return self.names[0].entry.ref() if self.names else self.ref()


class ModuleTable:
    """Every module met, by identity, with every name it has."""

    def __init__(self) -> None:
        self._names: list[ModuleName] = []
        # The models given get their names when one is first asked for: many blocks run none.
        self.models: list[GivenModel] = []
        self._unnamed: list[GivenModel] = []
        self._is_named = True
        self._naming = threading.RLock()
        self.owned = TensorNames()
        self._entries: dict[int, ModuleEntry] = {}
        # Finds the entry of a module by its id, quickly; of one that has no name yet there is none.
        self.entry_of = self._entries.get
        self._entry_count = 0
        # Called with each wrapper met around a module that was already known.
        self.on_wrapper: Callable[[nn.Module], None] = lambda module: None
        # Called with each module that gets a name.
        self.on_module: Callable[[str, Any], None] | None = None
        self._root_names: dict[str, int] = {}
        self._unowned: dict[tuple[str, int], str] = {}
        # True once modules may have been deleted.
        self._started = False

    @property
    def names(self) -> list[ModuleName]:
        """Return every name of every module."""
        self._name_given()
        return self._names

    @property
    def called(self) -> list[ModuleName]:
        """Return the names of modules that were called."""
        return [name for name in self._names if name.entry.calls]

    @property
    def entries(self) -> dict[int, ModuleEntry]:
        """Return every module, by its id."""
        self._name_given()
        return self._entries

    def give(self, model: nn.Module, path: str) -> None:
        """Use the names of a model and of everything inside it."""
        given = GivenModel(model, path)
        self.models.append(given)
        self._unnamed.append(given)
        self._is_named = False

    def _name_given(self) -> None:
        """Name the models that were given; other threads wait until all have names."""
        if self._is_named:
            return
        with self._naming:
            pending, self._unnamed = self._unnamed, []
            for given in pending:
                model, known = given.ref(), len(self._names)
                if model is not None:
                    self.register(model, given.path)
                    given.names = self._names[known:]
            if pending:  # and this is not called by what gets the names
                self._is_named = True

    @property
    def parameters(self) -> list[tuple[str, int, int]]:
        """Return path, owner's name index and number of elements of each; shared ones once."""
        self._name_given()
        return self.owned.parameters()

    def register(self, model: nn.Module, path: str) -> None:
        """Name a model and everything inside it, a shared module once for each path."""
        pending: list[tuple[str, str | None, nn.Module, tuple[int, ...]]] = [
            (path, None, model, ())
        ]
        while pending:
            path, parent, module, above = pending.pop()
            children = module._modules
            wrapper = False
            if children:
                above = (*above, id(module))
                # The dictionaries of a scripted module have little more than `items`.
                for attribute, child in reversed(list(children.items())):
                    # A module that contains itself is entered once.
                    if child is not None and id(child) not in above:
                        if attribute in _WRAPPED and _is_wrapped(attribute, module):
                            wrapper = True
                            inside = path
                        else:
                            inside = f"{path}.{attribute}" if path else attribute
                        pending.append((inside, path, child, above))
            self._add(module, path, parent, wrapper)

    def name_of(self, module: nn.Module, caller: ModuleName | None, place: int) -> ModuleName:
        """Return the name of a module that fits the module that calls it."""
        if not self._is_named:
            self._name_given()
        entry = self._entries.get(id(module))
        if entry is None or entry.ref() is not module:
            return self._discover(module, caller, place)
        if len(entry.names) > 1 and caller is not None:
            inside = caller.path + "." if caller.path else ""
            for name in entry.names:
                if name.path.startswith(inside):
                    return name
        return entry.names[0]

    def paths(self) -> dict[int, str]:
        """Return the path of every known module, by its id."""
        return {key: entry.names[0].path for key, entry in self.entries.items()}

    def tensors(self) -> list[tuple[str, Any]]:
        """Return every parameter and buffer that has a name, with each of its paths."""
        self._name_given()
        return self.owned.tensors()

    def tensor_name(self, tensor: Any) -> str | None:
        """Return the path of a parameter or buffer, None for any other tensor."""
        if not self._is_named:
            self._name_given()
        # Mostly the result of an op, which has none.
        return self.owned.path(tensor) if id(tensor) in self.owned.by_id else None

    def _discover(self, module: nn.Module, caller: ModuleName | None, place: int) -> ModuleName:
        """Name a module that was not there when the recording began."""
        self._started = True
        owner = caller.entry.ref() if caller is not None else None
        if owner is not None and caller is not None:
            for attribute, child in owner._modules.items():
                if child is module:
                    self.register(module, _join(caller.path, attribute, owner))
                    return self._entries[id(module)].names[0]
        wrapped = self._wrapped_by(module)
        if wrapped is not None:
            # Wrapped after the module inside it got its name: both have the same name.
            for name in wrapped.names:
                self._add(module, name.path, name.parent, True)
            self.on_wrapper(module)
            return self._entries[id(module)].names[0]
        cls = type(module).__name__
        # A temporary module made anew on every pass keeps the name of its call site.
        path = self._unowned.get((cls, place))
        if path is None or self._heir(path, cls) is None:
            count = self._root_names[cls] = self._root_names.get(cls, 0) + 1
            path = self._unowned[cls, place] = cls if count == 1 else f"{cls}#{count}"
        self.register(module, path)
        return self._entries[id(module)].names[0]

    def _heir(self, path: str, cls: str) -> ModuleEntry | None:
        """Return the entry of a module that had this path and class, and is gone."""
        for name in self._names:
            if name.path == path and name.cls == cls and name.entry.ref() is None:
                return name.entry
        return None

    def _wrapped_by(self, module: nn.Module) -> ModuleEntry | None:
        """Return the entry of the known module that this one wraps, None if it wraps none."""
        child = wrapped_in(module)
        entry = None if child is None else self._entries.get(id(child))
        return entry if entry is not None and entry.ref() is child else None

    def _add(self, module: nn.Module, path: str, parent: str | None, wrapper: bool) -> None:
        cls = type(module).__name__
        entry = self._entries.get(id(module))
        if entry is None or entry.ref() is not module:
            heir = self._heir(path, cls) if self._started else None
            if heir is not None:
                heir.ref = weakref.ref(module)
                self._entries[id(module)] = heir
                name = next(name for name in heir.names if name.path == path)
                self.owned.add(module, name, is_new=False, is_late=True)
                return
            entry = self._entries[id(module)] = ModuleEntry(self._entry_count, module, wrapper)
            self._entry_count += 1
        name = ModuleName(len(self._names), path, parent, cls, entry)
        entry.names.append(name)
        self._names.append(name)
        if self.on_module is not None:
            self.on_module(path, module)
        if module._parameters or module._buffers:
            self.owned.add(module, name, is_new=True, is_late=self._started)


def _join(path: str, attribute: str, owner: nn.Module) -> str:
    if _is_wrapped(attribute, owner):
        return path
    return f"{path}.{attribute}" if path else attribute


def wrapped_in(module: nn.Module) -> nn.Module | None:
    """Return the module that a wrapper wraps, None if it is no wrapper."""
    children = module._modules
    found = (children[name] for name in _WRAPPED if name in children and _is_wrapped(name, module))
    return next(found, None)


def _is_wrapped(attribute: str, owner: nn.Module) -> bool:
    # A user's module may have an attribute called `module`.
    return attribute in _WRAPPED and (
        attribute != "module" or type(owner).__name__ in _WRAPPER_CLASSES
    )

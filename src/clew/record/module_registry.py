"""Name modules: every module met, with every path it has.

Input: modules. Output: `ModuleName`s, which records reference. Only weak references to modules are
held.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from clew.record.model_names import WRAPPED, ModelNames, is_wrapped, names_now, walk
from clew.record.tensor_names import TensorNames, path_of

if TYPE_CHECKING:
    from torch import nn

    from clew.record.native_names import NamingRecording, NativeNames


class ModuleEntry:
    """One module object: what all its names share."""

    __slots__ = (
        "calls", "failed", "names", "names_set", "number", "recomputed", "ref", "settings",
        "training", "turn", "wrapper",
    )  # fmt: skip

    def __init__(self, number: int, ref: weakref.ref[nn.Module], wrapper: bool) -> None:
        self.number = number
        self.ref = ref
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


class GivenModel:
    """A model whose names a recording uses; `names` are there once one was asked for."""

    __slots__ = ("cls", "names", "path", "ref", "waits")

    def __init__(self, model: nn.Module, path: str) -> None:
        self.path = path
        self.cls = type(model).__name__
        self.ref = weakref.ref(model)
        self.names: list[ModuleName] = []
        # Whether nobody has begun to name its modules.
        self.waits = True

    def module(self) -> nn.Module | None:
        """Return the model, or the one that has its name now; None if both are gone."""
        return self.names[0].entry.ref() if self.names else self.ref()


class ModuleTable:
    """Every module met, by identity, with every name it has."""

    def __init__(self) -> None:
        # There is one if the native engine records module calls.
        self._native: NativeNames | None = None
        self._names: list[ModuleName] = []
        # The models given get their names when one is first asked for: many blocks run none.
        self.models: list[GivenModel] = []
        self._is_named = True
        self._naming = threading.RLock()
        self.owned = TensorNames()
        self._entries: dict[int, ModuleEntry] = {}
        self._entry_count = 0
        # Called with each wrapper met around a module that was already known.
        self.on_wrapper: Callable[[nn.Module], None] = lambda module: None
        # Called with each module that gets a name.
        self.on_module: Callable[[str, Any], None] | None = None
        # The classes of all modules that have a name.
        self.classes: set[type] = set()
        # Paths of modules that no other owns, by class; each with the call site that it names.
        self._unowned: dict[str, dict[str, int]] = {}
        # True once modules may have been deleted.
        self._started = False

    @property
    def names(self) -> list[ModuleName]:
        """Return every name of every module."""
        self.name_given()
        return self._names

    @property
    def called(self) -> list[ModuleName]:
        """Return the names of modules that were called."""
        if self._used() is not None:
            self.name_given()
        return [name for name in self._names if name.entry.calls]

    @property
    def entries(self) -> dict[int, ModuleEntry]:
        """Return every module, by its id."""
        self.name_given()
        return self._entries

    @property
    def entry_of(self) -> Callable[[int], ModuleEntry | None]:
        """Return what finds the entry of a module by its id, None while it has no name."""
        return self._entries.get

    def give(self, model: nn.Module, path: str) -> None:
        """Use the names of a model and of everything inside it."""
        self.models.append(GivenModel(model, path))
        self._is_named = False

    def give_late(self, model: nn.Module, path: str) -> None:
        """Use the names of a model that is there only now; modules that ran before keep theirs."""
        self.name_given()
        self._started = True
        given = GivenModel(model, path)
        known = len(self._names)
        self.register(model, path)
        given.names = self._names[known:]
        given.waits = False
        self.models.append(given)

    def use_native(self, names: NativeNames) -> None:
        """Have the native engine use the names of the model given that earlier recordings found."""
        self._native = names

    def any_compiled(self, is_compiled: Callable[[nn.Module], bool], compiled_call: str) -> bool:
        """Return whether a module of the models given is compiled, as `is_compiled` says.

        That is the case for a wrapper, and for a module that sets the attribute `compiled_call`.
        """
        known = self._known()
        if known is None:
            refs = [name.entry.ref for name in self.names]
        elif known.checked.any_sets(compiled_call):
            return True
        else:
            refs = known.wrappers
        return any(is_compiled(module) for ref in refs if (module := ref()) is not None)

    def has_run(self, given: GivenModel) -> bool:
        """Return whether a model given, or a module inside it, was called."""
        if self._native is not None and self._used() is not None:
            return self._native.recording.has_calls()
        return any(name.entry.calls for name in given.names)

    def _known(self) -> ModelNames | None:
        """Return names that hold and have no objects yet."""
        return None if self._is_named or self._native is None else self._native.unchanged()

    def _used(self) -> ModelNames | None:
        """Return the names that the native engine uses and that have no objects yet."""
        return None if self._is_named or self._native is None else self._native.used()

    def name_given(self) -> None:
        """Name the models that were given; other threads wait until all have names."""
        if self._is_named:
            return
        with self._naming:
            pending = [given for given in self.models if given.waits]
            for given in pending:
                given.waits = False
            for given in pending:
                known = len(self._names)
                self._name(given)
                given.names = self._names[known:]
            if pending:  # and this is not called by what gets the names
                self._is_named = True

    def _name(self, given: GivenModel) -> None:
        """Name a model that was given, by the names that it is known to have."""
        model, used = given.ref(), self._used()
        if self._native is None:
            if model is not None:
                self.register(model, given.path)
            return
        if used is None and model is not None:
            used = names_now(model, given.path, self.owned.sizes_of, self._native.engine)
        if used is not None:
            self._adopt(used, self._native.recording if len(self.models) == 1 else None)

    def _adopt(self, model: ModelNames, recording: NamingRecording | None) -> None:
        """Make objects of the names of a model; `recording` gets them, if it is the only model."""
        by_number: dict[int, ModuleEntry] = {}
        entries: dict[int, ModuleEntry] = {}
        names: list[ModuleName] = []
        for ref, path, parent, cls, number, wrapper in model.rows:
            module = ref()
            # A module of two models has one entry.
            entry = by_number.get(number) or self._entries.get(id(module))
            if entry is None:
                entry = ModuleEntry(self._entry_count, ref, wrapper)
                self._entry_count += 1
            by_number[number] = entry
            if module is not None:
                self.classes.add(type(module))
                entries[id(module)] = entry
            name = ModuleName(len(self._names) + len(names), path, parent, cls, entry)
            entry.names.append(name)
            names.append(name)
        if recording is not None and model.checked is not None:
            # Before anybody finds them here: from then on the calls are counted here.
            recording.named(model.checked, names)
        self._names += names
        self._entries.update(entries)
        self.owned.adopt(model, names)
        if self.on_module is not None:
            for ref, path, *_ in model.rows:
                self.on_module(path, ref())

    @property
    def parameters(self) -> list[tuple[str, int, int]]:
        """Return path, owner's name index and number of elements of each; shared ones once."""
        self.name_given()
        return self.owned.parameters()

    def register(self, model: nn.Module, path: str) -> None:
        """Name a model and everything inside it, a shared module once for each path."""
        for module, inside, parent, wrapper in walk(model, path):
            self._add(module, inside, parent, wrapper)
        self.owned.measure()

    def name_of(self, module: nn.Module, caller: ModuleName | None, place: int) -> ModuleName:
        """Return the name of a module that fits the module that calls it."""
        if not self._is_named:
            self.name_given()
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
        known = self._known()
        if known is not None:
            return known.paths
        return {key: entry.names[0].path for key, entry in self.entries.items()}

    def tensors(self) -> list[tuple[str, Any]]:
        """Return every parameter and buffer that has a name, with each of its paths."""
        self.name_given()
        return self.owned.tensors()

    def tensor_name(self, tensor: Any) -> str | None:
        """Return the path of a parameter or buffer, None for any other tensor."""
        if not self._is_named:
            self.name_given()
        # Mostly the result of an op, which has none.
        known = self.owned.by_id.get(id(tensor))
        return None if known is None else path_of(known, tensor)

    def tensor_names(self, tensors: list[Any]) -> list[str | None]:
        """Return the paths of parameters and buffers, None for any other tensor."""
        used = self._used()
        if used is None:
            return [None if tensor is None else self.tensor_name(tensor) for tensor in tensors]
        paths: list[str | None] = used.checked.paths(tensors, used.by_id)
        return paths

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
            self.owned.measure()
            self.on_wrapper(module)
            return self._entries[id(module)].names[0]
        cls = type(module).__name__
        # A temporary module made anew on every pass keeps the name of its call site.
        paths = self._unowned.setdefault(cls, {})
        path = next((path for path, at in reversed(paths.items()) if at == place), None)
        if path is None or self._heir(path, cls) is None:
            path = f"{cls}#{len(paths) + 1}" if paths else cls
            paths[path] = place
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
        # Read once: torch's modules find their attributes slowly.
        parameters, buffers = module._parameters, module._buffers
        if entry is None or entry.ref() is not module:
            self.classes.add(type(module))
            heir = self._heir(path, cls) if self._started else None
            if heir is not None:
                heir.ref = weakref.ref(module)
                self._entries[id(module)] = heir
                name = next(name for name in heir.names if name.path == path)
                self.owned.add(parameters, buffers, name, is_new=False, is_late=True)
                return
            entry = ModuleEntry(self._entry_count, weakref.ref(module), wrapper)
            self._entries[id(module)] = entry
            self._entry_count += 1
        names = self._names
        name = ModuleName(len(names), path, parent, cls, entry)
        entry.names.append(name)
        names.append(name)
        if self._native is not None and len(entry.names) == 2:
            self._native.recording.renamed(entry.names[0].index)
        if self.on_module is not None:
            self.on_module(path, module)
        if parameters or buffers:
            self.owned.add(parameters, buffers, name, is_new=True, is_late=self._started)


def _join(path: str, attribute: str, owner: nn.Module) -> str:
    if is_wrapped(attribute, owner):
        return path
    return f"{path}.{attribute}" if path else attribute


def wrapped_in(module: nn.Module) -> nn.Module | None:
    """Return the module that a wrapper wraps, None if it is no wrapper."""
    children = module._modules
    found = (children[name] for name in WRAPPED if name in children and is_wrapped(name, module))
    return next(found, None)

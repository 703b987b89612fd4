"""The functions that exist now, by their files and modules.

In: a pattern for a file or a module. Out: the functions whose code is of that file, or that were
defined in that module. Searches the modules that are loaded; the heap is walked only where a
module of that name exists. Must not know: how functions are named or followed.
"""

from __future__ import annotations

import functools
import gc
import linecache
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import CellType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias

from clew.address import compile_pattern, has_wildcard, matches_file

_Namespace: TypeAlias = dict[str, Any]

_MOST_NAMESPACES = 16
_MOST_KEPT = 64

# The name by which `multiprocessing` loads the main script into a process that it spawns.
_SPAWNED_MAIN = "__mp_main__"


class Functions:
    """The functions that exist now; used for several addresses, then discarded."""

    def __init__(self) -> None:
        self._all: list[FunctionType] | None = None
        self._fresh: dict[str, list[FunctionType]] = {}

    def everywhere(self) -> list[FunctionType]:
        """Return all functions that exist; finding them takes tens of milliseconds."""
        if self._all is None:
            self._all = [found for found in gc.get_objects() if type(found) is FunctionType]
            if gc.get_freeze_count():
                self._all = _with_frozen(self._all, _modules.namespaces())
        return self._all

    def of(self, where: str, *, fresh: bool = False) -> list[FunctionType]:
        """Return those of a file or module, by a pattern for its name.

        Only a `fresh` search finds functions that were made inside others since the last one. Code
        that no loaded module has (a cell, text that was executed) is found if it runs now or if its
        text is known, see `at_all`.
        """
        found = self._fresh.get(where)
        if found is not None:
            return found
        namespaces = _namespaces(where)
        if _is_elsewhere(where) or len(namespaces) > _MOST_NAMESPACES:
            found = self.at_all(where)
        elif not namespaces:
            return []
        else:
            known = None if fresh else _known(where, namespaces)
            if known is not None:
                return known
            is_meant = _meant(where)
            held = [f for f in gc.get_referrers(*namespaces) if type(f) is FunctionType]
            if gc.get_freeze_count():
                held = _with_frozen(held, namespaces)
            found = [function for function in held if is_meant(function)]
            _keep(where, namespaces, found)
        self._fresh[where] = found
        return found

    def at_all(self, where: str) -> list[FunctionType]:
        """Return those of a file or module, wherever their code comes from.

        If there are none, do not search again until another module is loaded.
        """
        if where in _modules.without_functions():
            return []
        is_meant = _meant(where)
        found = [function for function in self.everywhere() if is_meant(function)]
        if not found:
            _modules.without_functions().add(where)
        return found


# What leads from the namespace of a module to the functions that are defined in it.
_LEADS = (
    FunctionType, MethodType, CellType, staticmethod, classmethod, property, functools.partial,
    functools.cached_property, type(functools.cache(print)),
)  # fmt: skip


def _with_frozen(found: list[FunctionType], namespaces: list[_Namespace]) -> list[FunctionType]:
    """Add the functions that modules hold, behind decorators and in classes too.

    After `gc.freeze()` the collector, which finds functions, does not know of those made before.
    """
    functions = {id(function): function for function in found}
    names = {namespace.get("__name__") for namespace in namespaces}
    waiting: list[object] = [v for namespace in namespaces for v in list(namespace.values())]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if type(one) is FunctionType:
            functions.setdefault(id(one), one)
            waiting += [*(one.__closure__ or ()), *one.__dict__.values()]
        elif issubclass(type(one), type):  # `isinstance` would run code of what poses as a class
            if vars(one).get("__module__") in names:
                waiting += vars(one).values()
        elif issubclass(type(one), _LEADS):
            waiting += [found for held in gc.get_referents(one) for found in _held_by(held)]
    return list(functions.values())


def _held_by(one: object) -> Iterable[object]:
    """Return what a dictionary of attributes holds, else the object itself."""
    return one.values() if type(one) is dict else (one,)


def is_file(where: str) -> bool:
    """Return whether the place of an address is a file, not a module."""
    return where.endswith(".py") or "/" in where


def _test(where: str) -> Callable[[str], bool]:
    """Return a test of the names of files, or of modules, for the place of an address."""
    if not is_file(where):
        return compile_pattern(where)
    last = where.rpartition("/")[2]
    plain = "" if has_wildcard(last) else last
    return lambda file: file.endswith(plain) and matches_file(where, file)


def _meant(where: str) -> Callable[[FunctionType], bool]:
    """Return a test of functions for their place; each file and module is tested once."""
    is_meant = functools.cache(_test(where))
    place = _file if is_file(where) else _module
    return lambda function: is_meant(place(function))


def _file(function: FunctionType) -> str:
    return function.__code__.co_filename


def _module(function: FunctionType) -> str:
    return module_name(function.__globals__)


def module_name(namespace: _Namespace) -> str:
    """Return the name of a module; a process that was spawned has the main one by another name."""
    name = str(namespace.get("__name__", ""))
    return "__main__" if name == _SPAWNED_MAIN else name


def _defined_in(namespace: _Namespace) -> list[_Namespace]:
    """Return the namespaces of the functions of a module.

    A process that was spawned runs the main script in a namespace of its own, and copies what that
    holds into the main module: functions there belong to the first one.
    """
    found = {id(namespace): namespace}
    if namespace.get("__name__") == _SPAWNED_MAIN:
        for function in _with_frozen([], [namespace]):
            if function.__globals__.get("__name__") == _SPAWNED_MAIN:
                found[id(function.__globals__)] = function.__globals__
    return list(found.values())


class _LoadedModules:
    """The modules that are loaded at one moment, by their names and files."""

    def __init__(self) -> None:
        self._stamp: tuple[Any, ...] = ()
        self._by_name: dict[str, list[_Namespace]] = {}
        self._by_file: dict[str, list[_Namespace]] = {}
        self._found: dict[str, list[_Namespace]] = {}
        self._without_functions: set[str] = set()

    def of(self, where: str) -> list[_Namespace]:
        """Return the namespaces of the modules that a pattern names."""
        self._update()
        found = self._found.get(where)
        if found is None:
            found = self._found[where] = list(self._search(where))
        return found

    def without_functions(self) -> set[str]:
        """Return the patterns for which no function was found among all that exist."""
        self._update()
        return self._without_functions

    def namespaces(self) -> list[_Namespace]:
        """Return the namespaces of all of them."""
        self._update()
        return [namespace for found in self._by_name.values() for namespace in found]

    def has_file(self, file: str) -> bool:
        """Return whether one of them was made from a file."""
        return file in self._by_file

    def _update(self) -> None:
        name = next(reversed(sys.modules))
        module: object = sys.modules[name]
        last = weakref.ref(module) if isinstance(module, ModuleType) else None
        stamp = (len(sys.modules), name, last)
        if stamp != self._stamp:
            self._read()
            self._stamp = stamp

    def _read(self) -> None:
        self._by_name, self._by_file, self._found = {}, {}, {}
        self._without_functions = set()
        loaded: list[object] = list(sys.modules.values())
        for module in loaded:
            if not isinstance(module, ModuleType):
                continue
            for namespace in _defined_in(object.__getattribute__(module, "__dict__")):
                self._by_name.setdefault(module_name(namespace), []).append(namespace)
                file = namespace.get("__file__")
                if isinstance(file, str):
                    file = file[:-1] if file.endswith(".pyc") else file
                    self._by_file.setdefault(file, []).append(namespace)

    def _search(self, where: str) -> Iterator[_Namespace]:
        is_meant = _test(where)
        found = self._by_file if is_file(where) else self._by_name
        for name, namespaces in found.items():
            if is_meant(name):
                yield from namespaces


_modules = _LoadedModules()


def _namespaces(where: str) -> list[_Namespace]:
    """Return the namespaces of a place: of loaded modules, and those where its code runs now."""
    found = {id(namespace): namespace for namespace in _modules.of(where)}
    is_meant = _test(where)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if id(frame.f_globals) not in found:
            name = module_name(frame.f_globals)
            if is_meant(frame.f_code.co_filename if is_file(where) else name):
                found[id(frame.f_globals)] = frame.f_globals
        frame = frame.f_back
    return list(found.values())


def _is_elsewhere(where: str) -> bool:
    """Return whether there is text of such a file which no loaded module was made from."""
    if not is_file(where):
        return False
    is_meant = _test(where)
    files = [file for file in list(linecache.cache) if is_meant(file)]
    return any(not _modules.has_file(file) for file in files)


# By place: a hash of what the namespaces held, and the functions that were found.
_found: dict[str, tuple[int, list[weakref.ref[FunctionType]]]] = {}


def _held(namespaces: list[_Namespace]) -> int:
    """Return a number that changes when a function or class of a module is defined again."""
    values = [value for namespace in namespaces for value in list(namespace.values())]
    return hash(tuple(id(v) for v in values if callable(v)))


def _known(where: str, namespaces: list[_Namespace]) -> list[FunctionType] | None:
    """Return the functions found last, if their modules still hold the same callables."""
    held, refs = _found.get(where, (None, ()))
    if held is None or held != _held(namespaces):
        return None
    functions = [ref() for ref in refs]
    # If one is gone, another may have taken its place: search again.
    return [f for f in functions if f is not None] if None not in functions else None


def _keep(where: str, namespaces: list[_Namespace], functions: list[FunctionType]) -> None:
    if len(_found) >= _MOST_KEPT:
        _found.clear()
    _found[where] = (_held(namespaces), [weakref.ref(function) for function in functions])

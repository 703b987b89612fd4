"""Find functions by name: `dataset.py:get_item`, `mypkg.data:Dataset.get_item`, a module's method.

In: a file or module and segments, or an object and segments. Out: the functions they name, and the
segments left over for a variable. Sees through decorators. Must not know: how they are followed.
"""

from __future__ import annotations

import dis
import functools
import gc
import sys
import types
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from clew.address import (
    Segment,
    has_wildcard,
    join,
    nearest,
    segment_matches,
)
from clew.errors import NoMatch
from clew.observe.variables.frames.existing import Functions


@dataclass(frozen=True, slots=True)
class Found:
    """A function, and the rest of the address, for a variable in it: `("cache", "k", 0)`.

    With `inner` it is the function that holds the definition of the one that was named. For a
    method, `name` is its name on the object, and `gets_owner` whether it is called with the object.
    """

    function: FunctionType
    rest: tuple[Segment, ...] = ()
    inner: str = ""
    name: str = ""
    gets_owner: bool = False


def resolve(
    where: str | None, segments: Sequence[Segment], functions: Functions | None = None
) -> list[Found]:
    """Find the functions of a file or module that the first segments name.

    All functions that exist are searched, so decorators, aliases and re-definitions hide nothing.
    Of two ways to read the segments the one with the longer function name is taken.
    """
    functions = functions or Functions()
    if where is None:
        return _named(functions.everywhere(), segments)
    found = _named(functions.of(where), segments)
    if any(match.inner or "<locals>" in match.function.__qualname__ for match in found):
        # More of them may have been made since the last search.
        found = _named(functions.of(where, fresh=True), segments)
    return found


def _named(functions: list[FunctionType], segments: Sequence[Segment]) -> list[Found]:
    found: list[tuple[int, Found]] = []
    for function in functions:
        for path, inner in _definitions(function):
            for taken in _match(path, segments):
                rest = tuple(segments[taken:])
                found.append((taken, Found(function, rest, ".".join(inner))))
    longest = max((taken for taken, _ in found), default=0)
    kept = [match for taken, match in found if taken == longest or _is_open(segments)]
    return _holding(kept)


def _is_open(segments: Sequence[Segment]) -> bool:
    return any(segment == "**" for segment in segments)


def _holding(found: list[Found]) -> list[Found]:
    """Leave out functions without the variable, where only a pattern led to them."""
    holding = [match for match in found if not match.rest or _has_variable(match)]
    return holding or found


def _has_variable(match: Found) -> bool:
    names = variables(match.function, match.inner)
    return any(segment_matches(match.rest[0], name) for name in names)


def variables(function: FunctionType, inner: str = "") -> list[str]:
    """Return the names a function can bind or read: parameters, locals, closure, globals."""
    code = function.__code__
    if inner:
        found = [nested for nested, path in inner_codes(code) if path == inner]
        if not found:
            return []
        code = found[0]
    own = (*code.co_varnames, *code.co_cellvars, *code.co_freevars, *_global_names(code))
    if not inner and self_name(code, function.__qualname__) is not None:
        own = (*own, "self")
    return [name for name in dict.fromkeys(own) if not name.startswith("__clew_")]


def self_name(code: CodeType, qualname: str = "") -> str | None:
    """Return the name a method has for its object, if not `self`; None for what is no method.

    Before Python 3.11 code does not know its `qualname`.
    """
    around = getattr(code, "co_qualname", qualname).rpartition(".")[0]
    names = (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
    if not around or around.endswith("<locals>") or not code.co_argcount or "self" in names:
        return None
    return code.co_varnames[0]


# Weak, so that rewritten code does not outlive its use.
_globals: weakref.WeakKeyDictionary[CodeType, list[str]] = weakref.WeakKeyDictionary()


def _global_names(code: CodeType) -> list[str]:
    """Return the global names of a function; `co_names` also holds those of attributes."""
    known = _globals.get(code)
    if known is None:
        wanted = {"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "STORE_NAME"}
        found = (step.argval for step in dis.get_instructions(code) if step.opname in wanted)
        known = _globals[code] = list(dict.fromkeys(found))
    return known


def missing(where: str | None, segments: Sequence[Segment]) -> NoMatch:
    """Make the error that no function or variable has this name, with the nearest that exist."""
    written, functions = join(segments), Functions()
    if where is None:
        close = _nearest_functions(functions.everywhere(), segments)
        return NoMatch(written, close, "the functions that exist")
    here = functions.of(where) or functions.at_all(where)
    text = f"{where}:{written}"
    if not here:
        files = [name for name in _places() if name]
        return NoMatch(text, nearest(where, files), "the files and modules that are loaded")
    found = _named(here, segments)
    if found and found[0].rest:
        names = [n for match in found for n in variables(match.function, match.inner)]
        function = join(segments[: len(segments) - len(found[0].rest)])
        return NoMatch(text, nearest(str(found[0].rest[0]), names), f"the variables of {function}")
    return NoMatch(text, _nearest_functions(here, segments), f"the functions of {where}")


def _nearest_functions(here: list[FunctionType], segments: Sequence[Segment]) -> list[str]:
    paths = {".".join(path) for f in here for path, _ in _definitions(f)}
    found: list[str] = []
    for cut in (len(segments), len(segments) - 1):
        found += nearest(join(segments[:cut]), paths, 3)
    return list(dict.fromkeys(found))[:5]


def _places() -> list[str]:
    found: list[str] = []
    for name, module in list(sys.modules.items()):
        found.append(name)
        file = getattr(module, "__file__", None)
        if isinstance(file, str):
            found.append(file.rpartition("/")[2])
    return found


def _definitions(function: FunctionType) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield the path of a function and of those defined in it, each with its part inside."""
    path = _path(function)
    yield path, ()
    if "<locals>" not in function.__qualname__:
        for _, inner in _inner_codes(function.__code__):
            yield (*path, *inner), inner


def _path(function: FunctionType) -> tuple[str, ...]:
    """Return the names of the classes and functions that enclose a function, and its own.

    A wrapper may have been given another function's name; its code still has the original one.
    """
    qualname = getattr(function.__code__, "co_qualname", function.__qualname__)
    parts = [part for part in qualname.split(".") if part != "<locals>"]
    return (*parts[:-1], function.__code__.co_name)


def inner_codes(code: CodeType) -> Iterator[tuple[CodeType, str]]:
    """Yield the code of each function defined inside another, and its dotted path from there."""
    return ((found, ".".join(path)) for found, path in _inner_codes(code))


def _inner_codes(code: CodeType) -> Iterator[tuple[CodeType, tuple[str, ...]]]:
    """Yield the code of each function defined inside, and its path from here."""
    for const in code.co_consts:
        if not isinstance(const, CodeType):
            continue
        if const.co_name.startswith("<generic parameters"):
            yield from _inner_codes(const)
        elif not const.co_name.startswith("<"):
            if not _is_class_body(const):
                yield const, (const.co_name,)
            for inner, path in _inner_codes(const):
                yield inner, (const.co_name, *path)


def _is_class_body(code: CodeType) -> bool:
    return "__module__" in code.co_names and "__qualname__" in code.co_names


def _match(path: Sequence[str], segments: Sequence[Segment]) -> Iterator[int]:
    """Yield how many segments name the whole path, in each way that is possible."""
    if not path:
        yield 0
        while segments and segments[0] == "**":
            segments = segments[1:]
        return
    if not segments:
        return
    if segments[0] == "**":
        for taken in _match(path, segments[1:]):
            yield taken + 1
        for taken in _match(path[1:], segments):
            yield max(taken, 1)
    elif segment_matches(segments[0], path[0]):
        for taken in _match(path[1:], segments[1:]):
            yield taken + 1


# Methods of an object


def methods(owner: object, segments: Sequence[Segment]) -> list[Found]:
    """Find the methods of an object or class that the first segment names.

    What the object itself overrides comes first, then its class, then the base classes.
    """
    if not segments or not isinstance(segments[0], str):
        return []
    wanted, rest = segments[0], tuple(segments[1:])
    if not has_wildcard(wanted):
        found = _method(owner, str(wanted), rest)
        return [inner for match in found for inner in _into_inner(match)]
    names = [name for name in _method_names(owner) if segment_matches(wanted, name)]
    found = [match for name in names for match in _method(owner, name, rest)]
    return [match for match in found if not rest or _has_variable(match)]


def _method(owner: object, name: str, rest: tuple[Segment, ...]) -> list[Found]:
    attribute = _static(owner, name)
    is_free = isinstance(attribute, staticmethod | classmethod)
    # A function among the object's own attributes is called without the object.
    is_own = isinstance(attribute, FunctionType) and name in _instance_dict(owner)
    return [
        Found(function, rest, "", name, not (is_free or (is_own and function is attribute)))
        for function in unwrap(attribute, name)
    ]


def _into_inner(match: Found) -> list[Found]:
    """Read `forward.inner.x` as the variable of a function inside, if there is such a function."""
    best = [match]
    for _, path in _inner_codes(match.function.__code__):
        if tuple(str(part) for part in match.rest[: len(path)]) == path:
            rest, inner = match.rest[len(path) :], ".".join(path)
            best = [Found(match.function, rest, inner, match.name)]
            name = f"{match.name}.{inner}"
            best += [Found(f, rest, "", name) for f in _existing_inner(match.function, path)]
    return best


def _existing_inner(outer: FunctionType, path: tuple[str, ...]) -> list[FunctionType]:
    codes = [code for code, inner in _inner_codes(outer.__code__) if inner == path]
    return [
        found
        for code in codes
        for found in gc.get_referrers(code)
        if isinstance(found, FunctionType) and found.__code__ is code
    ]


def _static(owner: object, name: str) -> object:
    """Find an attribute without running any code."""
    own = owner.__dict__ if isinstance(owner, type) else _instance_dict(owner)
    if name in own:
        return own[name]
    for base in (owner if isinstance(owner, type) else type(owner)).__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return None


def _instance_dict(owner: object) -> dict[str, Any]:
    try:
        found: dict[str, Any] = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return {}
    return found


def _method_names(owner: object) -> list[str]:
    cls = owner if isinstance(owner, type) else type(owner)
    own = {} if isinstance(owner, type) else _instance_dict(owner)
    names = dict.fromkeys(name for name in own if unwrap(own[name], name))
    for base in cls.__mro__:
        names |= dict.fromkeys(name for name in base.__dict__ if unwrap(base.__dict__[name], name))
    return [name for name in names if not name.startswith("__")]


# Through decorators


def unwrap(found: object, name: str = "") -> list[FunctionType]:
    """Follow decorators to the function that was decorated; empty if there is no Python function.

    A wrapper that does not say what it wraps is searched for a function called `name`.
    """
    seen: set[int] = set()
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        inner = _wrapped(found)
        if inner is not None:
            found = inner
            continue
        if isinstance(found, FunctionType):
            return [_hidden(found, name) or found]
        if _is_plain_callable(found):
            found = _static(type(found), "__call__")
            continue
        return []
    return []


def _wrapped(found: object) -> object:
    if isinstance(found, staticmethod | classmethod | types.MethodType):
        return found.__func__
    if isinstance(found, property):
        return found.fget
    if isinstance(found, functools.partial | functools.partialmethod | functools.cached_property):
        return found.func
    if isinstance(found, type):
        return None
    return _instance_dict(found).get("__wrapped__")


def _is_plain_callable(found: object) -> bool:
    return not isinstance(found, type) and isinstance(
        _static(type(found), "__call__"), FunctionType
    )


def _hidden(wrapper: FunctionType, name: str) -> FunctionType | None:
    """Find the function of this name in the closure of an opaque wrapper."""
    if not name or wrapper.__code__.co_name == name or not wrapper.__closure__:
        return None
    pending: list[Any] = list(_cells(wrapper))
    seen: set[int] = set()
    while pending:
        found = pending.pop(0)
        if id(found) in seen:
            continue
        seen.add(id(found))
        for function in unwrap(found):
            if function.__code__.co_name == name:
                return function
            pending.extend(_cells(function))
    return None


def _cells(function: FunctionType) -> Iterable[object]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            pass  # a name that has no value yet

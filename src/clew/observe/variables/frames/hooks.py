"""The object that instrumented code finds under a global name, and through which it calls a probe.

In: a probe. Out: calls of it, until `silence`. Instrumented code that still runs after it is
removed (a suspended generator, another thread) goes on calling the hooks, which then do nothing.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import CodeType
from typing import Any

from clew.observe.variables.frames.sites import Probe, Site

_numbers = itertools.count()


def _never() -> bool:
    return False


class CodeHooks:
    """What the code calls. Its attributes are the probe's own methods, to save a second call."""

    __slots__ = (
        "__weakref__", "_salvaged", "bound", "compiling", "deleted", "entered", "groups", "left",
        "line", "name", "polled", "probe", "returned", "sites",
    )  # fmt: skip
    # What the code catches; it may have other names for them.
    any_error = BaseException
    unbound = NameError

    def __init__(
        self,
        probe: Probe,
        compiling: Callable[[], bool] | None = None,
        sites: Sequence[Site] = (),
        groups: Sequence[tuple[Site, ...]] = (),
    ) -> None:
        self.name = f"__clew_{next(_numbers)}__"
        self.compiling = compiling or _never
        self.sites = sites
        self.groups = groups
        self._salvaged: dict[tuple[int, int], Site] = {}
        self._listen(probe)

    def _listen(self, probe: Probe) -> None:
        self.probe = probe
        self.entered = probe.entered
        self.bound = probe.bound
        self.polled = probe.polled
        self.deleted = probe.deleted
        self.returned = probe.returned
        self.left = probe.left
        self.line = probe.line

    def silence(self) -> None:
        """Stop calling the probe, and drop the reference to it."""
        self._listen(SILENT)

    def __reduce__(self) -> tuple[Callable[[Probe], CodeHooks], tuple[Probe]]:
        # A function pickled by value takes its globals along; elsewhere there is no probe.
        return CodeHooks, (SILENT,)

    def polling(self, sites: tuple[Site, ...], owner: object, *values: object) -> None:
        for site, value in zip(sites, values, strict=True):
            self.polled(site, value, owner)

    # Hooks that the code calls inside an expression return the value they were given.

    def binding(self, site: Site, value: Any, owner: object) -> Any:
        self.bound(site, value, owner)
        return value

    def returning(self, site: Site, value: Any, owner: object, *polls: tuple[Site, object]) -> Any:
        for poll, held in polls:
            self.polled(poll, held, owner)
        self.returned(site, value, owner)
        return value

    def passing(self, value: Any, owner: object, *polls: tuple[Site, object]) -> Any:
        for poll, held in polls:
            self.polled(poll, held, owner)
        return value

    def yielding(self, site: Site, value: Any, owner: object) -> Any:
        self.probe.yielded(site, value, owner)
        return value

    def resuming(self, site: Site, value: Any, owner: object) -> Any:
        self.probe.resumed(site, owner)
        return value

    def failing(self, site: Site, owner: object) -> None:
        error = sys.exc_info()[1]
        if error is not None:
            self.probe.raised(site, error, owner)

    def salvaged(self, site: Site, value: object, owner: object) -> None:
        """Poll after a caught exception: the statement that raised may have changed the value."""
        traceback = sys.exc_info()[2]
        line = (traceback.tb_lineno if traceback is not None else None) or site.line
        key = (id(site), line)
        at = self._salvaged.get(key)
        if at is None:
            at = replace(site, line=line, end_line=line, col=0, end_col=0)
            self._salvaged[key] = at
        self.polled(at, value, owner)


# References to the code that needs hooks, by their ids, as references to equal code are equal.
_needing: dict[int, weakref.ref[CodeType]] = {}


def inject(hooks: CodeHooks, namespace: dict[str, Any], code: CodeType) -> None:
    """Define the global name that `code` calls; delete it when no code that needs it is left."""
    parts = [part for part in code_tree(code) if hooks.name in part.co_names]
    if not parts:
        return
    namespace[hooks.name] = hooks
    left = len(parts)

    def gone(ref: weakref.ref[CodeType]) -> None:
        nonlocal left
        _needing.pop(id(ref), None)
        left -= 1
        if not left and namespace.get(hooks.name) is hooks:
            del namespace[hooks.name]

    for part in parts:
        ref = weakref.ref(part, gone)
        _needing[id(ref)] = ref


def code_tree(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and all those nested in it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from code_tree(const)


class Silent:
    """A probe that does nothing."""

    def entered(self, site: Site, owner: object) -> None: ...

    def bound(self, site: Site, value: object, owner: object) -> None: ...

    def polled(self, site: Site, value: object, owner: object) -> None: ...

    def deleted(self, site: Site, owner: object) -> None: ...

    def returned(self, site: Site, value: object, owner: object) -> None: ...

    def yielded(self, site: Site, value: object, owner: object) -> None: ...

    def resumed(self, site: Site, owner: object) -> None: ...

    def raised(self, site: Site, error: BaseException, owner: object) -> None: ...

    def left(self, site: Site, owner: object) -> None: ...

    def line(self, site: Site, owner: object) -> None: ...


SILENT = Silent()

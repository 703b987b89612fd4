"""The object that instrumented code reaches through one global name, and passes on to the probe.

In: a probe. Out: calls of it, until `silence`. Instrumented code that still runs when it is
removed (a suspended generator, another thread) goes on calling, and nothing happens.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import CodeType
from typing import Any

from clew.observe.variables.frames.sites import Probe, Site

_numbers = itertools.count()


def _never() -> bool:
    return False


class Hooks:
    """What the code calls. Its attributes are the probe's own methods: one call, not two."""

    __slots__ = (
        "__weakref__", "_counts", "_indices", "_refs", "_salvaged", "any_error", "bound",
        "compiling", "deleted", "entered", "groups", "left", "line", "may_compile", "name",
        "polled", "probe", "returned", "sites", "unbound",
    )  # fmt: skip

    def __init__(self, probe: Probe, compiling: Callable[[], bool] | None = None) -> None:
        self.name = f"__clew_{next(_numbers)}__"
        self.compiling = compiling or _never
        self.may_compile = compiling is not None
        self.any_error = BaseException
        self.unbound = NameError
        self.sites: list[Site] = []
        self.groups: list[tuple[Site, ...]] = []
        self._indices: dict[object, int] = {}
        self._salvaged: dict[tuple[int, int], Site] = {}
        # By identity: references to equal code objects are equal.
        self._refs: dict[int, weakref.ref[CodeType]] = {}
        self._counts: dict[int, int] = {}
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
        """Tell the probe nothing any more, and let go of it."""
        self._listen(SILENT)

    def __reduce__(self) -> tuple[Callable[[Probe], Hooks], tuple[Probe]]:
        # A function pickled by value takes its globals along; elsewhere nobody listens.
        return Hooks, (SILENT,)

    def index(self, site: Site) -> int:
        """The place of a site in the table the code looks it up in."""
        key = (
            id(site.code),
            site.kind,
            site.name,
            site.line,
            site.col,
            site.end_line,
            site.end_col,
        )
        found = self._indices.get(key)
        if found is None:
            found = self._indices[key] = len(self.sites)
            self.sites.append(site)
        return found

    def group(self, sites: list[Site]) -> int:
        """The place of several sites in the table of groups."""
        self.groups.append(tuple(sites))
        return len(self.groups) - 1

    def polling(self, sites: tuple[Site, ...], owner: object, *values: object) -> None:
        for site, value in zip(sites, values, strict=True):
            self.polled(site, value, owner)

    # What the code calls inside an expression returns the value it was given.

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
        """Poll where an exception was caught: the statement that raised may have changed it."""
        traceback = sys.exc_info()[2]
        line = (traceback.tb_lineno if traceback is not None else None) or site.line
        key = (id(site), line)
        at = self._salvaged.get(key)
        if at is None:
            at = replace(site, line=line, end_line=line, col=0, end_col=0)
            self._salvaged[key] = at
        self.polled(at, value, owner)

    # The global name stays for as long as some code object needs it.

    def inject(self, namespace: dict[str, Any], code: CodeType) -> None:
        """Give `code` the name it calls; take it away when no code that needs it is left."""
        for part in code_tree(code):
            if self.name in part.co_names:
                self._keep(namespace, part)

    def _keep(self, namespace: dict[str, Any], code: CodeType) -> None:
        def gone(ref: weakref.ref[CodeType]) -> None:
            self._refs.pop(id(ref), None)
            self._counts[id(namespace)] -= 1
            if not self._counts[id(namespace)] and namespace.get(self.name) is self:
                del namespace[self.name]

        ref = weakref.ref(code, gone)
        self._refs[id(ref)] = ref
        self._counts[id(namespace)] = self._counts.get(id(namespace), 0) + 1
        namespace[self.name] = self


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

"""A probe that writes down what it is told, and functions made from text."""

from __future__ import annotations

import itertools
import linecache
import textwrap
from collections.abc import Callable
from types import FunctionType
from typing import Any

from clew.observe.variables.frames import Installed, Site, Target, instrument

_numbers = itertools.count()


class Seen:
    """Writes down (what, name, line, value); `sites` and `owners` go along with it."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str, int, Any]] = []
        self.sites: list[Site] = []
        self.owners: list[object] = []

    def _note(self, what: str, site: Site, owner: object, value: object = None) -> None:
        self.log.append((what, site.name, site.line, value))
        self.sites.append(site)
        self.owners.append(owner)

    def entered(self, site: Site, owner: object) -> None:
        self._note("entered", site, owner)

    def bound(self, site: Site, value: object, owner: object) -> None:
        self._note("param" if site.kind == "param" else "bound", site, owner, value)

    def polled(self, site: Site, value: object, owner: object) -> None:
        self._note("polled", site, owner, value)

    def deleted(self, site: Site, owner: object) -> None:
        self._note("deleted", site, owner)

    def returned(self, site: Site, value: object, owner: object) -> None:
        self._note("returned", site, owner, value)

    def yielded(self, site: Site, value: object, owner: object) -> None:
        self._note("yielded", site, owner, value)

    def resumed(self, site: Site, owner: object) -> None:
        self._note("resumed", site, owner)

    def raised(self, site: Site, error: BaseException, owner: object) -> None:
        self._note("raised", site, owner, error)

    def left(self, site: Site, owner: object) -> None:
        self._note("left", site, owner)

    def line(self, site: Site, owner: object) -> None:
        self._note("line", site, owner)

    def values(self, name: str, what: str = "bound") -> list[Any]:
        """What was told of one name, in order."""
        return [value for told, of, _, value in self.log if told == what and of == name]

    def kinds(self) -> list[str]:
        return [what for what, *_ in self.log]

    def lines(self, what: str) -> list[int]:
        return [line for told, _, line, _ in self.log if told == what]


def program(text: str, with_source: bool = True) -> dict[str, Any]:
    """Run a module made from text; its source is known as that of a notebook cell is, or not."""
    text = textwrap.dedent(text).lstrip("\n")
    file = f"<cell {next(_numbers)}>"
    if with_source:
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {"__name__": f"cell_{next(_numbers)}"}
    exec(compile(text, file, "exec", dont_inherit=True), namespace)
    return namespace


def wanting(*names: str) -> Callable[[str], bool]:
    """Want these names; all of them if none is given."""
    return lambda name: not names or name in names


def follow(seen: Seen, function: Any, *names: str, **options: Any) -> Installed:
    """Instrument one function for some names."""
    assert isinstance(function, FunctionType)
    return instrument([Target(function, wanting(*names), **options)], seen)

"""Numbers of parameters in each module, from the tables of a trace; no tensor is read."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from clew.events.columns import ModuleRow

# The character after the one that ends a name in a path.
_AFTER_DOT = chr(ord(".") + 1)


class Parameters:
    """How many parameters lie in each module, shared ones counted once."""

    def __init__(self, modules: list[ModuleRow], parameters: list[tuple[str, int, int]]) -> None:
        self._names = {path for path, _, _ in parameters}
        self.total = sum(size for _, _, size in parameters)
        owned: Counter[int] = Counter()
        for _, owner, size in parameters:
            owned[modules[owner].number] += size
        self._owned = owned
        # Paths in order, so that those inside a module are neighbours.
        found = sorted({(m.path, m.number) for m in modules if owned[m.number]})
        self._paths = [path for path, _ in found]
        self._numbers = [number for _, number in found]
        # If a model was given, other outermost modules are named by their class.
        others = {module.path for module in modules if module.path in _names_of_a_root(module)}
        first_names = ((path.partition(".")[0], number) for path, number in found)
        self._counts: dict[str, int] = {}
        self._in_the_root = {number for name, number in first_names if name not in others}

    def has(self, path: str) -> bool:
        """Return whether a parameter has this path."""
        return path in self._names

    def inside(self, path: str) -> int:
        """Return the number of elements of all parameters in a module."""
        if path not in self._counts:
            numbers = self._in_the_root
            if path:
                own = slice(self._place(path), self._place(path + "\0"))
                below = slice(self._place(path + "."), self._place(path + _AFTER_DOT))
                numbers = {*self._numbers[own], *self._numbers[below]}
            self._counts[path] = sum(self._owned[number] for number in numbers)
        return self._counts[path]

    def _place(self, path: str) -> int:
        return bisect_left(self._paths, path)


def _names_of_a_root(module: ModuleRow) -> tuple[str, ...]:
    """Return the paths that a module of this class has if it was called outside any other."""
    _, _, number = module.path.rpartition("#")
    return module.cls, f"{module.cls}#{number}"

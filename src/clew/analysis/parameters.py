"""How many parameters each module holds, from the tables of a trace; no tensor is looked at."""

from __future__ import annotations

from collections import Counter

from clew.events.columns import ModuleRow


class Parameters:
    """How many parameters lie in each module, shared ones counted once."""

    def __init__(self, modules: list[ModuleRow], parameters: list[tuple[str, int, int]]) -> None:
        self._paths = {path for path, _, _ in parameters}
        self.total = sum(size for _, _, size in parameters)
        owned: Counter[int] = Counter()
        for _, owner, size in parameters:
            owned[modules[owner].number] += size
        self._inside: dict[str, set[int]] = {}
        # Beside a model that was given, other outermost modules go by their class.
        others = {module.path for module in modules if module.path in _names_of_a_root(module)}
        for module in modules:
            if owned[module.number]:
                path = module.path
                if path.partition(".")[0] not in others:
                    self._inside.setdefault("", set()).add(module.number)
                while path:
                    self._inside.setdefault(path, set()).add(module.number)
                    path = path.rpartition(".")[0]
        self._owned = owned

    def has(self, path: str) -> bool:
        """Whether a parameter goes by this path."""
        return path in self._paths

    def inside(self, path: str) -> int:
        """The number of elements of all parameters in a module."""
        return sum(self._owned[number] for number in self._inside.get(path, ()))


def _names_of_a_root(module: ModuleRow) -> tuple[str, ...]:
    """Give the paths that a module of this class has if it was called outside any other."""
    _, _, number = module.path.rpartition("#")
    return module.cls, f"{module.cls}#{number}"

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
        for module in modules:
            if owned[module.number]:
                self._inside.setdefault("", set()).add(module.number)
                path = module.path
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

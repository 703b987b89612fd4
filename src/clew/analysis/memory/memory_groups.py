"""Group memory that is alive by its kind, by the module it belongs to, by the line that made it."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from clew.analysis.memory.lifetimes import Lifetimes
from clew.analysis.memory.memory_kinds import KINDS, STATE, MemoryKinds
from clew.analysis.memory.memory_model import MemoryGroup
from clew.events.columns import Flags, Ints
from clew.events.model import Source

# Groups that are no module and no line.
_OUTSIDE, _NO_MODULE, _ROOT = "made before or outside", "outside any module", "the root module"
NO_MODULES = (_OUTSIDE, _NO_MODULE)


class Grouping:
    """Groups of storages; `files` has the short names of source files."""

    def __init__(self, lives: Lifetimes, kinds: MemoryKinds, files: dict[str, str]) -> None:
        self._lives = lives
        self._kinds = kinds
        self._files = files

    def by_kind(self, chosen: Flags, kind: Ints) -> tuple[MemoryGroup, ...]:
        """Return the chosen storages by their kind."""
        return self._groups(chosen, kind, kind, list(KINDS), {})

    def by_module(self, chosen: Flags, kind: Ints) -> tuple[MemoryGroup, ...]:
        """Return the chosen storages by the path of their module."""
        paths = self._lives.run.derived.paths
        names = [_OUTSIDE, _NO_MODULE, *(path or _ROOT for path in paths), *self._owners]
        return self._groups(chosen, self.module, kind, names, {})

    def by_line(self, chosen: Flags, kind: Ints) -> tuple[MemoryGroup, ...]:
        """Return the chosen storages by the source line that made them."""
        code, sources = self._lines
        names = [_OUTSIDE, *(f"{self._files[s.file]}:{s.line}" for s in sources)]
        return self._groups(chosen, code, kind, names, dict(enumerate(sources, 1)))

    @cached_property
    def module(self) -> Ints:
        """Return the code of each storage's module, as `by_module` names them.

        A parameter, its gradient and its optimizer state belong to the module of the parameter.
        """
        run, lives = self._lives.run, self._lives
        made = np.where(lives.made >= 0, run.derived.module[lives.made], -2)
        found: Ints = made + 2
        name = self._parameter
        owner = np.array([*self._owner_of_name, -1], dtype=np.int64)
        first = 2 + len(run.derived.paths)
        return np.where(name >= 0, owner[name] + first, found)

    @cached_property
    def _parameter(self) -> Ints:
        """Return the name of the parameter that a storage is, or is the gradient or state of."""
        lives, c = self._lives, self._lives.run.columns
        leaf = self._kinds.leaf
        of_leaf = np.where(leaf >= 0, c.value_name[leaf], -1)
        found = np.where(lives.name >= 0, lives.name, of_leaf)
        # State is made from its parameter: `zeros_like(p)`.
        made = np.full(len(c.id), -1, dtype=np.int64)
        takes = ~lives.is_output & (lives.name[lives.storage] >= 0)
        made[lives.row[takes]] = lives.name[lives.storage[takes]]
        of_state = np.where(lives.made >= 0, made[lives.made], -1)
        return np.where((found < 0) & (self._kinds.fixed == STATE), of_state, found)

    @cached_property
    def _owners(self) -> list[str]:
        names = self._lives.run.columns.value_names
        return list(dict.fromkeys(name.rpartition(".")[0] or _ROOT for name in names))

    @property
    def _owner_of_name(self) -> list[int]:
        names = self._lives.run.columns.value_names
        return [self._owners.index(name.rpartition(".")[0] or _ROOT) for name in names]

    @cached_property
    def _lines(self) -> tuple[Ints, list[Source]]:
        """Return the code of each storage's line, 0 for none, and the lines from 1 on."""
        run, lives = self._lives.run, self._lives
        place = np.where(lives.made >= 0, run.derived.source[lives.made], -1)
        codes: dict[tuple[str, int], int] = {}
        sources: list[Source] = []
        of_place = np.zeros(len(run.columns.places) + 1, dtype=np.int64)
        for number in np.unique(place[place >= 0]).tolist():
            one = run.columns.places[number]
            code = codes.setdefault((one.file, one.line), len(codes) + 1)
            if code > len(sources):
                sources.append(run.source_at(one))
            of_place[number] = code
        return of_place[place], sources

    def _groups(
        self, chosen: Flags, code: Ints, kind: Ints, names: list[str], sources: dict[int, Source]
    ) -> tuple[MemoryGroup, ...]:
        """Add up the chosen storages of each code, the largest group first."""
        sums: dict[str, tuple[int, int, dict[str, int], Source | None]] = {}
        pairs, at = np.unique(code[chosen] * len(KINDS) + kind[chosen], return_inverse=True)
        sizes = np.bincount(at, self._lives.size[chosen], len(pairs)).astype(np.int64).tolist()
        counts = np.bincount(at, minlength=len(pairs)).tolist()
        for pair, size, count in zip(pairs.tolist(), sizes, counts, strict=True):
            number, which = divmod(pair, len(KINDS))
            whole, many, kinds, source = sums.get(names[number], (0, 0, {}, sources.get(number)))
            more = kinds | {KINDS[which]: kinds.get(KINDS[which], 0) + size}
            sums[names[number]] = (whole + size, many + count, more, source)
        groups = [
            MemoryGroup(name, whole, many, _largest_first(kinds), source)
            for name, (whole, many, kinds, source) in sums.items()
        ]
        return tuple(sorted(groups, key=lambda group: -group.bytes))


def _largest_first(kinds: dict[str, int]) -> dict[str, int]:
    return dict(sorted(kinds.items(), key=lambda pair: -pair[1]))

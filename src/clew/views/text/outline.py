"""The outline of a trace: what the tree shows, before anything is put into words.

In come folded calls, out come `Entry`s nested as they will be printed: module calls, the ops
that ran between them, repeats, errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from clew.analysis.fold import Folds, Item, Repeat
from clew.events.records import MODULE, OP
from clew.views.text.style import base_op

CALL, OPS, REPEAT, FAILURE = "call", "ops", "repeat", "failure"

# Ops that only look at memory in another way, or make some: worth less room than others.
VIEWS = frozenset(
    {
        "view", "reshape", "_reshape_alias", "_unsafe_view", "t", "transpose", "permute", "expand",
        "unsqueeze", "squeeze", "slice", "select", "split", "split_with_sizes", "unbind", "narrow",
        "detach", "alias", "as_strided", "clone", "lift_fresh", "_to_copy", "empty", "empty_like",
    }
)  # fmt: skip
_ANY_DEPTH = 1 << 30


@dataclass(slots=True)
class Entry:
    """One line of the tree and those below it.

    `rows` are the events of the first run; `within` the repeats they lie in, outermost first, the
    entry's own (`repeat`) included. `level` counts module calls above.
    """

    kind: str
    rows: list[int]
    within: tuple[Repeat, ...]
    level: int
    repeat: Repeat | None = None
    failed: bool = False
    # Nothing but ops that look at memory in another way.
    minor: bool = False
    # An earlier sibling with the same inside, which is not shown again.
    same_as: int | None = None
    children: list[Entry] = field(default_factory=list)

    @property
    def count(self) -> int:
        return 1 if self.repeat is None else self.repeat.count


class Outliner:
    """Turns siblings into entries."""

    def __init__(self, folds: Folds) -> None:
        self._folds = folds
        columns = folds.structure.reader.columns
        self._kind = folds.structure.kind
        self._subject = folds.structure.subject
        self._is_view = [base_op(name) in VIEWS for name in columns.ops]
        self._error: list[int] = columns.error.tolist()

    def entries(
        self, rows: list[int], level: int = 0, within: tuple[Repeat, ...] = ()
    ) -> list[Entry]:
        """Entries of some siblings."""
        return self._of_items(self._folds.fold(rows), level, within)

    def _of_items(self, items: list[Item], level: int, within: tuple[Repeat, ...]) -> list[Entry]:
        entries: list[Entry] = []
        for item in items:
            if isinstance(item, Repeat):
                entries.append(self._of_repeat(item, level, within))
            elif self._kind[item] == MODULE:
                entries.append(self._call(item, level, within, None))
            elif self._error[item] >= 0:
                entries.append(Entry(FAILURE, [item], within, level, failed=True))
            elif self._kind[item] == OP:
                if not entries or entries[-1].kind != OPS:
                    entries.append(Entry(OPS, [], within, level, minor=level > 0))
                entries[-1].rows.append(item)
                entries[-1].minor &= self._is_view[self._subject[item]]
        if self._folds.folding:
            self._refer_back(entries)
        return entries

    def _refer_back(self, entries: list[Entry]) -> None:
        """Let a call whose inside was shown before point there."""
        structure = self._folds.structure
        shown: dict[int, int] = {}
        for entry in entries:
            if entry.kind != CALL or not entry.children or entry.failed:
                continue
            row = entry.rows[0]
            first = shown.setdefault(structure.key(row), row)
            if first != row and structure.same_wiring(first, row):
                entry.same_as, entry.children = first, []

    def _of_repeat(self, repeat: Repeat, level: int, within: tuple[Repeat, ...]) -> Entry:
        within = (*within, repeat)
        first = repeat.items[0]
        if len(repeat.items) == 1 and not isinstance(first, Repeat):
            return self._call(first, level, within, repeat)
        children = self._of_items(list(repeat.items), level, within)
        telling = [child for child in children if not child.minor]
        if len(telling) == 1 and telling[0].kind == CALL and telling[0].repeat is None:
            telling[0].repeat = repeat
            return telling[0]
        return Entry(REPEAT, list(repeat.runs[0]), within, level, repeat, children=children)

    def _call(
        self, row: int, level: int, within: tuple[Repeat, ...], repeat: Repeat | None
    ) -> Entry:
        entry = Entry(CALL, [row], within, level, repeat, failed=self._error[row] >= 0)
        inside = self._of_items(self._folds.inside(row), level + 1, within)
        # The ops of a module without modules inside are its own business, unless one failed.
        if level == 0 or any(child.kind != OPS for child in inside):
            entry.children = inside
        return entry


def walk(entries: list[Entry], depth: int) -> Iterator[Entry]:
    """The entries that are shown down to a depth, outermost first."""
    for entry in entries:
        yield entry
        yield from walk(shown(entry.children, depth), depth)


def shown(children: list[Entry], depth: int) -> list[Entry]:
    """Those of some entries that are shown down to a depth; failures are at any."""
    return [
        child for child in children if child.failed or (child.level <= depth and not child.minor)
    ]


def deepest(entries: list[Entry]) -> int:
    """The level of the innermost entry."""
    return max((entry.level for entry in walk(entries, _ANY_DEPTH)), default=0)

"""A cache of rewritten code, for the next probe that follows the same function.

In: a definition, the code it was compiled to, and what to follow in it. Out: code that calls the
hooks by the names they have this time, and its sites. Must not hold: hooks or probes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType
from typing import TypeAlias

from clew.observe.variables.frames.emit import SiteTable, Use
from clew.observe.variables.frames.linetable import is_fragile
from clew.observe.variables.frames.rewrite import BARE, GUARDED, UNGUARDED, rewrite
from clew.observe.variables.frames.sites import Target
from clew.observe.variables.frames.source import Definition

_MOST_KEPT = 256

_Options: TypeAlias = tuple[tuple[str, ...], bool, bool, bool, bool]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Code made for some uses, in which placeholders stand for the names of their hooks.

    `care` says how much had to be left out. For each use, `options` is what it asked for, `wants`
    which of the names that occur it follows, and `tables` has the sites.
    """

    original: CodeType
    code: CodeType
    care: int
    options: tuple[_Options, ...]
    wants: tuple[dict[str, bool], ...]
    tables: tuple[SiteTable, ...]

    def serves(self, uses: Sequence[Use]) -> bool:
        """Return whether it is what would be made for these uses."""
        return self.options == tuple(map(_options, uses)) and all(
            use.wants(name) is answer
            for use, wants in zip(uses, self.wants, strict=True)
            for name, answer in wants.items()
        )

    def code_calling(self, names: Sequence[str]) -> CodeType:
        """Return a new code object that calls hooks by these names."""
        return _renamed(self.code, {_placeholder(i): name for i, name in enumerate(names)})


# By the id of the code that was rewritten, which each of them holds.
_kept: dict[int, list[Rewritten]] = {}


def rewritten(
    definition: Definition, original: CodeType, targets: Sequence[tuple[Target, bool]]
) -> Rewritten:
    """Rewrite a function for some targets, each with whether torch.compile may trace its code."""
    uses = [Use(target, _placeholder(i), may) for i, (target, may) in enumerate(targets)]
    for known in _kept.get(id(original), ()):
        if known.serves(uses):
            return known
    found = _rewritten(definition, original, uses)
    if sum(map(len, _kept.values())) >= _MOST_KEPT:
        _kept.clear()
    _kept.setdefault(id(original), []).append(found)
    return found


def _rewritten(definition: Definition, original: CodeType, uses: Sequence[Use]) -> Rewritten:
    may_compile = any(use.may_compile for use in uses)
    for care in (GUARDED, UNGUARDED, BARE):
        for use in uses:
            use.table = SiteTable()
        node = definition.parse()
        rewrite(node, original, definition.qualname, uses, care)
        code = definition.compile(node)
        if not (may_compile and is_fragile(code)):
            break
    return Rewritten(
        original, code, care, tuple(map(_options, uses)),
        tuple(use.wants_by_name for use in uses), tuple(use.table for use in uses),
    )  # fmt: skip


def _options(use: Use) -> _Options:
    return use.inner, use.returns, use.lines, use.polls, use.may_compile


def _placeholder(number: int) -> str:
    # Ends in two underscores, so that a class does not mangle it.
    return f"__clew_use_{number}__"


def _renamed(code: CodeType, names: dict[str, str]) -> CodeType:
    consts = tuple(_renamed(c, names) if isinstance(c, CodeType) else c for c in code.co_consts)
    called = tuple(names.get(name, name) for name in code.co_names)
    return code.replace(co_consts=consts, co_names=called)

"""Record plain attributes of modules and optimizers: numbers, short texts, None, short lists.

Only an object's `__dict__` is read: nothing is called.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from clew.events.columns import Attributes

if TYPE_CHECKING:
    from clew.record.module_registry import ModuleEntry

_PLAIN = (bool, int, float, complex, str, type(None))
# Longer texts and lists are data, not settings.
_LONGEST = 64
# class -> how many attributes its modules have, the names of those that are plain, a function
# that reads their values, and the names of the others
_names_of: dict[type, tuple[int, tuple[str, ...], Callable[[Any], Any], tuple[str, ...]]] = {}
# Types that are plain whatever their value.
_FIXED = frozenset((bool, int, float, complex, type(None)))
_NUMBERS = frozenset((bool, int, float))


def note_attributes(
    noted: list[Any], entry: ModuleEntry, cls: type, held: dict[str, Any], event: int
) -> None:
    """Note a module's plain attributes if they changed; at its first call of each turn.

    `held` are the attributes of the module, `cls` is its class.
    """
    known = _names_of.get(cls)
    if known is not None and known[0] == len(held):
        names = known[1]
        try:
            values = known[2](held)
            is_same = _FIXED.issuperset(map(type, values)) or all(map(_is_plain, values))
            if is_same and not any(_is_plain(held[name]) for name in known[3]):
                if entry.settings != values or entry.names_set is not names:
                    noted.append(
                        (entry.number, event, names, values, entry.names_set, entry.settings)
                    )
                    entry.names_set, entry.settings = names, values
                return
        except KeyError:
            pass  # another object of the class had other attributes
    found = plain(held)
    names, values = tuple(found), tuple(found.values())
    if len(names) == 1:  # twice, as `itemgetter` returns no tuple for one name
        names, values = names * 2, values * 2
    if names:
        others = tuple([name for name in held if _is_public(name) and name not in found])
        _names_of[cls] = (len(held), names, itemgetter(*names), others)
    noted.append((entry.number, event, names, values, entry.names_set, entry.settings))
    entry.names_set, entry.settings = names, values


def constant_settings(
    entry: ModuleEntry, held: dict[str, Any]
) -> tuple[tuple[str, ...], tuple[Any, ...], tuple[str, ...]] | None:
    """Return the plain attributes that were noted last, None if there are lists among them.

    That is, their names, their values, and the names of the others. While a module has the same
    objects as plain attributes and none of the others is plain, nothing about them has changed.
    """
    values = tuple([held.get(name) for name in entry.names_set])
    if list in map(type, values):
        return None
    others = tuple([name for name in held if _is_public(name) and name not in entry.names_set])
    return entry.names_set, values, others


def settled(noted: list[Any]) -> list[Attributes]:
    """Return rows of what was noted: a module's plain attributes at first, then what changed."""
    rows = []
    for one in noted:
        if isinstance(one, Attributes):
            rows.append(one)
            continue
        number, event, names, values, names_before, before = one
        now = plain(dict(zip(names, values, strict=True)))
        if before is not None:
            now = changed(plain(dict(zip(names_before, before, strict=True))), now)
        if now:
            rows.append(Attributes("module", number, 0, event, now))
    return rows


def plain(held: dict[str, Any]) -> dict[str, Any]:
    """Return the plain ones among the attributes of an object or the settings of a group."""
    found = {}
    for name, value in list(held.items()):
        if _is_public(name) and _is_plain(value):
            found[name] = list(value) if isinstance(value, tuple) else value
    return found


def _is_public(name: Any) -> bool:
    return type(name) is str and name[:1] != "_" and name != "params"


def _is_plain(value: Any) -> bool:
    if type(value) is str:
        return len(value) <= _LONGEST
    if type(value) in (list, tuple):
        return len(value) <= _LONGEST and _NUMBERS.issuperset(map(type, value))
    return type(value) in _PLAIN


def changed(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes that are new or differ; None for those that are gone."""
    gone = {name: None for name in before if name not in now}
    other = {
        name: value
        for name, value in now.items()
        if name not in before or before[name] != value or type(before[name]) is not type(value)
    }
    return gone | other

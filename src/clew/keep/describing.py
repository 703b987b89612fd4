"""Describe a value for the recording and for a watch at once, so that it is read only once.

Comes in: a live value and its fresh `ValueState`. Goes out: its tokens for the recording and a
`ValueSummary` for the lines that a watch prints. Both use the statistics that the recording keeps.
Must not import torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from clew.events.statistics import array_statistics
from clew.events.vocabulary import KeepLevel, Kept
from clew.events.watch_events import OTHER, ValueSummary
from clew.keep.changes import ValueState, state_of
from clew.keep.nesting import CONSTANTS, describe, is_tensor
from clew.keep.value_records import ValueRecords
from clew.keep.value_summaries import (
    is_array,
    summarize_array,
    summarize_items,
    summarize_leaf,
    summarize_whole,
    tensor_numbers,
)
from clew.program_errors import pass_on
from clew.stream.records import Made, Token

_LONGEST_TEXT = 1000


class _Described(NamedTuple):
    """A leaf of a value: its token for the recording and its `ValueSummary` for the watch."""

    token: Token
    summary: ValueSummary


class Describer:
    """Describes values for one recording; `values` is the option that says how much to keep.

    With `shown`, only the statistics that a line of text shows are computed.
    """

    def __init__(self, records: ValueRecords, values: str, shown: bool = False) -> None:
        self._records = records
        self._values = values
        self._shown = shown

    def described(
        self, value: Any, now: ValueState, digest: bool = True
    ) -> tuple[Any, ValueSummary]:
        """Return a value with a token for each leaf, and the `ValueSummary` of the whole value.

        `digest` says whether the value will be compared with others.
        """

        def leaf(item: Any) -> _Described:
            return self._leaf(item, now if item is value else state_of(item), digest)

        described = describe(value, leaf, 0, leaf)
        if isinstance(described, _Described):
            return described.token, described.summary
        summary = summarize_items(value, _mapped(described, lambda d: d.summary), now)
        return _mapped(described, lambda d: d.token), summary

    def _leaf(self, item: Any, now: ValueState, digest: bool) -> _Described:
        records, wanted = self._records, self._values
        stats = wanted != "meta"
        if wanted == "stats" and is_tensor(item):
            token, _ = records.leaf(item, KeepLevel.META, now)
            return _Described(token, self._tensor(token, item, now, digest))
        level = KeepLevel.FULL if _is_short(item) else KeepLevel[wanted.upper()]
        token, made = records.leaf(item, level, now)
        if not stats or not is_array(item):
            return _Described(token, summarize_leaf(item, now))
        kept = made() if callable(made) else made
        found = _numbers(records, item) if kept is None else kept.stats
        return _Described(token, summarize_leaf(item, now, found))

    def _tensor(self, token: Token, tensor: Any, now: ValueState, digest: bool) -> ValueSummary:
        """Return the `ValueSummary` of a tensor, and keep its statistics under its token."""
        records = self._records
        made: Made | None = None

        def whole() -> dict[str, Any] | None:
            nonlocal made
            if records.keeper is not None:
                made = records.keeper.keep(token, tensor, KeepLevel.STATS)
            return made.stats if isinstance(made, Kept) else None

        found = (
            summarize_array(tensor, True, digest)
            if self._shown
            else summarize_whole(tensor, whole, now)
        )
        if found.stats is not None and made is None:
            records.kept.append((token, Kept(found.stats, None)))
        return found


def summarize(value: Any, numbers: bool = False, digest: bool = False) -> ValueSummary:
    """Summarize any value; with `numbers`, compute those of arrays too, which takes time."""
    # Hooks get a tuple of one tensor: `describe` would cost more than it is worth there.
    is_pack = type(value) in (tuple, list) and len(value) == 1
    inner = value[0] if is_pack else value
    if is_array(inner):
        found = summarize_array(inner, numbers, digest)
        if is_pack:
            items = (("0", found),)
            found = ValueSummary(
                OTHER, type(value).__name__, items=items, length=1, memory=id(value)
            )
        return found
    if type(value) in CONSTANTS:
        return summarize_leaf(value, _identity(value))
    known: dict[int, ValueSummary] = {}

    def leaf(item: Any) -> ValueSummary:
        found = known.get(id(item))
        if found is None:
            is_plain = not is_array(item)
            found = (
                summarize_leaf(item, _identity(item))
                if is_plain
                else summarize_array(item, numbers, digest)
            )
            known[id(item)] = found
        return found

    described = describe(value, leaf, 0, leaf)
    if isinstance(described, ValueSummary):
        return described
    return summarize_items(value, described, _identity(value))


def _identity(value: Any) -> ValueState:
    """Return the state of a value that is no array: its identity, nothing of its content."""
    return ValueState(type(value).__name__, (), id(value), 0)


def _mapped(described: Any, part: Callable[[_Described], Any]) -> Any:
    """Return the same nesting with one part of each leaf."""
    if isinstance(described, _Described):
        return part(described)
    if isinstance(described, dict):
        return {key: _mapped(item, part) for key, item in described.items()}
    if isinstance(described, list):
        return [_mapped(item, part) for item in described]
    return described


def is_equal(before: ValueSummary | None, after: ValueSummary) -> bool:
    """Return whether two values with equal facts are known to have the same content."""
    old, new = (before.stats if before is not None else None) or {}, after.stats or {}
    return "digest" in old and old["digest"] == new.get("digest")


def is_same(one: Any, other: Any, equal: Callable[[Any, Any], Any] | None = None) -> bool:
    """Return whether two values are the same to a watch: same facts and same content.

    `equal` compares objects of the program's classes, which differ by their identity otherwise.
    """
    if one is other or type(one) is not type(other):
        return one is other
    if isinstance(one, dict):
        same = one.keys() == other.keys()
        return same and all(is_same(one[key], other[key], equal) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other, [equal] * len(one)))
    before, after = state_of(one), state_of(other)
    if before.same == after.same:
        return True
    if is_tensor(one):  # the states of large ones hold versions, and these may differ
        digests = (
            summarize(one, numbers=True, digest=True),
            summarize(other, numbers=True, digest=True),
        )
        return before.facts == after.facts and is_equal(*digests)
    if equal is None or is_array(one) or type(one) in CONSTANTS:
        return False
    try:
        return bool(equal(one, other))
    except Exception as odd:  # an object that cannot be compared
        pass_on(odd)
        return False


def _numbers(records: ValueRecords, item: Any) -> dict[str, Any] | None:
    """Compute the statistics of an array or tensor as it is now, without keeping them."""
    if not is_tensor(item):
        return array_statistics(item)
    if records.keeper is None or records.budget.is_over():
        return None
    return tensor_numbers(item)


def _is_short(value: Any) -> bool:
    """Return whether a value is a constant that costs next to nothing to keep."""
    cls = type(value)
    return cls in CONSTANTS and (cls not in (str, bytes) or len(value) <= _LONGEST_TEXT)

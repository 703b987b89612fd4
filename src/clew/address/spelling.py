"""Near misses: the names that exist closest to one that does not.

In: a name and the names that exist. Out: those the user most likely meant, best first.
"""

from __future__ import annotations

import difflib
import heapq
import re
from collections.abc import Callable, Iterable

# `nearest` compares closely only this many names; a cheap count chooses them.
_SHORTLIST = 128
_LONGEST_COMPARED = 200
_SPELLING = 3


def nearest(name: str, candidates: Iterable[str], n: int = 5) -> list[str]:
    """Return the `n` names closest to `name`, best first: what the user most likely meant.

    First the name itself, then the name in another case, then names that end with it (a forgotten
    prefix), then similar spelling. Ties are broken by the names alone.

    >>> nearest("layers.0", ["encoder.layers.0", "encoder.layers.1", "head"], n=2)
    ['encoder.layers.0', 'encoder.layers.1']
    """
    wanted = name.casefold()
    compared = wanted[-_LONGEST_COMPARED:]
    pairs = {compared[i : i + 2] for i in range(len(compared) - 1)} or {compared}
    scored: list[tuple[int, int, int, str]] = []
    for candidate in set(candidates):
        folded = candidate.casefold()
        rank = _rank(name, wanted, candidate, folded)
        shared = sum([pair in folded for pair in pairs]) if rank == _SPELLING else 0
        scored.append((rank, -shared, abs(len(folded) - len(wanted)), candidate))
    short = heapq.nsmallest(max(n, _SHORTLIST), scored)
    closeness = _closeness_to(compared)
    order = sorted(
        (rank, closeness(found) if rank == _SPELLING else (), length, _natural(found), found)
        for rank, _, length, found in short
    )
    return [found for *_, found in order[: max(n, 0)]]


def _rank(name: str, wanted: str, candidate: str, folded: str) -> int:
    if candidate == name:
        return 0
    if folded == wanted:
        return 1
    return 2 if folded.endswith("." + wanted) else _SPELLING


def _closeness_to(wanted: str) -> Callable[[str], tuple[float, ...]]:
    """Return a sort key: small for names spelled like `wanted`, as a whole or at their end."""
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted)
    depth = wanted.count(".") + 1

    def likeness(text: str) -> float:
        matcher.set_seq1(text[-_LONGEST_COMPARED:])
        # Letters found in sequence count more than the same letters scattered.
        return matcher.ratio() - 0.01 * len(matcher.get_matching_blocks())

    def closeness(candidate: str) -> tuple[float, ...]:
        folded = candidate.casefold()
        parts = folded.split(".")
        whole = likeness(folded)
        # A forgotten prefix counts little, so that the misspelt end still leads to its name.
        end = 0.9 * likeness(".".join(parts[-depth:])) if len(parts) > depth else whole
        return (-max(whole, end), -whole)

    return closeness


def _natural(name: str) -> list[tuple[int, str]]:
    """Order `layers.2` before `layers.10`."""
    runs = re.findall(r"[0-9]+|[^0-9]+", name)
    return [(len(run) if run[0] in "0123456789" else 0, run) for run in runs]

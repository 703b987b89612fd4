"""The rank at the very end of an address: `fc#2:grad@1`.

In: an address as text. Out: the address and its rank apart, or together again, and what an error
says of an '@' that is no rank. Must not know: what comes before the rank.
"""

from __future__ import annotations

import re

from clew.errors import ClewError

_MOST = 10**9  # ranks have at most nine digits
_NUMBER = r"0|[1-9][0-9]{0,8}|\*"
_RANK = re.compile(rf"@({_NUMBER})\Z")
_WORD = re.compile(r"[^.\[:#@]*")


def split_rank(text: str) -> tuple[str, int | None]:
    """Split an address into what comes before its rank, and the rank; None is every rank.

    >>> split_rank("fc#2:grad@1"), split_rank("fc@*"), split_rank("cache['a@1']")
    (('fc#2:grad', 1), ('fc', None), ("cache['a@1']", None))
    """
    found = _RANK.search(text)
    if found is None:
        return text, None
    return text[: found.start()], None if found[1] == "*" else int(found[1])


def with_rank(address: str, rank: int) -> str:
    """Write an address with one rank, replacing the rank it may have.

    >>> with_rank("fc#2:grad", 1), with_rank("#0@0", 1), with_rank("", 1)
    ('fc#2:grad@1', '#0@1', '@1')
    """
    if not 0 <= rank < _MOST:
        raise ClewError(f"{rank!r} is not a rank; give a whole number from 0 to {_MOST - 1}")
    return f"{split_rank(address)[0]}@{rank:d}"


def rank_fault(text: str, at: int) -> tuple[str, int, str]:
    """Return what is wrong with the '@' at a position, where, and what to write instead."""
    found = _WORD.match(text, at + 1)
    word = found[0] if found else ""
    after = text[at + 1 + len(word) :]
    if not word:
        return "no rank after '@'", at, "write '@1' for rank 1, nothing for every rank"
    if re.fullmatch(_NUMBER, word):
        if after and not after.startswith("@"):
            return "the rank comes last", at, f"write {text[:at]}{after}@{word}"
        return "a second rank", at, "write one rank, '@1', or nothing for every rank"
    if re.fullmatch("0[0-9]+", word):
        return "a rank has no leading zero", at, f"write '@{word.lstrip('0')[:9] or 0}'"
    if re.fullmatch("[0-9]+", word):
        return "the rank is too large", at, "write a number below 10**9"
    return (
        f"{word[:40]!r} is not a rank",
        at,
        "write '@1' for rank 1, nothing for every rank, and quote a name that has an '@': ['a@b']",
    )

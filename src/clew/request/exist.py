"""The words of `exist=`: what happens to an earlier thing at the place that is written to."""

from __future__ import annotations

from clew.errors import ClewError, warn

EXIST = ("replace", "keep", "error")


def checked_exist(exist: str) -> str:
    """Refuse what is no value of `exist=`; understand that of earlier versions."""
    if exist == "new":
        warn(
            "exist='new' is called exist='keep' now: the name holds the newest, the earlier one is "
            "moved to a name with a number; 'new' goes with Clew 0.3"
        )
        return "keep"
    if exist not in EXIST:
        raise ClewError(f"exist={exist!r} is not one of {', '.join(map(repr, EXIST))}")
    return exist

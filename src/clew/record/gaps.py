"""Collect what a recording could not see, and failures of Clew; warn of each once.

Input: `Gap`s and exceptions raised in Clew. Output: entries of `t.coverage` and warnings.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from clew.errors import warn
from clew.events.model import Gap
from clew.program_errors import pass_on

_log = logging.getLogger("clew")


# For a program that reached the recursion limit: without the trace it may not have.
TOO_DEEP = Gap(
    "calls as deep as Python allows",
    "",
    "the hooks that see module calls add a frame to each, so that a RecursionError may come of "
    "modules nested some 200 deep",
    "raise the limit before the block: sys.setrecursionlimit(2 * sys.getrecursionlimit())",
)


class Gaps:
    """The gaps of one trace, each once; `doing` and `what` are words for the warnings.

    With `warns`, each gap is a warning too, for places where nobody can read coverage later.
    """

    def __init__(self, doing: str = "record", what: str = "an event", warns: bool = False) -> None:
        self._warns = warns
        self._doing = doing
        self._what = what
        self._gaps: dict[tuple[str, str], Gap] = {}
        self._faulted = False

    def __iter__(self) -> Iterator[Gap]:
        return iter(list(self._gaps.values()))

    def __len__(self) -> int:
        return len(self._gaps)

    def add(self, gap: Gap) -> bool:
        """Add a gap; return whether it is new."""
        known = len(self._gaps)
        self._gaps.setdefault((gap.what, gap.where), gap)
        is_new = len(self._gaps) > known
        if is_new and self._warns:
            warn(str(gap))
        return is_new

    def tell(self, gap: Gap) -> bool:
        """Add a gap and warn of it; return whether it is new."""
        is_new = self.add(gap)
        if is_new and not self._warns:
            warn(str(gap))
        return is_new

    def fault(self, fault: BaseException, where: str) -> None:
        """Record a failure inside Clew as a gap, and warn once; never raise it."""
        pass_on(fault)
        if isinstance(fault, RecursionError):
            self.add(TOO_DEEP)
            return
        text = f"{type(fault).__name__}: {fault}"
        why = f"Clew failed while recording it ({text})"
        self.add(Gap(self._what, where, why, "please report it"))
        if not self._faulted:
            self._faulted = True
            _log.debug("a fault in %s", where, exc_info=fault)
            warn(f"Clew could not {self._doing} {where}: {text}; the program goes on")


class WorkerGaps(Gaps):
    """Drops the gaps of a worker, which its parent knows; `report` hands over failures of Clew."""

    def __init__(self, report: Callable[[str, str], object]) -> None:
        super().__init__()
        self._report = report

    def add(self, gap: Gap) -> bool:
        """Do nothing."""
        return False

    def fault(self, fault: BaseException, where: str) -> None:
        """Report a failure inside Clew; never raise it."""
        pass_on(fault)
        self._report(where, f"{type(fault).__name__}: {fault}")

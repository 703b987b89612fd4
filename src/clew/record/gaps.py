"""What a recording could not see, and its own failures: noted, and said once.

In come `Gap`s and exceptions of Clew's own, out go entries of `t.coverage` and warnings.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from clew.errors import warn
from clew.events.model import Gap
from clew.program_errors import pass_on

_log = logging.getLogger("clew")


# Of a program that ran into the limit: it may not have done so without the trace.
TOO_DEEP = Gap(
    "calls as deep as Python allows",
    "",
    "the hooks that see module calls add a frame to each, so that a RecursionError may come of "
    "modules nested some 200 deep",
    "raise the limit before the block: sys.setrecursionlimit(2 * sys.getrecursionlimit())",
)


class Gaps:
    """The gaps of one trace, each once; `doing` and `what` say what it does, to what.

    With `warns` each is a warning too, where nobody can ask for them later.
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
        """Note something that was not seen; whether it is new."""
        known = len(self._gaps)
        self._gaps.setdefault((gap.what, gap.where), gap)
        is_new = len(self._gaps) > known
        if is_new and self._warns:
            warn(str(gap))
        return is_new

    def tell(self, gap: Gap) -> bool:
        """Note something that was not seen, and warn of it; whether it is new."""
        is_new = self.add(gap)
        if is_new and not self._warns:
            warn(str(gap))
        return is_new

    def fault(self, fault: BaseException, where: str) -> None:
        """A failure of Clew's own: said once, noted, never raised."""
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


class UnreadGaps(Gaps):
    """Gaps where nobody can read them: what is not seen in a worker, its parent says."""

    def add(self, gap: Gap) -> bool:
        """Nothing."""
        return False

    def fault(self, fault: BaseException, where: str) -> None:
        """Nothing but what everybody has to know of."""
        pass_on(fault)

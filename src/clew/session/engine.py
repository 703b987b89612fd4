"""Choose the engine that records ops: the native one where it was built, else the python one."""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

from clew.errors import ClewError
from clew.events.model import Gap
from clew.request.request import Request
from clew.request.switches import engine_of_environment
from clew.session import on_first_use

# A library is there, and something is wrong with it.
_BROKEN = ("other target", "unsafe", "damaged", "failed")


class Engine(NamedTuple):
    """The engine of a recording: `module` is the native one's, None for the python one's."""

    module: ModuleType | None
    # Why it is not the native one, if that was built and cannot be used.
    gap: Gap | None = None

    @property
    def name(self) -> str:
        """Return the name that `env` has."""
        return "python" if self.module is None else "native"


def chosen_engine(request: Request) -> Engine:
    """Return the engine for a request; an error if it asks for one that there is not."""
    chosen = request.engine if request.engine != "auto" else engine_of_environment()
    if chosen == "python":
        return Engine(None)
    unable = _python_only(request)
    if unable and request.engine == "native":
        raise ClewError(f"engine='native' cannot do {unable}: leave engine= out")
    if unable:
        return Engine(None)
    found = on_first_use.loaded()
    if found.module is None and chosen == "native":
        todo = f": {found.remedy}" if found.remedy else ""
        raise ClewError(f"engine='native' cannot be used: {found.reason}{todo}")
    if found.module is None and found.state in _BROKEN:
        why = f"the python engine records: {found.reason}"
        return Engine(None, Gap("the native engine", "", why, found.remedy))
    return Engine(found.module)


def _python_only(request: Request) -> str:
    """Return what in a request only the python engine can do; empty if there is nothing."""
    return "" if request.live is False else "live=, which tells of each op as it runs"

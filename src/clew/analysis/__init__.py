"""Analysis: plain functions from a `Run` to answers. Knows nothing of capture or of views.

The functions that `Trace` uses for addresses are listed here, and imported at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew.lazy_names import lazy_names

if TYPE_CHECKING:
    from clew.analysis.selection import find, names, select
    from clew.analysis.series import series_of

__all__ = ["find", "names", "select", "series_of"]

__getattr__ = lazy_names(
    globals(),
    {
        "find": "clew.analysis.selection",
        "names": "clew.analysis.selection",
        "select": "clew.analysis.selection",
        "series_of": "clew.analysis.series",
    },
)

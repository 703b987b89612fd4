"""Analysis: plain functions from a `Run` to answers. Knows nothing of capture or of views.

What `Trace` and the commands ask is listed here, and imported when it is first asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew.lazy_names import lazy_names

if TYPE_CHECKING:
    from clew.analysis.graph.call_list import read_calls
    from clew.analysis.selection import address_of, find, names, select
    from clew.analysis.series import series_of

__all__ = [
    "address_of",
    "find",
    "names",
    "read_calls",
    "select",
    "series_of",
]

__getattr__ = lazy_names(
    globals(),
    {
        "address_of": "clew.analysis.selection",
        "find": "clew.analysis.selection",
        "names": "clew.analysis.selection",
        "read_calls": "clew.analysis.graph.call_list",
        "select": "clew.analysis.selection",
        "series_of": "clew.analysis.series",
    },
)

"""Every fact of every event, for all ranks, derived once.

Input: the columns of each rank. Output: a `Run`, which analyses, views and exports read. Must not
know torch, nor how anything is shown.

What `Trace` needs for reading and saving, and what few runs need, is listed here and imported when
it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew.lazy_names import lazy_names

if TYPE_CHECKING:
    from clew.run.derive import derive_all
    from clew.run.run import Run
    from clew.run.writing import rows_of_rank

__all__ = ["Run", "derive_all", "rows_of_rank"]

__getattr__ = lazy_names(
    globals(),
    {
        "Run": "clew.run.run",
        "derive_all": "clew.run.derive",
        "rows_of_rank": "clew.run.writing",
    },
)

"""Analysis: plain functions from a `Run` to answers. Knows nothing of capture or of views.

What `Trace` and the commands ask is listed here, and imported when it is first asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew.lazy_names import lazy_names

if TYPE_CHECKING:
    from clew.analysis.crash import first_crash
    from clew.analysis.diff.differ import diff_runs
    from clew.analysis.diff.noise import noise_of_runs
    from clew.analysis.graph.call_list import read_calls
    from clew.analysis.health.health_check import health_of
    from clew.analysis.memory.memory_answer import memory_of
    from clew.analysis.ranks.comparing import compare_ranks
    from clew.analysis.selection import address_of, find, names, select
    from clew.analysis.series import series_of
    from clew.analysis.shape_question import why_shape

__all__ = [
    "address_of",
    "compare_ranks",
    "diff_runs",
    "find",
    "first_crash",
    "health_of",
    "memory_of",
    "names",
    "noise_of_runs",
    "read_calls",
    "select",
    "series_of",
    "why_shape",
]

__getattr__ = lazy_names(
    globals(),
    {
        "address_of": "clew.analysis.selection",
        "compare_ranks": "clew.analysis.ranks.comparing",
        "diff_runs": "clew.analysis.diff.differ",
        "find": "clew.analysis.selection",
        "first_crash": "clew.analysis.crash",
        "memory_of": "clew.analysis.memory.memory_answer",
        "health_of": "clew.analysis.health.health_check",
        "names": "clew.analysis.selection",
        "noise_of_runs": "clew.analysis.diff.noise",
        "read_calls": "clew.analysis.graph.call_list",
        "select": "clew.analysis.selection",
        "series_of": "clew.analysis.series",
        "why_shape": "clew.analysis.shape_question",
    },
)

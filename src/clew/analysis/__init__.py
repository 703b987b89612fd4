"""Analysis: plain functions from a `Run` to answers. Knows nothing of capture or of views.

What `Trace` and the commands ask is listed here, and imported when it is first asked; so is what
analyses ask only of few runs, which all others need not wait for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew.lazy_names import lazy_names

if TYPE_CHECKING:
    from clew.analysis.crash import first_crash
    from clew.analysis.diff.differ import diff_runs
    from clew.analysis.diff.noise import noise_of_runs
    from clew.analysis.findings import findings_of
    from clew.analysis.graph.call_list import read_calls
    from clew.analysis.health.health_check import health_of
    from clew.analysis.memory.memory_answer import memory_of
    from clew.analysis.memory.memory_lines import growth_text
    from clew.analysis.nonfinite import nonfinite_of
    from clew.analysis.ranks.comparing import compare_ranks
    from clew.analysis.selection import address_of, find, names, select
    from clew.analysis.series import series_of
    from clew.analysis.shape_question import why_shape
    from clew.analysis.unmeant import is_unmeant

__all__ = [
    "address_of",
    "compare_ranks",
    "diff_runs",
    "find",
    "findings_of",
    "first_crash",
    "growth_text",
    "health_of",
    "is_unmeant",
    "memory_of",
    "names",
    "noise_of_runs",
    "nonfinite_of",
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
        "findings_of": "clew.analysis.findings",
        "first_crash": "clew.analysis.crash",
        "growth_text": "clew.analysis.memory.memory_lines",
        "health_of": "clew.analysis.health.health_check",
        "is_unmeant": "clew.analysis.unmeant",
        "memory_of": "clew.analysis.memory.memory_answer",
        "names": "clew.analysis.selection",
        "noise_of_runs": "clew.analysis.diff.noise",
        "nonfinite_of": "clew.analysis.nonfinite",
        "read_calls": "clew.analysis.graph.call_list",
        "select": "clew.analysis.selection",
        "series_of": "clew.analysis.series",
        "why_shape": "clew.analysis.shape_question",
    },
)

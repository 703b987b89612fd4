"""`clew.testing.assert_same_run`: compare two runs in a test.

Input: traces. Output: nothing, or an `AssertionError` that says where two runs part.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from clew.analysis.diff.noise import Noise
from clew.traces import Trace, diff


def assert_same_run(
    a: Trace | str | os.PathLike[str],
    b: Trace | str | os.PathLike[str],
    *,
    map: Mapping[str, str] | None = None,
    tol: Noise | float | None = None,
) -> None:
    """Raise AssertionError with the first difference if two runs differ beyond noise.

    The arguments are those of `clew.diff`:

        clew.testing.assert_same_run("reference.clew", t)
    """
    found = diff(a, b, map=map, tol=tol)
    if not found.equal:
        raise AssertionError(f"the runs differ\n{found}")

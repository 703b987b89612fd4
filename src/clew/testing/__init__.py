"""Helpers for tests of programs that Clew records, and the plugin of pytest.

`assert_same_run` compares traces; pytest loads `clew.testing.pytest_plugin` by its entry point.
Names are imported at first use, since that plugin is loaded for projects that never use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew.lazy_names import lazy_names

_HOME = {
    "Snapshots": "clew.testing.model_snapshots",
    "assert_same_run": "clew.testing.same_run",
    "tests_with_files": "clew.testing.snapshot_files",
}

__all__ = ["assert_same_run"]

if TYPE_CHECKING:
    from clew.testing.model_snapshots import Snapshots as Snapshots
    from clew.testing.same_run import assert_same_run
    from clew.testing.snapshot_files import tests_with_files as tests_with_files

__getattr__ = lazy_names(globals(), _HOME)


def __dir__() -> list[str]:
    return __all__

"""Helpers for tests of programs that Clew records, and the plugin of pytest.

`assert_same_run` compares traces; pytest loads `clew.testing.pytest_plugin` by its entry point.
Names are imported at first use, since that plugin is loaded for projects that never use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clew.lazy_names import lazy_names

_HOME = {"assert_same_run": "clew.testing.same_run"}

__all__ = ["assert_same_run"]

if TYPE_CHECKING:
    from clew.testing.same_run import assert_same_run

__getattr__ = lazy_names(globals(), _HOME)


def __dir__() -> list[str]:
    return __all__

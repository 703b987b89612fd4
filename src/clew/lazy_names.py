"""Names that a package offers, imported from their modules at first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any


def lazy_names(package: dict[str, Any], homes: dict[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package with these globals; `homes` maps names to modules."""

    def found(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        value = package[name] = getattr(importlib.import_module(home), name)
        return value

    return found

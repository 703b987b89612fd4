"""Packages that Clew uses if they are installed, imported where they are used.

Input: the name of a module, and what needs it. Output: the module, or a `MissingDependency` that
names the command that installs it.
"""

from __future__ import annotations

import importlib
from typing import Any

from clew.errors import MissingDependency

# Module: the package that has it, and how it is installed.
_PACKAGES = {
    "fsspec": ("fsspec", "clew[remote]"),
    "h5py": ("h5py", "clew[hdf5]"),
    "pandas": ("pandas", "clew[pandas]"),
    "resvg_py": ("resvg-py", "clew[png]"),
    "torch": ("torch", "clew[torch]"),
    "zarr": ("zarr", "clew[zarr]"),
}


def optional_package(module: str, feature: str) -> Any:
    """Import a module of a package that may be missing; `feature` is what needs it.

    >>> optional_package("torch", "Value.tensor()").__name__
    'torch'
    """
    package, install = _PACKAGES[module]
    try:
        return importlib.import_module(module)
    except ImportError as missing:
        raise MissingDependency(feature, package, install) from missing

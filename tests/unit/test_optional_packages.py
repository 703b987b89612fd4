"""A package that is missing is named, with an extra that there is and that installs it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import tomllib

from clew.errors import MissingDependency
from clew.optional_packages import _PACKAGES, optional_package

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.mark.parametrize("module", _PACKAGES)
def test_the_extra_that_is_named_installs_the_package(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    extras = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependency, match=r'^a test needs .* Run: pip install "clew\[') as no:
        optional_package(module, "a test")
    extra = no.value.install.removeprefix("clew[").removesuffix("]")
    installed = {re.split(r"[^\w-]", requirement)[0] for requirement in extras[extra]}
    assert no.value.package in installed


def test_a_package_that_is_there_is_imported() -> None:
    assert optional_package("torch", "a test") is sys.modules["torch"]

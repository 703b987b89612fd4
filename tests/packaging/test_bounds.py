"""The lower bounds that are promised are the versions that are tried."""

from __future__ import annotations

import re
from importlib.metadata import distribution
from pathlib import Path

import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def pinned(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text().splitlines()
    pins = (re.match(r"([\w.-]+)==([^;\s]+)", line) for line in lines)
    return {canonicalize_name(pin[1]): pin[2] for pin in pins if pin}


def promised() -> list[Requirement]:
    extras = PROJECT["project"]["optional-dependencies"]
    texts = [*PROJECT["project"]["dependencies"], *(text for of in extras.values() for text in of)]
    # An extra may name others.
    return [needed for text in texts if (needed := Requirement(text)).name != "clew"]


def test_the_lowest_versions_are_the_ones_tried() -> None:
    tried = pinned("constraints-lowest.txt")
    # Of torch, only the version of constraints.txt can be had as a build without CUDA everywhere.
    for needed in promised():
        if needed.name != "torch":
            (bound,) = needed.specifier
            assert bound.operator == ">="
            assert Version(tried[needed.name]) == Version(bound.version), needed.name


def test_every_requirement_has_its_version_in_the_constraints() -> None:
    developing = [Requirement(text) for text in PROJECT["dependency-groups"]["dev"]]
    exact = pinned("constraints.txt")
    for needed in [*promised(), *developing]:
        assert needed.specifier.contains(exact[canonicalize_name(needed.name)]), needed.name


def test_the_constraints_hold_every_version_that_is_installed() -> None:
    exact = pinned("constraints.txt")
    waiting = [*promised(), *map(Requirement, PROJECT["dependency-groups"]["dev"])]
    met = set[str]()
    while waiting:
        needed = waiting.pop()
        if str(needed) in met:
            continue
        met.add(str(needed))
        installed = distribution(needed.name)
        # A build of its own, such as 2.13.0+cpu, is that version.
        version = Version(installed.version).public
        assert version == exact.get(canonicalize_name(needed.name)), needed.name
        extras = needed.extras or {""}
        for other in map(Requirement, installed.requires or ()):
            if not other.marker or any(other.marker.evaluate({"extra": e}) for e in extras):
                waiting.append(other)
    assert len(met) > 50

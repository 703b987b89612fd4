"""New names for the modules of one run, so that they are those of the other.

Input: a mapping of patterns, `{"model.layers.*": "transformer.h.*"}`, from names of the first run
to names of the second. Output: a function from names of the second to names of the first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from clew.errors import ClewError


def renaming(names: Mapping[str, str]) -> Callable[[str], str]:
    """Return what gives a module of the second run its name in the first."""
    rules = [(_pattern(theirs, ours), _template(ours)) for ours, theirs in names.items()]

    def renamed(path: str) -> str:
        for pattern, template in rules:
            found = pattern.fullmatch(path)
            if found is not None:
                rest = found["rest"]
                return found.expand(template) + (rest if found.expand(template) else rest[1:])
        return path

    return renamed


def _pattern(theirs: str, ours: str) -> re.Pattern[str]:
    if theirs.count("*") != ours.count("*"):
        raise ClewError(
            f"map={{{ours!r}: {theirs!r}}}: both sides need the same number of *, each of which "
            "stands for one part of a name"
        )
    parts = "([^.]+)".join(re.escape(part) for part in theirs.split("*"))
    return re.compile(rf"{parts}(?P<rest>(?:\..*)?)" if theirs else r"(?P<rest>.*)")


def _template(ours: str) -> str:
    parts = ours.replace("\\", "\\\\").split("*")
    return "".join(
        part + (rf"\g<{n}>" if n < len(parts) else "") for n, part in enumerate(parts, 1)
    )

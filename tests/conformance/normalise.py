"""What is compared: an op as plain data, and the one way in which every account is made alike.

In come the ops of one run as somebody saw them (an engine, an oracle); out come the same ops
without what two runs of one program need not share: addresses in texts, the objects behind
constants, the names of threads that the program did not name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

# A tensor as an argument or a result: dtype and shape.
Facts = tuple[str, tuple[int, ...] | None]


@dataclass(frozen=True)
class SeenOp:
    """One op. `producers` has for each tensor it took the number of the op that made it,
    or the call that did."""

    name: str
    thread: str = "MainThread"
    # By their paths: constants as text, tensors as "tensor".
    arguments: tuple[tuple[str, str], ...] = ()
    inputs: tuple[Facts, ...] = ()
    outputs: tuple[Facts, ...] = ()
    producers: tuple[int | str | None, ...] = ()
    line: str | None = None
    module: str | None = None
    phase: str = "forward"
    error: str | None = None


def normalise(ops: Iterable[SeenOp]) -> list[SeenOp]:
    """Make accounts of one program by different observers alike."""
    return [
        replace(
            op,
            error=op.error and _ADDRESS.sub("0x", op.error),
            arguments=tuple((path, _ADDRESS.sub("0x", text)) for path, text in op.arguments),
        )
        for op in ops
    ]


_ADDRESS = re.compile(r"0x[0-9a-f]+")


def constant_text(value: Any) -> str:
    """A constant argument as text; what is no constant by its type."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else repr(value)
    if value is None or isinstance(value, (bool, int, complex, str)):
        return repr(value)
    return str(value) if type(value).__module__ == "torch" else type(value).__name__


def flat(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """The leaves of nested lists, tuples and mappings, by path."""
    if isinstance(value, Mapping):
        items: Any = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        return [(path, value)]
    found = []
    for key, item in items:
        found += flat(item, f"{path}.{key}" if path else str(key))
    return found

"""A crash that was planted in a program, and what the note about it must say.

In the source, the line that must be named carries the comment `# crash: NAME`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

# Makes a model, and the function that runs it until it crashes.
Program = Callable[[], tuple[nn.Module | None, Callable[[], Any]]]


@dataclass(frozen=True)
class Planted:
    """One crash: `module` and the line, names and sizes that the note must have, the right guess.

    `guess` is a pattern for the guesses that are right, None where no single change is known.
    """

    name: str
    kind: str
    program: Program
    module: str | None
    names: tuple[str, ...]
    sizes: tuple[str, ...]
    guess: str | None = None

    @property
    def line(self) -> str:
        """Return `file:line` of the marked line."""
        file = inspect.getsourcefile(self.program)
        assert file is not None
        with open(file, encoding="utf-8") as source:
            for number, text in enumerate(source, 1):
                if re.search(rf"# crash:(.*,)? {re.escape(self.name)}(,|$)", text.rstrip()):
                    return f"{file}:{number}"
        raise LookupError(f"no line of {file} is marked with {self.name}")


def run_of(model: nn.Module, *inputs: Any) -> tuple[nn.Module, Callable[[], Any]]:
    """Return a model and a function that calls it."""

    def run() -> Any:
        return model(*inputs)

    return model, run


def trained(model: nn.Module, loss: Callable[[], Any]) -> tuple[nn.Module, Callable[[], Any]]:
    """Return a model and a function that runs it up to its loss."""
    return model, loss

"""Number random generators: which one an op draws from, and how often it was drawn from before."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from clew.torch_compat import generator_key

# Arguments that say whether an op draws at all.
_SWITCHES = ("train", "training")
_CHANCES = ("dropout_p", "p", "dropout")


class Argument(NamedTuple):
    """An argument of an op."""

    position: int
    name: str
    default: Any

    def of(self, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        """Return its value in a call, the default if the call does not pass it."""
        return args[self.position] if self.position < len(args) else given.get(*self[1:])


class DrawArguments(NamedTuple):
    """The arguments of an op that decide whether it draws, and from which generator."""

    generator: Argument | None
    switch: Argument | None
    chance: Argument | None


def drawing_of(func: Any, schema: Any) -> DrawArguments | None:
    """Find the arguments that control an op's random numbers; None if it draws none."""
    if schema is None or torch.Tag.nondeterministic_seeded not in getattr(func, "tags", ()):
        return None
    arguments = [Argument(n, a.name, a.default_value) for n, a in enumerate(schema.arguments)]

    def among(*names: str) -> Argument | None:
        return next((argument for argument in arguments if argument.name in names), None)

    is_dropout = "dropout" in schema.name or "attention" in schema.name
    return DrawArguments(
        among("generator"), among(*_SWITCHES), among(*_CHANCES) if is_dropout else None
    )


class Generators:
    """The generators of one recording, numbered as they are met."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[str | int, int] = {}
        self._counts: list[int] = []

    def draw(
        self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None
    ) -> tuple[int, int]:
        """Return the generator that an op call draws from and its earlier draws; -1 if none."""
        source, switch, chance = op.draws
        given = kwargs or {}
        is_off = switch is not None and switch.of(args, given) is False
        if is_off or (chance is not None and chance.of(args, given) == 0):
            return -1, -1
        number = self._number(None if source is None else source.of(args, given), args, given)
        self._counts[number] += 1
        return number, self._counts[number] - 1

    def _number(self, generator: Any, args: tuple[Any, ...], given: dict[str, Any]) -> int:
        name = str(_device(args, given))
        key: str | int = name
        if generator is not None:
            # Python's object for it is another each time; what it stands for is not.
            key, name = generator_key(generator), f"{generator.device} {len(self.names)}"
        number: int | None = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.names)
            self.names.append(name)
            self._counts.append(0)
        return number


def _device(args: tuple[Any, ...], given: dict[str, Any]) -> Any:
    """Return the device whose default generator an op uses: its tensors', or the one it names."""
    for value in (*args, *given.values()):
        if isinstance(value, Tensor):
            return value.device
    return given.get("device") or "cpu"

"""What is planted: bugs, architectures in two implementations, and models with bugs in them.

A model takes a `Size` and `Faults`, which say what bug each layer has. `# bug: NAME` marks the
lines that are wrong with a bug, or, if it omits an op, the lines of the op in the right program.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

# The bug of each layer, by its number.
Faults = Mapping[int, str]
OUTSIDE = -1
DECODER = 10  # the first layer of a decoder that follows an encoder


@dataclass(frozen=True)
class Size:
    """How big a model is."""

    width: int = 64
    layers: int = 3
    heads: int = 4


SMALL, REAL = Size(), Size(width=768, layers=2, heads=12)


@dataclass(frozen=True)
class Bug:
    """A bug: the layers it can be in, and whether it leaves an op out, so that only A has its line.

    `same` and `cross` say whether it can be in the reference and in the port.
    """

    name: str
    layers: tuple[int, ...] = (0, 1)
    omits: bool = False
    same: bool = True
    cross: bool = True


def bugs(
    names: str,
    layers: tuple[int, ...] = (0, 1),
    omits: bool = False,
    same: bool = True,
    cross: bool = True,
) -> tuple[Bug, ...]:
    """Make bugs of one kind from their names."""
    return tuple(Bug(name, layers, omits, same, cross) for name in names.split())


@dataclass(frozen=True)
class Architecture:
    """A reference and its port; `convert` copies the weights of the one into the other.

    `places` says what a layer is called in each: a template, and one for the layers of a decoder.
    """

    name: str
    reference: Callable[[Size, Faults], nn.Module]
    port: Callable[[Size, Faults], nn.Module]
    convert: Callable[[Any, Any], None]
    inputs: Callable[[], tuple[Any, ...]]
    places: tuple[tuple[str, ...], tuple[str, ...]]
    bugs: tuple[Bug, ...]

    def place(self, layer: int, of_port: bool) -> str:
        """Return the path of a layer; "" for what is outside of all layers."""
        templates = self.places[of_port]
        if layer == OUTSIDE:
            return ""
        if layer >= DECODER:
            return templates[1].format(layer - DECODER)
        return templates[0].format(layer)

    def clean(self, size: Size = SMALL, seed: int = 0) -> nn.Module:
        """Make the reference without bugs."""
        torch.manual_seed(seed)
        model = self.reference(size, {})
        enliven(model)
        return model.eval()

    def copy(
        self, clean: nn.Module, size: Size, faults: Faults | None = None, *, as_port: bool = False
    ) -> nn.Module:
        """Make a model with the weights of a clean reference: the same code or its port."""
        torch.manual_seed(1)
        model = (self.port if as_port else self.reference)(size, faults or {})
        with torch.no_grad():
            if as_port:
                self.convert(clean, model)
            else:
                model.load_state_dict(clean.state_dict())
            for part in model.modules():
                harm = getattr(part, "harm", None)
                if harm is not None:
                    harm()
        return model.eval()


def enliven(model: nn.Module) -> None:
    """Give weights of a trained model's size, so that each part of it has an effect."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() >= 2:
                weight.normal_(0, 1.2 / math.sqrt(weight[0].numel()))
            elif name.endswith("weight"):
                weight.normal_(1, 0.2)
            else:
                weight.normal_(0, 0.2)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(0, 0.3)
            elif name.endswith("running_var"):
                buffer.uniform_(0.5, 2.0)


def tokens(rows: int = 2, length: int = 12, words: int = 60, seed: int = 3) -> torch.Tensor:
    """Return ids of words."""
    return torch.randint(0, words, (rows, length), generator=_generator(seed))


def picture(rows: int = 2, side: int = 16, channels: int = 3, seed: int = 4) -> torch.Tensor:
    """Return pictures with other means per channel."""
    noise = torch.randn(rows, channels, side, side, generator=_generator(seed))
    return noise * 0.5 + torch.linspace(0.2, 0.9, channels).view(1, -1, 1, 1)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@cache
def marked_lines(file: str, name: str) -> frozenset[int]:
    """Return the numbers of the lines of a file that a bug's name marks."""
    mark = re.compile(rf"# bug:(.*,)? {re.escape(name)}(,|$)")
    with open(file, encoding="utf-8") as source:
        return frozenset(n for n, text in enumerate(source, 1) if mark.search(text.rstrip()))


def file_of(made: Callable[..., Any]) -> str:
    """Return the file that a model's class is in."""
    found = inspect.getsourcefile(made)
    assert found is not None
    return found


def unmarked(architectures: Iterable[Architecture]) -> list[str]:
    """Return bugs without a mark in a file that should have one."""
    missing = []
    for one in architectures:
        for bug in one.bugs:
            sides = [one.reference] * (bug.same or bug.omits) + [one.port] * (
                bug.cross and not bug.omits
            )
            found = [marked_lines(file_of(side), bug.name) for side in sides]
            missing += [f"{one.name}: {bug.name}"] * (not all(found))
    return missing

"""Run one module of a model on inputs that another model's run had.

Input: a call of a model, the module of it, and tensors to give it. Output: what the module
returned. The model runs as it always does up to that module, so that everything around it is as it
should be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import torch
from torch import Tensor, nn

from clew.replay.calling import Call
from clew.replay.nested_tensors import changed, floats_in

# Tensors of more dimensions are not turned: there would be too many ways.
_MOST_DIMENSIONS = 5


class _Finished(BaseException):
    """Leave the model: the module has returned. Programs that catch Exception do not catch it."""


@dataclass(frozen=True, slots=True)
class Grafted:
    """What a module returned, and how far each of its own inputs was from the one it was given."""

    results: list[Tensor]
    input_errors: list[float]


class _Graft:
    """The hooks of one graft: they replace the inputs of one call of a module."""

    def __init__(self, number: int, given: Sequence[Tensor | None]) -> None:
        self._left = number
        self._given = given
        self._is_on = False
        self._errors: list[float] = []
        self.found: Grafted | None = None

    def before(self, _: nn.Module, args: Any, kwargs: Any) -> Any:
        self._left -= 1
        if self._left >= 0 or self._is_on:
            return None
        self._is_on = True
        own = floats_in((args, kwargs))
        if len(own) != len(self._given):
            raise _Finished
        placed: dict[int, Tensor] = {}
        for tensor, other in zip(own, self._given, strict=True):
            turned = tensor if other is None else arranged(other, tensor)
            if turned is None:
                raise _Finished
            placed[id(tensor)] = turned.to(tensor.device, tensor.dtype)
            self._errors.append(error_of(tensor, turned))
        return changed((args, kwargs), lambda tensor: placed.get(id(tensor), tensor))

    def after(self, _: nn.Module, args: Any, output: Any) -> None:
        if self._is_on:
            results = [one.detach().clone() for one in floats_in(output)]
            self.found = Grafted(results, self._errors)
            raise _Finished


def graft(call: Call, path: str, number: int, given: Sequence[Tensor | None]) -> Grafted | None:
    """Return what the module returns in its call of this number, given these tensors.

    `given` has one for each tensor of floating point numbers among its arguments, None for what is
    to stay. None is returned where the tensors do not fit, or the module is not called so often.
    """
    model = call.module
    assert model is not None
    module = model.get_submodule(path)
    one = _Graft(number, given)
    hooks = [
        module.register_forward_pre_hook(one.before, with_kwargs=True),
        module.register_forward_hook(one.after, prepend=True),
    ]
    try:
        call()
    except _Finished:
        pass
    finally:
        for hook in hooks:
            hook.remove()
    return one.found


def arranged(tensor: Tensor, like: Tensor) -> Tensor | None:
    """Return a tensor in the layout of another of as many elements, nearly the same numbers.

    Of all orders of dimensions the one nearest to the other is taken; None if none is near.
    """
    if tensor.shape == like.shape:
        return tensor
    if tensor.numel() != like.numel() or tensor.dim() > _MOST_DIMENSIONS:
        return None
    orders = permutations(range(tensor.dim()))
    ways = [tensor.permute(order).reshape(like.shape) for order in orders]
    nearest = min(ways, key=lambda way: error_of(way, like))
    return nearest if error_of(nearest, like) < _NEAR else None


# Tensors this far from each other, as a part of their size, are not the same in another layout.
_NEAR = 0.2


def error_of(tensor: Tensor, reference: Tensor) -> float:
    """Return how far a tensor is from another of its shape, as a part of the other's size."""
    x, y = (one.detach().to("cpu", torch.float64).flatten() for one in (tensor, reference))
    same = (x == y) | (x.isnan() & y.isnan())
    apart = torch.where(same, 0.0, x - y).norm()
    size = torch.where(y.isfinite(), y, 0.0).norm()
    return float(apart / size) if size > 0 else float(apart)

"""Leave models as they were, whatever is run with them.

Input: models. Output: a context in which they may run; at its end, also after exceptions, random
generators, buffers, parameters, gradients and modes are those of its beginning, bit for bit. What a
forward pass keeps in plain attributes, such as a cache in a dict, is not seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from clew.replay.random_state import random_state


@contextmanager
def unchanged(models: Iterable[object], weights: bool = True) -> Iterator[None]:
    """Put back, at the end, what running the modules among `models` may change.

    Without `weights`, parameters and gradients are not looked after: a forward pass leaves them.
    """
    modules = [part for model in models if isinstance(model, nn.Module) for part in model.modules()]
    modes = [(module, module.training) for module in modules]
    parameters = [p for module in modules if weights for p in module.parameters(recurse=False)]
    buffers = [
        (module, name, buffer, _copy(buffer))
        for module in modules
        for name, buffer in module.named_buffers(recurse=False)
    ]
    copies = [(one, _copy(one)) for one in parameters]
    gradients = [(one, one.grad, _copy(one.grad)) for one in parameters]
    generators = random_state()
    try:
        yield
    finally:
        for module, is_training in modes:
            module.training = is_training
        for module, name, buffer, copy in buffers:
            _write(buffer, copy)
            if getattr(module, name, None) is not buffer:
                setattr(module, name, buffer)
        for one, copy in copies:
            _write(one, copy)
        for one, gradient, copy in gradients:
            _write(gradient, copy)
            one.grad = gradient
        generators.restore()


def _copy(tensor: Tensor | None) -> Tensor | None:
    """Copy a tensor; None for one that has no data."""
    if tensor is None or tensor.is_meta or torch.nn.parameter.is_lazy(tensor):
        return None
    return tensor.detach().clone()


def _write(tensor: Tensor | None, copy: Tensor | None) -> None:
    """Write back what a tensor held, if it holds anything else.

    `.data` keeps the version as it is: a graph that saved the tensor must still be usable.
    """
    if tensor is not None and copy is not None and not is_same(tensor, copy):
        tensor.data.copy_(copy)


def is_same(x: Tensor, y: Tensor) -> bool:
    """Return whether two tensors are the same bit for bit: -0 is not 0, a NaN is itself."""
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    try:
        mine, theirs = (z.detach().contiguous().flatten().view(torch.uint8) for z in (x, y))
    except RuntimeError:  # sparse or quantised: what torch calls equal
        return torch.equal(x, y)
    return torch.equal(mine, theirs)

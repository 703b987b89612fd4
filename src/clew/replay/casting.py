"""Copies of models that compute in another precision.

Input: a module. Output: a copy of it in which every tensor of floating point numbers has another
dtype, perhaps rounded to a narrower one on the way. The module itself is not touched.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from clew.replay.nested_tensors import changed, tensors_in

# From the widest to the narrowest.
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Precision:
    """Two models of other precision: the dtype to compute in, and the one to round weights to."""

    wide: torch.dtype
    narrow: torch.dtype

    @property
    def rounding(self) -> float:
        """Return the relative error of a number rounded to the narrow dtype."""
        return torch.finfo(self.narrow).eps / 2

    def __str__(self) -> str:
        return str(self.narrow).removeprefix("torch.")

    def of(self, inputs: Any) -> Any:
        """Return inputs as numbers of the wide dtype that the narrow one has."""
        return changed(inputs, lambda x: _cast(x, self.wide, self.narrow) if _is_cast(x) else x)


def precision_of(*models: object) -> Precision | None:
    """Return how to compare two models; None if both compute in float32 or more, and alike."""
    found = [dtype_of(model) for model in models]
    dtypes = [dtype for dtype in found if dtype is not None]
    if len(dtypes) < len(models):
        return None
    narrow = max(dtypes, key=_FLOATS.index)
    wide = min(*dtypes, torch.float32, key=_FLOATS.index)
    return None if narrow == wide else Precision(wide, narrow)


def dtype_of(model: object) -> torch.dtype | None:
    """Return the dtype of most numbers of a module's parameters; None if it has none."""
    if not isinstance(model, nn.Module):
        return None
    counts: Counter[torch.dtype] = Counter()
    for parameter in model.parameters():
        if parameter.dtype in _FLOATS:
            counts[parameter.dtype] += parameter.numel()
    return max(counts, key=counts.__getitem__) if counts else None


def cast_copy(
    model: nn.Module, dtype: torch.dtype, through: torch.dtype | None = None, buffers: bool = True
) -> nn.Module | None:
    """Return a copy that computes in `dtype`, its weights rounded to `through`, or None.

    None where a module cannot be copied. Without `buffers` only parameters are rounded.
    """
    parameters = {id(one) for one in model.parameters()}
    # Attributes that hold a narrower dtype, as `self.dtype` does, are cast too. Wider ones are
    # there for a reason.
    narrower = _FLOATS[_FLOATS.index(dtype) + 1 :]
    memo: dict[int, Any] = {id(known): dtype for known in narrower}
    for tensor in _tensors_of(model):
        if id(tensor) in memo:
            continue
        if _is_cast(tensor):
            rounded = through if buffers or id(tensor) in parameters else None
            memo[id(tensor)] = _as_before(_cast(tensor, dtype, rounded), tensor)
        elif not tensor.is_leaf:  # which cannot be copied otherwise
            memo[id(tensor)] = tensor.detach().clone()
    try:
        found: nn.Module = copy.deepcopy(model, memo)
    except Exception:  # whatever the attributes of a module raise
        return None
    return found


def floats_of(model: nn.Module) -> list[Tensor]:
    """Return all tensors of floating point numbers that a module has, each once."""
    return list({id(one): one for one in _tensors_of(model) if _is_cast(one)}.values())


def _tensors_of(model: nn.Module) -> Iterable[Tensor]:
    """Give parameters, buffers, and the tensors that modules have as plain attributes."""
    yield from model.parameters()
    yield from model.buffers()
    for module in model.modules():
        yield from tensors_in(vars(module))


def _is_cast(tensor: Tensor) -> bool:
    return tensor.dtype in _FLOATS and type(tensor) in (Tensor, nn.Parameter)


def _cast(tensor: Tensor, dtype: torch.dtype, through: torch.dtype | None) -> Tensor:
    data = tensor.detach()
    data = data if through is None else data.to(through)
    return data.to(dtype, copy=True).requires_grad_(tensor.requires_grad)


def _as_before(data: Tensor, tensor: Tensor) -> Tensor:
    """Make a parameter of what was one."""
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(data, tensor.requires_grad)
    return data

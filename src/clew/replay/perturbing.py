"""Move the weights of a model by one unit in the last place.

Input: a model and a seed. Output: weights that another rounding would have given as well, written
into the model. The caller puts the old ones back, as `model_state.unchanged` does.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Integers of the size of a number; one more or less is the next number of larger or smaller size.
_BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}


def perturb(model: nn.Module, seed: int) -> int:
    """Move each weight up or down at random; return how many parameters were moved.

    Zeros stay, as they may be a mask, and so do numbers that are not finite. The generator is one
    of its own, so that the program's draw what they would have drawn.
    """
    generator = torch.Generator().manual_seed(seed)
    moved = 0
    for parameter in model.parameters():
        data = parameter.data
        if type(data) is Tensor and data.dtype in _BITS and not data.is_meta:
            data.copy_(moved_by_one(data, generator))
            moved += 1
    return moved


def moved_by_one(data: Tensor, generator: torch.Generator) -> Tensor:
    """Return a copy in which each number is a neighbour of the one given."""
    found = data.detach().clone(memory_format=torch.contiguous_format)
    signs = torch.randint(0, 2, found.shape, generator=generator).mul_(2).sub_(1).to(data.device)
    # The largest number has no neighbour above it that is finite.
    most = torch.finfo(data.dtype).max
    signs = torch.where(found.abs() >= most, -1, signs)
    stays = (found == 0) | ~found.isfinite()
    found.view(_BITS[data.dtype]).add_(torch.where(stays, 0, signs).to(_BITS[data.dtype]))
    return found

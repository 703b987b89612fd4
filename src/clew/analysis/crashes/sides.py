"""Of tensors whose sizes do not go together: which was changed on its way, and by what.

Input: tensors with a dimension each. Output: those whose history explains the crash, and the
padding of a convolution that would have kept the size.
"""

from __future__ import annotations

from typing import TypeAlias

from clew.analysis.crashes.origins import history
from clew.analysis.crashes.scene import GivenTensor, Scene
from clew.analysis.shape.call import (
    CONCATENATED,
    COUNTED,
    MERGED,
    REDUCED,
    REPEATED,
    RESIZED,
    SLICED,
    SPLIT,
)

Side: TypeAlias = tuple[GivenTensor, int]

# What makes another size of the one that came in.
_CHANGES = (RESIZED, SLICED, CONCATENATED, MERGED, SPLIT, REPEATED, COUNTED, REDUCED)


def changed_sides(scene: Scene, *sides: Side) -> tuple[Side, ...]:
    """Return the side that an op gave another size; all of them if none or several are so."""
    changed = tuple(side for side in sides if _is_changed(scene, *side))
    return changed if len(changed) == 1 else sides


def _is_changed(scene: Scene, tensor: GivenTensor, dim: int) -> bool:
    chain = history(scene.run, tensor.number, dim)
    return chain is not None and any(link.how in _CHANGES for link in chain.links)


def is_resized(scene: Scene, tensor: GivenTensor, dim: int) -> bool:
    """Return whether a convolution, a pooling or the like has decided a size."""
    chain = history(scene.run, tensor.number, dim)
    return chain is not None and any(link.how == RESIZED for link in chain.links)


def padding_that_fits(scene: Scene, one: GivenTensor, two: GivenTensor) -> str | None:
    """Return the padding of a convolution after which two tensors have the same sizes."""
    if len(one.shape) != len(two.shape):
        return None
    apart = [dim for dim in range(len(one.shape)) if one.shape[dim] != two.shape[dim]]
    for small, big in ((one, two), (two, one)):
        found = {_padding(scene, small, dim, big.shape[dim]) for dim in apart}
        guess = found.pop() if len(found) == 1 else None
        if guess is not None:
            return guess
    return None


def _padding(scene: Scene, tensor: GivenTensor, dim: int, wanted: int) -> str | None:
    """Return the padding with which the only op that changed a size would have kept it."""
    chain = history(scene.run, tensor.number, dim)
    changes = [] if chain is None else [link for link in chain.links if link.how in _CHANGES]
    event = changes[0].event if len(changes) == 1 else None
    row = -1 if event is None else int(scene.run.owner_row[event.row])
    if row < 0 or not changes[0].before or changes[0].before[0].size != wanted:
        return None
    call = scene.run.event(row)
    settings, axis = call.attributes, dim - 2
    if not call.name.startswith("Conv") or "Transpose" in call.name or axis < 0:
        return None
    numbers = [_at(settings.get(name), axis) for name in ("kernel_size", "stride", "padding")]
    kernel, stride, padding = numbers
    if kernel is None or padding is None or stride != 1:
        return None
    lost = wanted - changes[0].after.size
    if lost <= 0 or lost % 2:
        return None
    return f"padding={padding + lost // 2} in {call.module or 'the root module'}"


def _at(setting: object, axis: int) -> int | None:
    """Return the number that a setting has for an axis; one stands for all."""
    found = setting[axis] if isinstance(setting, list) and axis < len(setting) else setting
    return found if type(found) is int else None

"""What would lower the peak, as far as the figures of the run show it."""

from __future__ import annotations

import numpy as np

from clew.analysis.memory.memory_groups import NO_MODULES
from clew.analysis.memory.memory_kinds import GRADIENTS, KINDS, SAVED, MemoryKinds
from clew.analysis.memory.memory_model import MemoryGrowth, MemoryMoment
from clew.events.columns import Flags
from clew.events.number_text import bytes_text
from clew.events.vocabulary import BACKWARD, FORWARD, OP

# What is less than this part of the peak is not worth a change.
_PART = 0.1


def advice(
    kinds: MemoryKinds, mine: Flags, peak: MemoryMoment, growth: MemoryGrowth | None
) -> tuple[str, ...]:
    """List what would lower the peak, with the bytes it would save, the most first."""
    found = [*_checkpoint(peak), *_earlier_zero_grad(kinds, mine, peak)]
    if growth is not None:
        found.append((growth.bytes, _let_go(growth)))
    worth = [(size, text) for size, text in found if size >= _PART * peak.bytes]
    return tuple(text for _, text in sorted(worth, key=lambda pair: -pair[0]))


def _checkpoint(peak: MemoryMoment) -> list[tuple[int, str]]:
    """Name the outermost module that saves most for backward."""
    saved = KINDS[SAVED]
    tops: dict[str, int] = {}
    for group in peak.modules:
        if group.kinds.get(saved):
            top = group.name.partition(".")[0]
            # The layers of a container are one thing to wrap.
            top = "the numbered layers" if top.isdigit() else top
            tops[top] = tops.get(top, 0) + group.kinds[saved]
    for nowhere in NO_MODULES:
        tops.pop(nowhere, None)
    if not tops:
        return []
    name, size = max(tops.items(), key=lambda pair: pair[1])
    text = (
        f"ops in {name} save {bytes_text(size)} for backward ({_share(size, peak)} of the peak): "
        "torch.utils.checkpoint computes such tensors again instead; a smaller batch saves less"
    )
    return [(size, text)]


def _earlier_zero_grad(
    kinds: MemoryKinds, mine: Flags, peak: MemoryMoment
) -> list[tuple[int, str]]:
    """Find gradients that are alive at a peak in the forward pass and freed before the backward."""
    lives, run = kinds.lives, kinds.lives.run
    row = peak.event.row
    if run.phase[row] != FORWARD:
        return []
    is_backward = (run.columns.kind[row:] == OP) & (run.phase[row:] == BACKWARD)
    following = row + int(is_backward.argmax()) if is_backward.any() else -1
    useless = mine & (kinds.fixed == GRADIENTS) & (lives.born <= row) & (lives.died > row)
    useless &= lives.died <= following
    size = int(np.sum(lives.size[useless]))
    text = (
        f"gradients of the step before take {bytes_text(size)} ({_share(size, peak)} of the peak) "
        "until zero_grad() frees them after the forward pass: call it before"
    )
    return [(size, text)] if size else []


def _let_go(growth: MemoryGrowth) -> str:
    made = growth.lines[0].name
    what = "detach() what is stored, or store .item()" if growth.has_graph else "let go of it"
    return (
        f"{bytes_text(growth.bytes)} stayed from earlier steps, most of it made at {made}: {what}"
    )


def _share(size: int, peak: MemoryMoment) -> str:
    return f"{100 * size / max(peak.bytes, 1):.0f} %"

"""Out of memory: how much was asked for, and who holds how much of what was recorded."""

from __future__ import annotations

import re
from collections import Counter

from clew.analysis.crashes.cause import Cause
from clew.analysis.crashes.scene import Scene
from clew.analysis.memory.memory_answer import memory_search
from clew.analysis.memory.memory_groups import NO_MODULES
from clew.analysis.memory.memory_kinds import BUFFERS, GRADIENTS, INPUTS, KINDS, PARAMETERS, STATE
from clew.events.number_text import bytes_text
from clew.run.run import Run

_MOST_HOLDERS = 4
_ASKED = re.compile(r"tried to allocate (?P<count>[\d.]+) ?(?P<unit>[KMGT]iB|bytes)?", re.I)


def memory_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell how much was asked for, and which modules hold most of what is alive."""
    says = []
    asked = _ASKED.search(scene.text)
    if asked is not None:
        bytes_asked = asked["unit"] in (None, "bytes")
        count = (
            bytes_text(int(float(asked["count"]))) if bytes_asked else asked[0].split(maxsplit=3)[3]
        )
        says.append(f"asked for {count}")
    held = bytes_held(scene.run)
    if held:
        total = sum(held.values())
        shown = [f"{who} {bytes_text(size)}" for who, size in held.most_common(_MOST_HOLDERS)]
        more = len(held) - len(shown)
        rest = f", {more} more" if more > 0 else ""
        says.append(f"alive, as far as recorded: {bytes_text(total)}: {', '.join(shown)}{rest}")
    return Cause(tuple(says))


def bytes_held(run: Run) -> Counter[str]:
    """Return the bytes that are alive at the end of a run, by kind and outermost module."""
    held: Counter[str] = Counter()
    if not len(run):
        return held
    search = memory_search(run)
    for rank in run.ranks:
        last = search.lives.rows_of(rank)[1] - 1
        for device in range(len(search.lives.devices)):
            for group in search.moment(last, device).modules:
                for kind, size in group.kinds.items():
                    held[_holder(kind, group.name)] += size
    return held


def _holder(kind: str, module: str) -> str:
    if kind == KINDS[INPUTS]:
        return "data from outside"
    if kind == KINDS[PARAMETERS]:
        return f"parameters of {module.partition('.')[0]}"
    words = kind if kind in (KINDS[GRADIENTS], KINDS[STATE], KINDS[BUFFERS]) else "results"
    return f"{words} {module}" if module in NO_MODULES else f"{words} in {module}"

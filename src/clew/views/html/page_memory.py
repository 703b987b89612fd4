"""Memory over time for the page: bytes alive by kind, the peak, the largest at each moment.

Input: a run and the rows of its events in the report. Output: columns `memory.*` and a head. The
figures are those of `t.memory()`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clew.analysis.memory.memory_answer import MemorySearch, answered, memory_search
from clew.analysis.memory.memory_curve import LARGEST, MemoryCurve, memory_curve, storage_texts
from clew.analysis.memory.memory_kinds import KINDS
from clew.analysis.memory.memory_lines import event_place, growth_text
from clew.analysis.memory.memory_model import DeviceMemory
from clew.events.columns import Ints
from clew.events.vocabulary import COMPOSITE
from clew.run.run import Run
from clew.views.html.payload import Packer
from clew.views.text.style import meta_text

# Moments of all devices together, and the fewest of one.
_POINTS = 800
_FEWEST = 100
_MOST_DEVICES = 64


def pack_memory(run: Run, new_row: Ints, packer: Packer, prefix: str) -> dict[str, Any]:
    """Pack the curves; return kinds, devices with their peaks, storages, and what is not counted.

    `new_row` has for each event its row in the report, -1 if it was left out.
    """
    search = memory_search(run)
    answer = answered(search)
    new_row = _for_composites(run, new_row)
    shown = answer.devices[:_MOST_DEVICES]
    points = max(_POINTS // max(len(shown), 1), _FEWEST)
    curves = [
        memory_curve(search, one.rank, search.lives.devices.index(one.device), points)
        for one in shown
    ]
    listed = _pack_curves(run, curves, new_row, packer, f"{prefix}memory.")
    _pack_made(search, new_row, packer, f"{prefix}memory.made")
    counts = [len(curve.row) for curve in curves]
    return {
        "kinds": list(KINDS),
        "devices": [
            {**_device(one, new_row), "points": count}
            for one, count in zip(shown, counts, strict=True)
        ],
        "largest": LARGEST,
        **_pack_storages(search, listed, new_row, packer, f"{prefix}memory.storage_"),
        "notes": list(answer.notes),
    }


def _for_composites(run: Run, new_row: Ints) -> Ints:
    """Return the rows with those of composites, which no page holds, at the op that follows."""
    rows = np.arange(len(run))
    after = np.where(run.columns.kind == COMPOSITE, len(run) - 1, rows)
    return new_row[np.minimum.accumulate(after[::-1])[::-1]]


def _device(one: DeviceMemory, new_row: Ints) -> dict[str, Any]:
    peak = one.peak
    grows = [] if one.growth is None else [growth_text(one.growth)]
    return {
        "rank": one.rank,
        "device": one.device,
        "bytes": peak.bytes,
        "row": int(new_row[peak.event.row]),
        "where": event_place(peak.event),
        "step": peak.event.step,
        "advice": [*grows, *one.advice],
    }


def _pack_curves(
    run: Run, curves: list[MemoryCurve], new_row: Ints, packer: Packer, prefix: str
) -> Ints:
    """Pack the curves one after the other; return the storages they mention."""
    none = np.zeros(0, dtype=np.int64)
    rows = np.concatenate([none, *(curve.row for curve in curves)])
    largest = np.concatenate([none, *(curve.largest.ravel() for curve in curves)])
    listed = np.unique(largest[largest >= 0])
    at = np.where(largest >= 0, np.searchsorted(listed, largest) + 1, 0)
    packer.add(prefix + "event", new_row[rows] + 1)
    packer.add(prefix + "time", run.start[rows].astype(np.float64))
    packer.add(prefix + "step", run.step[rows])
    packer.add(prefix + "kinds", np.concatenate([none, *(c.kinds.ravel() for c in curves)]))
    packer.add(prefix + "largest", at)
    kinds = np.concatenate([none, *(curve.largest_kind.ravel() for curve in curves)])
    packer.add(prefix + "largest_kind", kinds)
    return listed


def _pack_made(search: MemorySearch, new_row: Ints, packer: Packer, name: str) -> None:
    """Pack for each event of the report the bytes of the storages that it made."""
    lives = search.lives
    made = lives.made >= 0
    row = new_row[lives.made[made]]
    count = int(new_row.max(initial=-1)) + 1
    packer.add(name, np.bincount(row[row >= 0], lives.size[made][row >= 0], count).astype(np.int64))


def _pack_storages(
    search: MemorySearch, storages: Ints, new_row: Ints, packer: Packer, prefix: str
) -> dict[str, list[str]]:
    """Pack what storages are, the tensors first seen on them, their bytes, who made them."""
    lives, c = search.lives, search.run.columns
    codes, texts = storage_texts(search, storages)
    metas, looks = np.unique(c.meta[lives.first[storages]], return_inverse=True)
    made = lives.made[storages]
    packer.add(prefix + "text", codes)
    packer.add(prefix + "look", looks)
    packer.add(prefix + "bytes", lives.size[storages])
    packer.add(prefix + "event", np.where(made >= 0, new_row[made] + 1, 0))
    return {"texts": texts, "looks": [meta_text(c.metas[number]) for number in metas.tolist()]}

"""Run planted crashes and count what their notes have right."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

import torch

import clew
from accuracy import composed, generative, sequences, tables, training, vision
from accuracy.planted import Planted

ALL = [
    *vision.CRASHES,
    *sequences.CRASHES,
    *tables.CRASHES,
    *training.CRASHES,
    *generative.CRASHES,
    *composed.CRASHES,
]


@dataclass(frozen=True)
class Outcome:
    """What a note has: each True or False, and the guess as `right`, `wrong` or `absent`."""

    planted: Planted
    note: str
    module: bool
    line: bool
    names: bool
    sizes: bool
    guess: str


def outcome(planted: Planted, engine: str) -> Outcome:
    """Run one crash under an engine and compare its note with what was planted."""
    torch.manual_seed(0)
    model, run = planted.program()
    with contextlib.suppress(Exception), clew.trace(model, engine=engine) as t:
        run()
    if t.crash is None:
        raise RuntimeError(f"{planted.name} did not crash")
    if any("Clew failed" in gap.why for gap in t.coverage):
        raise RuntimeError(f"{planted.name}: {t.coverage}")
    note, event = t.crash.note, t.crash.event
    # The line itself has the names as well, and says nothing about them.
    facts = "\n".join(line for line in note.splitlines() if not line.startswith("  at "))
    guesses = re.findall(r"perhaps: (.*)", note)
    guess = "absent"
    if guesses:
        right = planted.guess is not None and re.search(planted.guess, guesses[0])
        guess = "right" if right else "wrong"
    return Outcome(
        planted,
        note,
        event is not None and event.module == planted.module,
        f"at {planted.line}:" in note,
        all(re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", facts) for name in planted.names),
        all(size in facts for size in planted.sizes),
        guess,
    )


def outcomes(engine: str, planted: Iterable[Planted] = ALL) -> list[Outcome]:
    """Run crashes under an engine."""
    return [outcome(one, engine) for one in planted]


def report(engine: str, found: list[Outcome], verbose: bool = False) -> str:
    """Write hit rates, and below them each miss."""
    kinds = {one.planted.kind for one in found}
    rates = [
        f"{part} {100 * sum(getattr(one, part) for one in found) / len(found):.0f} %"
        for part in ("module", "line", "names", "sizes")
    ]
    counts = [
        f"{sum(one.guess == word for one in found)} {word}" for word in ("right", "wrong", "absent")
    ]
    missed = sum(one.guess == "absent" and one.planted.guess is not None for one in found)
    lines = [
        f"crashes, {engine} engine: {len(found)} of {len(kinds)} kinds; the note names "
        f"{', '.join(rates)}; guesses: {', '.join(counts)} (of those, {missed} had a right one)"
    ]
    for one in found:
        parts = [part for part in ("module", "line", "names", "sizes") if not getattr(one, part)]
        if one.guess == "wrong" or (one.guess == "absent" and one.planted.guess is not None):
            parts.append(f"guess {one.guess}")
        if parts:
            lines.append(f"  {one.planted.name}: {', '.join(parts)}")
            lines += [f"    {line}" for line in one.note.splitlines()] if verbose else []
    return "\n".join(lines)

"""`python -m accuracy [LIST ...] [-v]`: how often the answers about planted faults are right."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable

from accuracy import (
    compiled,
    crashes,
    health,
    memory,
    nondeterminism,
    nonfinite,
    rank_faults,
    shapes,
    training_pairs,
)
from accuracy.ports import everything
from clew.native.loading import load


def engines() -> tuple[str, ...]:
    """Return the engines that can be used here."""
    return ("python", "native") if load() is not None else ("python",)


def main() -> None:
    """Run everything that is planted and ask every question, or those of the lists named."""
    logging.disable(logging.ERROR)  # the compiler's own report of what it cannot run
    verbose = "-v" in sys.argv
    asked = [word for word in sys.argv[1:] if word != "-v"] or [*LISTS, "diff"]
    unknown = set(asked) - {*LISTS, "diff"}
    if unknown:
        sys.exit(f"no such list: {', '.join(sorted(unknown))}; there are {', '.join(LISTS)}, diff")
    for name, report in LISTS.items():
        for engine in engines() if name in asked else ():
            os.environ["CLEW_ENGINE"] = engine
            print(report(engine, verbose), flush=True)
    if "diff" in asked:
        for line in everything.report(verbose):
            print(line, flush=True)


def _about_crashes(engine: str, verbose: bool) -> str:
    return crashes.report(engine, crashes.outcomes(engine), verbose=verbose)


def _about_memory(engine: str, verbose: bool) -> str:
    return memory.report(engine, list(memory.figures(engine)))


def _about_health(engine: str, verbose: bool) -> str:
    return health.report(engine, verbose=verbose)


def _about_nonfinite(engine: str, verbose: bool) -> str:
    found = nonfinite.outcomes(nonfinite.all_planted())
    return nonfinite.report(engine, found, nonfinite.false_alarms(), verbose)


def _about_shapes(engine: str, verbose: bool) -> str:
    """Write how many questions about shapes are answered rightly, and below that each miss."""
    asked = list(shapes.questions((engine,)))
    wrong = [one for one in asked if not one.is_right]
    rate = f"{len(asked) - len(wrong)} of {len(asked)} questions answered rightly"
    misses = [f"  {one.name}: {one.expected}; answered {one.answered}" for one in wrong]
    return "\n".join([f"shapes, {engine} engine: {rate}", *misses])


LISTS: dict[str, Callable[[str, bool], str]] = {
    "crashes": _about_crashes,
    "shapes": _about_shapes,
    "memory": _about_memory,
    "health": _about_health,
    "nonfinite": _about_nonfinite,
    "ranks": rank_faults.report,
    "determinism": nondeterminism.report,
    "training": training_pairs.report,
    "compiled": compiled.report,
}


if __name__ == "__main__":
    main()

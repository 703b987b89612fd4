"""What an engine under test tells of a program, in the words of the suite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import clew
from clew.events.model import Gap
from clew.native.loading import load
from clew.run.value import Value
from tests.conformance.normalise import Facts, SeenOp, constant_text, flat
from tests.conformance.oracle import Outcome, outcome, prepare
from tests.conformance.programs import Prepared

# The engines that see ops, and those of them that are there.
ENGINES = ("python", "native")
BUILT = ENGINES if load() is not None else ENGINES[:1]


@dataclass
class Observed:
    """The ops an engine saw, what the program left behind under it, and what it says of gaps."""

    ops: list[SeenOp]
    outcome: Outcome
    coverage: list[Gap]


def observe(engine: str, build: Callable[[], Prepared]) -> Observed:
    """Run a program under an engine."""
    assert engine in ENGINES
    prepared = prepare(build)
    with clew.trace(prepared.model, engine=engine) as t:
        found = prepared.run()
    left = outcome(prepared, found)
    ops = list(t.ops)
    numbers = {event.id: number for number, event in enumerate(ops)}
    return Observed([_seen(event, numbers) for event in ops], left, list(t.coverage))


def _seen(event: Any, numbers: dict[int, int]) -> SeenOp:
    results = [value for path, value in event.outputs.items() if path == "" or path[0].isdigit()]
    source = event.source
    return SeenOp(
        name=event.name,
        thread=event.thread,
        arguments=tuple(
            (path, _argument(leaf))
            for name, value in event.arguments.items()
            for path, leaf in flat(value, name)
        ),
        inputs=tuple(map(_facts, event.inputs.values())),
        outputs=() if event.error else tuple(map(_facts, results)),
        producers=tuple(_producer(value, numbers) for value in event.inputs.values()),
        line=source and f"{Path(source.file).name}:{source.line}",
        module=event.module,
        phase=event.phase,
        error=event.error,
    )


def _argument(value: Any) -> str:
    return "tensor" if isinstance(value, Value) else constant_text(value)


def _producer(value: Any, numbers: dict[int, int]) -> int | str | None:
    made_by = value.producer
    return None if made_by is None else numbers.get(made_by.id, f"{made_by.kind} {made_by.name}")


def _facts(value: Any) -> Facts:
    return value.dtype, value.shape

"""Everything that can be read from a trace, as plain data that compares bit by bit."""

from __future__ import annotations

from typing import Any

from clew.errors import ClewError, NotRecorded
from clew.events.model import Source
from clew.run.event import Event
from clew.run.value import Value
from clew.traces import Trace

_EVENT = (
    "id", "parent_id", "kind", "name", "address", "module", "call", "step", "phase", "rank",
    "thread", "start", "duration", "error", "reconstructed",
)  # fmt: skip
_VALUE = (
    "number", "dtype", "shape", "stride", "device", "layout", "cls", "placements", "local_shape",
    "requires_grad", "version", "storage", "name", "digest",
)  # fmt: skip
# What differs between two runs of one program: when, and how values are counted.
_OF_THE_RUN = ("start", "duration", "number", "storage")


def facts_of(trace: Trace) -> dict[str, Any]:
    """A trace as plain data: events with all their fields, values with their bits, and the rest."""
    seen: dict[tuple[int, int], Any] = {}
    return {
        "events": [event_facts(event, seen) for event in trace.events],
        "values": seen,
        "coverage": [str(gap) for gap in trace.coverage],
        "crash": _crash(trace),
        "steps": trace.steps,
        "ranks": trace.ranks,
        "modes": trace.modes,
        "sources": [dict(columns.sources) for columns, _ in trace._current_run().parts],
        "threads": [list(columns.threads) for columns, _ in trace._current_run().parts],
        "parameters": [list(columns.parameters) for columns, _ in trace._current_run().parts],
        "modules": [list(columns.modules) for columns, _ in trace._current_run().parts],
    }


def facts_of_any_run(trace: Trace) -> dict[str, Any]:
    """As `facts_of`, without what is another in each run."""
    facts = facts_of(trace)
    values = facts.pop("values")
    for event in facts["events"]:
        rank = int(event["rank"][1])
        for role in ("inputs", "outputs"):
            event[role] = {path: values[rank, n] for path, n in event[role].items()}
        event["arguments"] = {
            path: argument if isinstance(argument, tuple) else "a value"
            for path, argument in event["arguments"].items()
        }
        for name in _OF_THE_RUN:
            event.pop(name, None)
    for value in values.values():
        for name in _OF_THE_RUN:
            value.pop(name, None)
    return facts


def _crash(trace: Trace) -> Any:
    crash = trace.crash
    if crash is None:
        return None
    return crash.exception, crash.note, None if crash.event is None else crash.event.id


def event_facts(event: Event, seen: dict[tuple[int, int], Any]) -> dict[str, Any]:
    """One event with everything that hangs on it; its values go to `seen`, by rank and number."""
    facts = {name: exact(getattr(event, name)) for name in _EVENT}
    facts["source"] = _source(event.source)
    facts["stack"] = [_source(source) for source in event.stack]
    facts["forward"] = None if event.forward is None else event.forward.id
    for role in ("inputs", "outputs"):
        facts[role] = {path: v.number for path, v in getattr(event, role).items()}
        for value in getattr(event, role).values():
            if (event.rank, value.number) not in seen:
                seen[event.rank, value.number] = value_facts(value)
    facts["arguments"] = {
        path: f"value {a.number}" if isinstance(a, Value) else exact(a)
        for path, a in event.arguments.items()
    }
    return facts


def value_facts(value: Value) -> dict[str, Any]:
    """One value: its facts, statistics, producer, and the bits of its data."""
    facts = {name: getattr(value, name) for name in _VALUE}
    stats = value.stats
    facts["stats"] = (
        None if stats is None else {n: exact(getattr(stats, n)) for n in stats.__slots__}
    )
    facts["producer"] = None if value.producer is None else value.producer.id
    facts["data"] = data_of(value)
    return facts


def data_of(value: Value) -> Any:
    """The bits of a value's data, or why there is none."""
    kept = value._kept
    try:
        payload = None if kept is None else kept.payload
        return None if payload is None else (payload.dtype, payload.shape, bytes(payload.data))
    except NotRecorded:
        return None
    except ClewError as broken:
        return f"{type(broken).__name__}"


def exact(fact: Any) -> Any:
    """Data in a form in which NaN equals itself and 1 is neither 1.0 nor True."""
    if isinstance(fact, (list, tuple)):
        return type(fact).__name__, [exact(item) for item in fact]
    if isinstance(fact, float):
        return "float", fact.hex()
    return type(fact).__name__, repr(fact)


def _source(source: Source | None) -> Any:
    return None if source is None else tuple(getattr(source, n) for n in source.__slots__)

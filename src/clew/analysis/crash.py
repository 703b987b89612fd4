"""Why it crashed: a note about the innermost event that failed.

Input: a `Run`. Output: a note for the traceback: what failed and where, its
arguments by their names, what the layer expects, the cause, and at most one guess at a change.
"""

from __future__ import annotations

from clew.analysis.crashes.causes import cause_of
from clew.analysis.crashes.dimension_history import dimension_history
from clew.analysis.crashes.facts import CrashFacts, crash_facts
from clew.analysis.crashes.scene import GivenTensor, Scene, scene_of
from clew.analysis.failures import event_of_error, failing_event
from clew.plain_text import plain, plain_code, plain_lines
from clew.run.event import Crash, Event
from clew.run.run import Run

_LONGEST_NAME = 60
_MOST_ARGUMENTS = 8
_MOST_LINES = 15


def first_crash(run: Run) -> Crash | None:
    """Return the exception that ended the first rank that raised, None if none did."""
    for rank, text in run.crashes.items():
        event = failing_event(run, rank)
        facts = crash_facts(run.environments[rank])
        return Crash(text, event, crash_note(run, event, text, facts))
    return None


def crash_note(run: Run, event: Event | None, text: str, facts: CrashFacts | None = None) -> str:
    """Write what to add to a traceback; `facts` are what was noted when it crashed."""
    if event is None:
        return plain_lines(f"clew: {text}")
    facts = CrashFacts() if facts is None else facts
    inner = None if facts.inner is None else _inner(run, event, facts.inner)
    if inner is None or facts.inner is None:
        scene = scene_of(run, event, text, facts)
        lines = [f"clew: {_head(run, event, text)}", *_lines(scene, event)]
    else:
        scene = scene_of(run, inner, facts.inner, facts)
        lines = [f"clew: {_head(run, event, text)}", *_places(event)]
        lines += [f"  after {_head(run, inner, facts.inner)}", *_lines(scene, inner)]
    return "\n".join(map(plain, lines[:_MOST_LINES]))


def _inner(run: Run, event: Event, text: str) -> Event | None:
    """Return the event of an exception that led to the one of another event."""
    return event_of_error(run, text, int(run.process[event.row]))


def _head(run: Run, event: Event, text: str) -> str:
    if event.kind in ("op", "composite"):
        head = f"{event.name} failed"
    else:
        head = f"{text.partition(':')[0]} raised"
    where = "in the backward of" if event.phase == "backward" else "in"
    if event.module is not None:
        return f"{head} {where} {event.module or 'the root module'}"
    # A trace of values has no calls.
    return head if run.level == "values" else f"{head} outside any module"


def _lines(scene: Scene, event: Event) -> list[str]:
    cause = cause_of(scene)
    lines = _places(event)
    lines += _arguments(scene.arguments, "given") or _arguments(scene.near, "with")
    if scene.layer is not None:
        lines.append(f"  {scene.layer.name} is {scene.layer.said}")
    if cause is not None:
        lines += [f"  {said}" for said in cause.says if said]
        for side in cause.sides:
            history = dimension_history(scene.run, *side, is_only=len(cause.sides) == 1)
            lines += [f"  {line}" for line in history]
        if cause.guess is not None and scene.is_named:
            lines.append(f"  perhaps: {cause.guess}")
    return lines


def _places(event: Event) -> list[str]:
    """Write the line of an event, and that of its forward op."""
    lines = [_at(event)] if event.source is not None else []
    forward = event.forward
    if forward is not None and forward.source is not None and forward.source != event.source:
        lines.append(f"  its forward is {forward.name} {_at(forward).strip()}")
    return lines


def _at(event: Event) -> str:
    return f"  at {event.source}: {plain_code(event.source.text)}" if event.source else ""


def _arguments(arguments: tuple[GivenTensor, ...], word: str) -> list[str]:
    """Write the arguments in one line; their devices only if they are on different ones."""
    if not arguments:
        return []
    apart = len({one.device for one in arguments}) > 1
    texts = [
        f"{_clipped(one.name)} {one.look}" + (f" on {one.device}" if apart else "")
        for one in arguments
    ]
    distinct = list(dict.fromkeys(texts))
    shown = distinct[:_MOST_ARGUMENTS]
    left = len(distinct) - len(shown)
    return [f"  {word}: " + ", ".join([*shown, *([f"{left} more"] if left else [])])]


def _clipped(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"

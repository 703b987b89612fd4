"""Run pairs of training programs, one of them changed, and ask where they part.

A report says how often the kind of the divergence, its step, and its line, parameter or setting are
right, and how many pairs without a fault raise an alarm.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

import clew
from accuracy.training_faults import CLEAN, FAULTS, NOISY, Change
from accuracy.training_unseen import UNSEEN
from clew import Diff, Trace
from clew.analysis.diff.divergence import Divergence
from clew.run.event import Event

_PROGRAMS = Path(__file__).parent / "training_programs"


@dataclass(frozen=True)
class Outcome:
    """How the answer to a pair was judged: kind, step and place; its text, and its time."""

    change: Change
    kind: bool
    step: bool
    place: bool
    said: str
    seconds: float

    @property
    def name(self) -> str:
        """Return the program and what was changed in it."""
        return f"{self.change.program}: {self.change.name}"


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="clew-training-")


def _text(program: str) -> str:
    return (_PROGRAMS / f"{program}.py").read_text(encoding="utf-8")


def _written(program: str, text: str, side: str) -> Path:
    """Write a version of a program into a folder of its own."""
    folder = Path(_folder().name) / f"{side}{abs(hash(text))}"
    folder.mkdir(exist_ok=True)
    path = folder / f"{program}.py"
    path.write_text(text, encoding="utf-8")
    return path


def _loaded(program: str, text: str, side: str) -> ModuleType:
    """Import a version of a program from a file of its own."""
    path = _written(program, text, side)
    spec = importlib.util.spec_from_file_location(f"{side}_{program}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def based(change: Change) -> str:
    """Return the text of the reference."""
    return _edited(_text(change.program), change.base, change.program)


def changed(change: Change) -> str:
    """Return the text of a program with its edits made."""
    return _edited(based(change), change.edits, change.program)


def _edited(text: str, edits: tuple[tuple[str, str], ...], program: str) -> str:
    for old, new in edits:
        assert old in text, f"{program} has no {old!r}"
        text = text.replace(old, new, 1)
    return text


def recorded(program: str, text: str, side: str, engine: str, values: str, whole: bool) -> Trace:
    """Train a version of a program and return the trace."""
    module = _loaded(program, text, side)
    if whole:
        with clew.trace(values=values, engine=engine) as t:
            module.train(module.make())
        return t
    model = module.make()
    with clew.trace(model, values=values, engine=engine) as t:
        module.train(model)
    return t


@cache
def _reference(program: str, text: str, engine: str, values: str, whole: bool) -> Trace:
    return recorded(program, text, "a", engine, values, whole)


def outcome(change: Change, engine: str, values: str = "fingerprint", other: str = "") -> Outcome:
    """Run one pair and judge the answer; `other` is the engine of the reference."""
    a = _reference(change.program, based(change), other or engine, values, change.whole)
    b = recorded(change.program, changed(change), "b", engine, values, change.whole)
    start = time.perf_counter()
    found = clew.diff(a, b)
    return _judged(change, found, time.perf_counter() - start)


def _judged(change: Change, found: Diff, seconds: float) -> Outcome:
    first = found.first
    said = found.text(rows=8)
    if change.cause is None or first is None:
        right = change.cause is None and first is None
        return Outcome(change, right, right, right, said, seconds)
    kind, step = first.cause == change.cause, first.step == change.step
    head = "\n".join([said.splitlines()[0], *first.evidence, *first.suspects, *_lines(first)])
    place = bool(re.search(change.said, head, re.DOTALL)) if change.said else _names(change, first)
    return Outcome(change, kind, step, place, said, seconds)


def _lines(first: Divergence) -> list[str]:
    return [one.source.text for one in (first.a, first.b) if one is not None and one.source]


def _names(change: Change, first: Divergence) -> bool:
    """Return whether an answer names the line that was edited, in either version."""
    old, new = change.edits[0]
    sides = ((based(change), old, first.a), (changed(change), new, first.b))
    return any(_is_at(event, _span(text, part)) for text, part, event in sides if event is not None)


def _span(text: str, part: str) -> range:
    """Return the numbers of the lines that a part of a text is in."""
    at = text.index(part)
    first = text.count("\n", 0, at) + 1
    return range(first, first + part.rstrip("\n").count("\n") + 1)


def _is_at(event: Event, lines: range) -> bool:
    there = [event, *([event.forward] if event.forward is not None else [])]
    return any(
        place.line in lines and "clew-training-" in place.file
        for one in there
        for place in one.stack
    )


def in_processes(change: Change, engine: str) -> Outcome:
    """Run both programs of a pair by `clew run`, each in a process of its own, and judge."""
    traces = []
    for side, text in (("a", based(change)), ("b", changed(change))):
        path = _written(change.program, f"{text}\n\nif __name__ == '__main__':\n"
                        "    train(make())\n", f"run_{side}")  # fmt: skip
        trace = path.with_suffix(".clew")
        command = [sys.executable, "-m", "clew", "run", "--values", "fingerprint"]
        command += ["--out", str(trace), str(path)]
        env = {**os.environ, "CLEW_ENGINE": engine}
        subprocess.run(command, check=True, capture_output=True, env=env)
        traces.append(trace)
    start = time.perf_counter()
    found = clew.diff(*traces)
    return _judged(change, found, time.perf_counter() - start)


def outcomes(engine: str) -> dict[str, list[Outcome]]:
    """Run the pairs with one engine, by group; some against the other engine or at other levels."""
    planted = (*FAULTS, *CLEAN)
    if engine == "python":
        return {
            "planted": [outcome(one, engine) for one in planted[::2]],
            "values='stats'": [outcome(one, engine, "stats") for one in planted[1::2]],
            "values='full'": [outcome(one, engine, "full") for one in planted[::6]],
            "unseen": [outcome(one, engine) for one in UNSEEN[::2]],
        }
    whole = [one for one in planted if one.program in ("classifier", "convnet")]
    return {
        "planted": [outcome(one, engine) for one in planted],
        "after rounding, 30 steps": [outcome(one, engine) for one in NOISY],
        "unseen": [outcome(one, engine) for one in UNSEEN],
        "python against native": [outcome(one, engine, other="python") for one in planted[::4]],
        "two processes": [in_processes(one, engine) for one in whole[::12]],
    }


def report(engine: str, verbose: bool = False) -> str:
    """Write the rates of each group, and below them each answer that is not right."""
    lines = []
    for group, found in outcomes(engine).items():
        faults = [one for one in found if one.change.cause is not None]
        clean = [one for one in found if one.change.cause is None]
        rates = ", ".join(
            f"{name} {sum(getattr(one, name) for one in faults)}"
            for name in ("kind", "step", "place")
        )
        alarms = sum(not one.kind for one in clean)
        lines.append(
            f"training, {engine} engine, {group}: of {len(faults)} divergences right {rates}; "
            f"{alarms} alarms in {len(clean)} clean pairs; "
            f"slowest answer {max(one.seconds for one in found):.1f} s"
        )
        for one in found:
            if not (one.kind and one.step and one.place):
                wrong = [name for name in ("kind", "step", "place") if not getattr(one, name)]
                lines.append(f"  {one.name}: wrong {', '.join(wrong)}")
                lines += [f"    {line}" for line in one.said.splitlines() if verbose]
    return "\n".join(lines)

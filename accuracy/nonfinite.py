"""Run programs with a planted source of NaN or Inf, and count what `clew.guard` has right.

In the source, the line that must be named carries the comment `# nonfinite: NAME`.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor, nn

import clew
from accuracy.clean import DTYPES, MODES, clean_programs
from clew.events.op_names import bare_op

_Made: TypeAlias = tuple[nn.Module, Callable[[], Any]]


@dataclass(frozen=True)
class Planted:
    """One source: a pattern for its op (of a gradient: the forward op), its module, its hint."""

    Made: ClassVar[TypeAlias] = _Made

    name: str
    program: Callable[[], _Made]
    op: str
    module: str | None
    hint: str
    phase: str = "forward"

    @property
    def line(self) -> str:
        """Return `file:line` of the marked line."""
        file = inspect.getsourcefile(self.program)
        assert file is not None
        with open(file, encoding="utf-8") as source:
            for number, text in enumerate(source, 1):
                if re.search(rf"# nonfinite:(.*,)? {re.escape(self.name)}(,|$)", text.rstrip()):
                    return f"{file}:{number}"
        raise LookupError(f"no line of {file} is marked with {self.name}")


@dataclass(frozen=True)
class Outcome:
    """What the error of the guard has right; `hint` is `right`, `wrong` or `absent`."""

    planted: Planted
    text: str
    op: bool
    line: bool
    module: bool
    hint: str

    @property
    def is_hit(self) -> bool:
        """Return whether op, line and module are named, and no wrong hint is given."""
        return self.op and self.line and self.module and self.hint != "wrong"


def trained(model: nn.Module, loss: Callable[[], Tensor]) -> _Made:
    """Return a model and a function that trains it for a step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def run() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return model, run


def all_planted() -> list[Planted]:
    """Return every planted source."""
    # They need `Planted` of this file.
    from accuracy import nonfinite_backward, nonfinite_forward

    return [*nonfinite_forward.PLANTED, *nonfinite_backward.PLANTED]


def outcome(planted: Planted) -> Outcome:
    """Run one program under a guard, and compare its error with what was planted."""
    torch.manual_seed(0)
    _, run = planted.program()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about too few elements
        try:
            with clew.guard():
                run()
        except clew.NonFiniteError as error:
            return _compared(planted, error)
    return Outcome(planted, "no error", False, False, False, "absent")


def outcomes(planted: Iterable[Planted]) -> list[Outcome]:
    """Run programs, with the engine that CLEW_ENGINE names."""
    return [outcome(one) for one in planted]


def false_alarms(names: Iterable[str] | None = None) -> list[str]:
    """Run clean programs under a guard; return what it raised for."""
    found = []
    for name, program in clean_programs():
        if names is not None and name not in names:
            continue
        for mode in MODES:
            for dtype in DTYPES:
                _, step = program.prepare(mode, dtype)
                try:
                    with clew.guard():
                        for _ in range(3):
                            step()
                except clew.NonFiniteError as error:
                    found.append(f"{name}, {mode}, {dtype}: {error}")
    return found


def report(engine: str, found: list[Outcome], alarms: list[str], verbose: bool = False) -> str:
    """Write hit rates, and below them each miss."""
    hints = [sum(one.hint == word for one in found) for word in ("right", "wrong", "absent")]
    lines = [
        f"NaN and Inf, {engine} engine: {sum(one.is_hit for one in found)} of {len(found)} sources "
        f"named by op, line and module; hints: {hints[0]} right, {hints[1]} wrong, {hints[2]} "
        f"absent; {len(alarms)} false alarms in clean programs"
    ]
    for one in found:
        if not one.is_hit or one.hint != "right":
            parts = [part for part in ("op", "line", "module") if not getattr(one, part)]
            lines.append(f"  {one.planted.name}: {', '.join([*parts, f'hint {one.hint}'])}")
            lines += [f"    {line}" for line in one.text.splitlines()] if verbose else []
    return "\n".join([*lines, *(f"  {alarm}" for alarm in alarms)])


def _compared(planted: Planted, error: clew.NonFiniteError) -> Outcome:
    found = error.nonfinite
    if found is None:
        return Outcome(planted, str(error), False, False, False, "absent")
    event, forward, source = found.event, found.event.forward, found.event.source
    op = bare_op((forward or event).name)
    hint = "absent"
    if found.hint:
        hint = "right" if re.search(planted.hint, found.hint) else "wrong"
    return Outcome(
        planted,
        str(error),
        re.fullmatch(planted.op, op) is not None and event.phase == planted.phase,
        source is not None and f"{source.file}:{source.line}" == planted.line,
        event.module == planted.module,
        hint,
    )

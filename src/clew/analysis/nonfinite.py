"""Where NaN and Inf come from: the events that made them, or brought them in.

Input: a `Run`. Output: `NonFiniteOrigin`s, in order. Only origins are listed, not what was computed
from them. An origin that reaches no module's output, loss or gradient (the -inf of a mask, a log(0)
that `where` leaves out) is `absorbed` and comes last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from clew.analysis.gradient_hints import gradient_reason
from clew.analysis.loss_scale import LossScales
from clew.analysis.nonfinite_hints import is_nonfinite_number, made_nan_of_inf, reason
from clew.analysis.value_flow import NAN, UNKNOWN, ValueFlow
from clew.events.columns import IN, Flags, Ints
from clew.events.model import Data
from clew.events.vocabulary import BACKWARD, DATA, GATHERED, MODULE, OP, RECOMPUTE
from clew.plain_text import plain
from clew.run.event import Event
from clew.run.run import Run
from clew.run.value import Value, Values

PRODUCED, INPUT, PARAMETER, CONSTANT, ABSORBED = KINDS = (
    "produced", "input", "parameter", "constant", "absorbed",
)  # fmt: skip


@dataclass(frozen=True, slots=True, repr=False)
class NonFiniteOrigin(Data):
    """One origin of NaN or Inf.

    `event` made `value`, or was the first to take it; `inputs` are the tensors it took. `kind` is
    `"produced"` (from finite inputs), `"input"` (came with the data), `"parameter"` (a weight or
    buffer held it), `"constant"` (a Python number such as -inf) or `"absorbed"` (any of these, if
    it reaches no output, loss or gradient). `hint` is a likely reason. `arrives` says what of it
    reaches a module's output, a loss or a gradient: `"NaN"`, `"Inf"`, `""` for nothing, `"unknown"`
    if values in between were not recorded. `is_skipped` says that a `GradScaler` finds it and
    skips the step.
    """

    event: Event
    value: Value
    kind: str
    inputs: Values
    hint: str
    arrives: str
    is_skipped: bool = False

    @property
    def what(self) -> str:
        """Return `NaN`, `Inf`, or `NaN and Inf`."""
        return nonfinite_text(self.value)

    @property
    def severity(self) -> str:
        """Return `"error"`, or `"info"` if it is harmless."""
        return "error" if self.is_alarm else "info"

    @property
    def is_alarm(self) -> bool:
        """Return whether it is an error.

        Not if it is absorbed, a constant that stays Inf, or what a `GradScaler` expects.
        """
        if self.is_skipped:
            return False
        return self.kind != ABSORBED and (self.kind != CONSTANT or self.arrives == "NaN")

    def __repr__(self) -> str:
        where = f" in {self.event.module or '(root)'}" if self.event.module is not None else ""
        hint = f": {self.hint}" if self.hint else ""
        return plain(
            f"<NonFiniteOrigin {self.kind} {self.what} at {self.event.address}{where}{hint}>"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the origin as plain data."""
        return {
            "kind": self.kind,
            "what": self.what,
            "arrives": self.arrives,
            "hint": self.hint,
            "is_skipped": self.is_skipped,
            "event": self.event.to_dict(),
            "value": self.value.to_dict(),
            "inputs": {path: value.to_dict() for path, value in self.inputs.items()},
        }


def nonfinite_of(run: Run) -> list[NonFiniteOrigin]:
    """List where NaN and Inf come from, in running order, absorbed ones last."""
    return NonFiniteSearch(run).found


def nonfinite_text(value: Value) -> str:
    """Write which of NaN and Inf a value holds; of a Python number, what it is."""
    stats = value.stats
    if stats is None:
        return "NaN" if value.item() != value.item() else "Inf"
    return " and ".join(["NaN"] * bool(stats.nan) + ["Inf"] * bool(stats.inf))


@dataclass(slots=True)
class _Origin:
    """An origin: the row that shows it, a value, its kind, what arrives."""

    row: int
    number: int
    kind: str
    arrives: int = 0
    hint: str = ""


class NonFiniteSearch:
    """Non-finite values of a run: where they come from, and the rows they pass through.

    `ends_at` and `is_over` say what counts as an end that they reach; see `ValueFlow`.
    """

    def __init__(
        self, run: Run, ends_at: Sequence[int] | None = None, is_over: bool = True
    ) -> None:
        self.run = run
        self.flow = ValueFlow(run, ends_at, is_over)
        self._origins = self._search() if self.flow.bad.any() else []

    @property
    def found(self) -> list[NonFiniteOrigin]:
        """Return the origins, in running order, absorbed ones last."""
        run = self.run
        order = sorted(
            self._origins,
            key=lambda o: (o.kind == ABSORBED, run.step[o.row], run.start[o.row], o.row),
        )
        return [self._described(origin) for origin in order]

    def marks(self) -> Ints:
        """Return for each row 1 if a result has NaN that came from an error, 2 if Inf."""
        flow = self.flow
        alarms = [o.number for o, f in zip(self._origins, self._all(), strict=True) if f.is_alarm]
        marks = np.zeros(len(self.run), dtype=np.int64)
        if alarms:
            worrying = flow.downstream(alarms)
            for mark, held in ((2, flow.inf), (1, flow.nan)):
                marks[flow.event[flow.is_result & (worrying & held)[flow.values]]] = mark
        return marks

    def _all(self) -> Iterator[NonFiniteOrigin]:
        return map(self._described, self._origins)

    def _search(self) -> list[_Origin]:
        """Find origins: those whose path is recorded, then those that only named values show."""
        origins = [*self._makers(), *self._outsiders()]
        for origin in origins:
            self._judge(origin)
        for origin in self._named_only(origins):
            self._judge(origin)
            origins.append(origin)
        return origins

    # Values with a producer

    def _makers(self) -> Iterator[_Origin]:
        """Find ops and calls that returned a non-finite value though all inputs were finite."""
        run, flow = self.run, self.flow
        made = np.flatnonzero(flow.bad & (flow.producer >= 0) & ~flow.unwritten)
        rows, first = np.unique(flow.producer[made], return_index=True)
        clean = ~(flow.takes_bad | flow.takes_suspect | flow.is_uninitialised)[rows]
        kind, phase = run.columns.kind, run.phase
        given = _gives_constant(run)
        for row, number in zip(rows[clean].tolist(), made[first[clean]].tolist(), strict=True):
            if phase[row] == RECOMPUTE or (kind[row] == MODULE and self._inside[row]):
                continue
            is_constant = kind[row] == OP and given[run.columns.template[row]]
            yield _Origin(row, number, CONSTANT if is_constant else PRODUCED)

    @cached_property
    def _inside(self) -> Flags:
        """Return for each row whether something inside it took or returned a non-finite value."""
        found = np.zeros(len(self.run), dtype=bool)
        parents = self.run.parent_row
        for row in np.flatnonzero(self.flow.touches_bad).tolist():
            above = int(parents[row])
            while above >= 0 and not found[above]:
                found[above] = True
                above = int(parents[above])
        return found

    # Values without

    def _outsiders(self) -> Iterator[_Origin]:
        """Find values that came from outside the recording and were taken by a call or op."""
        run, flow = self.run, self.flow
        bad = flow.bad & (flow.producer < 0) & ~flow.unwritten
        parameters: set[tuple[int, int]] = set()
        for number in np.flatnonzero(bad).tolist():
            name = int(run.columns.value_name[number])
            row = int(flow.first_seen[number])
            if row < 0:
                continue
            if name >= 0:
                key = (int(run.process[row]), name)
                if key not in parameters and not self._was_finite(number, row):
                    yield _Origin(row, number, PARAMETER)
                parameters.add(key)
            elif flow.first_taken[number] >= 0:
                yield from self._taken(number, row)

    def _taken(self, number: int, row: int) -> Iterator[_Origin]:
        """Judge a value without name or producer that a call or op took."""
        run, flow = self.run, self.flow
        if flow.has_ops:
            is_number = run.metas[int(run.columns.meta[number])].shape == ()
            is_op = run.columns.kind[row] == OP
            is_constant = is_number and is_op and run.columns.producer[number] < 0
            # What the backward pass is first to take was saved by the forward pass: made there, out
            # of sight, from what was not finite already.
            is_saved = run.phase[row] == BACKWARD
            if is_saved and self._bad_between(self._step_start(row), row):
                return
            yield _Origin(row, number, CONSTANT if is_constant else INPUT)
            return
        above = int(run.parent_row[row])
        if above < 0:
            # A tensor that requires grad was computed, but from what was not recorded.
            if not (run.columns.grad[number] and self._bad_between(self._step_start(row), row)):
                yield _Origin(row, number, INPUT)
        elif not flow.takes_bad[above] and not self._bad_between(above, row):
            yield _Origin(above, number, PRODUCED)

    def _named_only(self, before: list[_Origin]) -> Iterator[_Origin]:
        """Find values that only a variable, tap or gradient shows, the first of each rank.

        The event that made them was not recorded, so all later ones may come from the first.
        """
        run, flow = self.run, self.flow
        c = run.columns
        explained = {
            int(run.process[row]): row
            for row in sorted((o.row for o in before if o.kind != ABSORBED), reverse=True)
        }
        bad = flow.bad & (flow.producer < 0) & ~flow.unwritten & (flow.first_named >= 0)
        named = np.flatnonzero(bad & ((flow.first_taken < 0) | (c.value_name >= 0)))
        for number in sorted(named.tolist(), key=lambda n: int(flow.first_seen[n])):
            row = int(flow.first_seen[number])
            rank = int(run.process[row])
            if c.kind[row] == GATHERED or explained.get(rank, len(run)) <= row:
                continue
            explained[rank] = row
            if c.value_name[number] < 0 or self._was_finite(number, row):
                yield _Origin(row, number, INPUT if run.phase[row] == DATA else PRODUCED)

    def _was_finite(self, number: int, row: int) -> bool:
        """Return whether an earlier value of a parameter or buffer was finite."""
        run, flow = self.run, self.flow
        same = run.columns.value_name == run.columns.value_name[number]
        seen = flow.first_seen
        finite = same & flow.known & ~flow.bad & (seen >= 0) & (seen < row)
        return bool((run.process[seen[finite]] == run.process[row]).any())

    def _bad_between(self, above: int, row: int) -> bool:
        """Return whether a non-finite value occurred between the beginnings of two rows."""
        return bool(self.flow.touches_bad[above + 1 : row].any())

    def _step_start(self, row: int) -> int:
        """Return the row before the first of the same step and rank."""
        run = self.run
        same = (run.step == run.step[row]) & (run.process == run.process[row])
        return int(np.flatnonzero(same)[0]) - 1

    # Judgement

    def _judge(self, origin: _Origin) -> None:
        """Set what of an origin arrives; if nothing does, it is absorbed."""
        run, flow = self.run, self.flow
        is_maker = flow.producer[origin.number] == origin.row
        for number in flow.bad_results(origin.row) if is_maker else [origin.number]:
            origin.arrives |= flow.arrives(number)
        only_named = flow.first_taken[origin.number] < 0 and flow.producer[origin.number] < 0
        call = int(run.owner_row[origin.row])
        if not flow.has_ops and only_named and call >= 0:
            # What was computed from a variable inside a call is not recorded; the call's result may
            # be.
            _, returned = flow.leaves(call)
            unsure = flow.bad[returned] | ~flow.known[returned]
            origin.arrives |= UNKNOWN if unsure.any() else 0
        origin.hint = plain(self._hint(origin))
        if not origin.arrives:
            origin.kind = ABSORBED

    def _hint(self, origin: _Origin) -> str:
        run, flow = self.run, self.flow
        event, value = run.event(origin.row), run.value(origin.number)
        becomes = flow.becomes_nan(origin.number)
        if becomes >= 0 and origin.kind != PRODUCED:
            how = made_nan_of_inf(run.event(becomes))
            name = run.address(becomes)
            return f"Inf becomes NaN at {name}" + (f": {how}" if how else "")
        if run.producers[origin.number] < 0 <= run.columns.producer[origin.number]:
            return "it was made by an event that is not in this part of the run"
        if origin.kind == INPUT:
            return f"{_held(value)} came from outside the recorded ops; look at the data"
        if origin.kind == PARAMETER:
            return f"{value.name} held {_held(value)} when it was first seen"
        if origin.kind == CONSTANT and flow.producer[origin.number] < 0:
            return f"{nonfinite_text(value)} was given as a tensor of one number"
        if event.kind == "op":
            said = gradient_reason(event, value) or reason(event, value)
            taken, _ = flow.leaves(origin.row)
            if said or flow.known[taken].all():
                return said
            return "the values it took were not looked at; values='stats' does"
        if event.kind == "module":
            return "its ops, parameters and buffers were not looked at; level='ops' does"
        if self.run.level == "variables":
            return "no variable that was watched held it before"
        return "what made it was not looked at; level='ops', values='stats' does"

    @cached_property
    def _scales(self) -> LossScales:
        return LossScales(self.run)

    def _described(self, origin: _Origin) -> NonFiniteOrigin:
        event, value = self.run.event(origin.row), self.run.value(origin.number)
        is_skipped = origin.kind == PRODUCED and self._scales.handle(event, value, origin.hint)
        said = "; GradScaler skips such a step and lowers its scale" if is_skipped else ""
        return NonFiniteOrigin(
            event,
            value,
            origin.kind,
            event.inputs,
            origin.hint + said,
            _arrives_text(origin.arrives),
            is_skipped,
        )


def _gives_constant(run: Run) -> list[bool]:
    """Return for each template whether it has a Python number that is not finite."""
    return [
        any(leaf.role == IN and is_nonfinite_number(leaf.constant) for leaf in template.leaves)
        for template in run.columns.templates
    ]


def _arrives_text(bits: int) -> str:
    if bits & NAN:
        return "NaN"
    if bits & UNKNOWN:
        return "unknown"
    return "Inf" if bits else ""


def _held(value: Value) -> str:
    stats = value.stats
    if stats is None:
        return nonfinite_text(value)
    counts = [f"{n:,} {what}" for n, what in ((stats.nan, "NaN"), (stats.inf, "Inf")) if n]
    return f"{' and '.join(counts)} in {stats.count:,} element{'' if stats.count == 1 else 's'}"

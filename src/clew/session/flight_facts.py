"""Read from the batches of a recording what a flight recorder judges a step by.

Input: batches, as they are made. Output: the `StepFacts` of each step. Nothing is measured here:
the statistics are those that the recording keeps of every value.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from clew.address import written
from clew.events.columns import OUT
from clew.events.vocabulary import GRADIENT, MODULE, TAP, Label
from clew.stream.batch import Batch, Tables
from clew.triggers import StepFacts

LOSS, GRADIENT_NORM, GRADIENTS = "loss", "grad_norm", ":grad"


class StepReader:
    """Reads the facts of one step after the other."""

    def __init__(self) -> None:
        self._tables = Tables(forgets=True)
        self._begin()

    def _begin(self) -> None:
        # The taps that `rec.step` makes in this step, and what is known of their numbers.
        self._wanted: set[str] = set()
        self._scalars: dict[str, float] = {}
        self._gradients: dict[str, float] = {}
        # What is not finite -> when it came: of module outputs and gradients.
        self._nonfinite: dict[str, int] = {}

    def number(self, name: str, value: float) -> None:
        """Take a number that the program gives."""
        self._scalars[name] = value

    def tensor(self, name: str) -> None:
        """Take the number that will come as a tapped tensor of that name."""
        self._wanted.add(name)

    def batch(self, batch: Batch) -> None:
        """Read a batch of the step that runs."""
        self._tables.extend(batch)
        self._read_labelled(batch)
        self._read_outputs(batch)
        self._tables.forget(batch)

    def finish(self, step: int) -> StepFacts:
        """Return the facts of the step that has ended, and begin the next."""
        scalars = self._scalars
        loss, norm = scalars.pop(LOSS, None), scalars.get(GRADIENT_NORM)
        if norm is None and self._gradients:
            norm = math.sqrt(sum(one * one for one in self._gradients.values()))
        found = sorted(self._nonfinite, key=lambda name: self._nonfinite[name])
        if loss is not None and not math.isfinite(loss):
            # In the order of a training step: outputs, the loss, gradients.
            outputs = sum(not name.endswith(GRADIENTS) for name in found)
            found.insert(outputs, LOSS)
        facts = StepFacts(step, loss, norm, scalars, self._gradients, tuple(found))
        self._begin()
        return facts

    def _read_labelled(self, batch: Batch) -> None:
        """Read the numbers of gradients and of what was given to `rec.step`."""
        columns, labels = batch.columns, self._tables.rows["labels"]
        kinds = columns["kind"]
        for row in np.flatnonzero((kinds == GRADIENT) | (kinds == TAP)).tolist():
            label: Label = labels[int(columns["subject"][row])]
            stats = self._stats(batch, row)
            if not stats:
                continue
            if label.kind == GRADIENT:
                name = f"{label.stem}:{label.role}"
                norm = stats.get("norm")
                self._gradients[name] = math.nan if _is_bad(stats) or norm is None else norm
                if _is_bad(stats):
                    self._nonfinite.setdefault(name, int(columns["end"][row]))
            elif label.stem in self._wanted:
                self._scalars[label.stem] = _number(stats)

    def _read_outputs(self, batch: Batch) -> None:
        """Read which modules returned NaN, or Inf other than -Inf."""
        bad = {n for n, kept in batch.kept.items() if kept.stats and _is_alarming(kept.stats)}
        if not bad:
            return
        columns, templates = batch.columns, self._tables.rows["templates"]
        modules = self._tables.rows["modules"]
        for row in np.flatnonzero(columns["kind"] == MODULE).tolist():
            first = int(columns["first_ref"][row])
            tensors = templates[int(columns["template"][row])].tensors
            values = columns["refs"][first : first + len(tensors)].tolist()
            out = {v for leaf, v in zip(tensors, values, strict=True) if leaf.role == OUT}
            given = {v for leaf, v in zip(tensors, values, strict=True) if leaf.role != OUT}
            if out & bad and not given & out & bad:
                name = written(modules[int(columns["subject"][row])].path)
                self._nonfinite.setdefault(name, int(columns["end"][row]))

    def _stats(self, batch: Batch, row: int) -> dict[str, Any] | None:
        """Return the statistics of the value of a labelled event, if they are in the batch."""
        columns = batch.columns
        if not self._tables.rows["templates"][int(columns["template"][row])].tensors:
            return None
        kept = batch.kept.get(int(columns["refs"][int(columns["first_ref"][row])]))
        return None if kept is None else kept.stats


def _is_bad(stats: dict[str, Any]) -> bool:
    return bool(stats.get("nan") or stats.get("inf"))


def _is_alarming(stats: dict[str, Any]) -> bool:
    """Return whether there is NaN or Inf; -Inf alone is how programs write masks."""
    return bool(stats.get("nan")) or (bool(stats.get("inf")) and stats.get("highest") == math.inf)


def _number(stats: dict[str, Any]) -> float:
    """Return the number of a tensor that holds one; of several, their mean."""
    if stats.get("nan"):
        return math.nan
    if stats.get("inf"):
        return math.inf if stats.get("highest") == math.inf else -math.inf
    mean = stats.get("mean")
    return math.nan if mean is None else float(mean)

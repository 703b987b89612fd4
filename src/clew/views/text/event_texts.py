"""Events as the code view writes them: calls, named values, and statistics of their results.

Input: rows of a `Run`. Output: texts: `addmm(f32[8], f32[2,4], f32[4,8]) -> f32[2,8]`, and, if
statistics were recorded, `0.12 ± 0.98`.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isnan

from clew.events.columns import OUT
from clew.events.number_text import measured
from clew.events.op_names import UNINITIALISED, bare_op
from clew.run.run import Run
from clew.views.text.call_texts import CallTexts
from clew.views.text.named_texts import named_text

_MOST_RESULTS = 4


class EventTexts(CallTexts):
    """Texts of the events of one trace."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        stats = run.stats
        self._count: list[int] = stats["count"].tolist()
        self._any = bool((stats["count"] > 0).any())
        self._mean: list[float] = stats["mean"].tolist()
        self._std: list[float] = stats["std"].tolist()
        self._nan: list[int] = stats["nan"].tolist()
        self._inf: list[int] = stats["inf"].tolist()

    def named(self, row: int) -> str:
        """Return a variable, tap or gradient with its value."""
        return named_text(self._run, self, row)

    def numbers(self, row: int) -> str:
        """Return mean and standard deviation of each result of an event."""
        if not self._any:
            return ""
        values = self._results(row)
        texts = [self._one(value) for value in values[:_MOST_RESULTS]]
        if not any(texts):
            return ""
        rest = [f"… {len(values) - _MOST_RESULTS} more"] if len(values) > _MOST_RESULTS else []
        return ", ".join([text or "–" for text in texts] + rest)

    def has_numbers(self, row: int) -> bool:
        """Return whether there are statistics of the results of an event."""
        return self._any and any(self._count[value] > 0 for value in self._results(row))

    def not_finite(self, rows: Iterable[int]) -> tuple[int, int]:
        """Count the NaN and the Inf in the results of some events, each value once."""
        if not self._any:
            return 0, 0
        values = {value for row in rows for value in self._results(row) if self._count[value] > 0}
        return sum(self._nan[v] for v in values), sum(self._inf[v] for v in values)

    def _results(self, row: int) -> list[int]:
        """Return the numbers of an event's results; none if they are uninitialised."""
        if bare_op(self._run.name(row)) in UNINITIALISED:
            return []
        found = [number for leaf, number in self._run.leaf_values(row) if leaf.role == OUT]
        if not found and self._run.is_reconstructed(row):
            found = [value.number for value in self._run.values_of(row, OUT).values()]
        return found

    def _one(self, value: int) -> str:
        count, mean, std = self._count[value], self._mean[value], self._std[value]
        if count <= 0 or isnan(mean):
            return ""
        return measured(mean) if count == 1 else f"{measured(mean)} ± {measured(std)}"

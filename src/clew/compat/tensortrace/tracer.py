"""TensorTracer's `ModelTracer` and what goes with it: a Clew trace for each variable.

Each pass of the model is a step of those traces. The engine tells of calls that begin and end;
nothing is put into the model's `forward`.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable
from typing import Any

from torch import nn

from clew.compat.tensortrace.variable import (
    Callback,
    GlobalVariableResult,
    PathList,
    Variable,
    rank,
)
from clew.errors import ClewError, ClewWarning
from clew.events.live import Happening
from clew.events.settings import Limits
from clew.session import Tracer, trace

# The results hold the values: the engine's trace need not.
_NO_DATA = Limits(bytes=1)


class ModelTracer:
    """Traces variables of a model in a `with` block.

    `variables` is a `Variable`, several, or paths; the other settings go with paths.
    """

    def __init__(
        self,
        model: nn.Module,
        variables: Variable | str | Iterable[Variable | str],
        trace_interval: int = 1,
        gathering_interval: int = 1,
        pre_save_callbacks: Iterable[Callback] = (),
        pre_gather_callbacks: Iterable[Callback] = (),
        post_gather_callbacks: Iterable[Callback] = (),
        post_trace_callbacks: Iterable[Callback] = (),
        eval_only: bool = False,
        train_only: bool = False,
    ) -> None:
        if eval_only and train_only:
            raise ClewError("eval_only=True and train_only=True: nothing is left to trace")
        wrappers = nn.parallel.DistributedDataParallel, nn.DataParallel
        self.model: nn.Module = model.module if isinstance(model, wrappers) else model
        given = [variables] if isinstance(variables, (Variable, str)) else list(variables)
        paths = [variable for variable in given if isinstance(variable, str)]
        self.variables = [variable for variable in given if isinstance(variable, Variable)]
        if paths:
            mode = "eval" if eval_only else "train" if train_only else None
            self.variables.append(
                PathList(
                    paths, trace_interval, gathering_interval, pre_save_callbacks,
                    pre_gather_callbacks, post_gather_callbacks, post_trace_callbacks, mode,
                )
            )  # fmt: skip
        if not self.variables or len(paths) + len(self.variables) - bool(paths) != len(given):
            raise ClewError(f"ModelTracer(model, {variables!r}): give paths or Variables")
        self.current_training_iteration = 0
        self.current_evaluation_iteration = 0
        self._traces: list[Tracer] = []
        self._open = contextlib.ExitStack()
        self._depth = 0

    @property
    def rank(self) -> int:
        """The rank of this process, 0 if it is alone."""
        return rank()

    @property
    def current_iteration(self) -> int:
        """The number of passes so far."""
        return self.current_training_iteration + self.current_evaluation_iteration

    @property
    def results(self) -> dict[str, GlobalVariableResult]:
        """What was gathered, by name; on rank 0."""
        if len(self.variables) == 1:
            return self.variables[0].results
        return {name: r for v in self.variables for name, r in v.results.items()}

    def __enter__(self) -> ModelTracer:
        if self._traces:
            raise ClewError("this ModelTracer is tracing already; leave its block first")
        self._depth = 0
        for variable in self.variables:
            variable.begin()
            self._traces.append(
                trace(
                    self.model, level="modules", callbacks=variable.followed(self._iteration),
                    gather=variable.gather_interval, limits=_NO_DATA,
                    # The last one hears of the end of a pass when all have recorded it.
                    live=self if variable is self.variables[-1] else False,
                )
            )  # fmt: skip
        for one in self._traces:
            self._open.enter_context(one)
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)
        traces, self._traces = self._traces, []
        for variable, one in zip(self.variables, traces, strict=True):
            for gap in one.coverage:
                if gap.what == "an address to capture" and self.current_iteration:
                    warnings.warn(str(gap), ClewWarning, stacklevel=2)
            variable.end()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One traced pass."""
        with self:
            return self.model(*args, **kwargs)

    def begins(self, event: Happening) -> None:
        """A module is called; the model itself, outermost, is a pass."""
        if event.path == "":
            self._depth += 1
            if self._depth == 1 and self.model.training:
                self.current_training_iteration += 1
            elif self._depth == 1:
                self.current_evaluation_iteration += 1

    def ends(self, event: Happening) -> None:
        """A call is over; with a pass, a step of the traces is."""
        if event.kind == "module" and event.path == "":
            self._depth -= 1
            if self._depth == 0:
                for one in self._traces:
                    one.step()

    def _iteration(self, mode: str | None) -> int:
        counts = {
            "train": self.current_training_iteration, "eval": self.current_evaluation_iteration,
        }  # fmt: skip
        return counts.get(mode or "", self.current_iteration)


class TracedModel(nn.Module):
    """A model every pass of which is traced, into `tracer`."""

    def __init__(
        self,
        model: nn.Module,
        variables: Variable | str | Iterable[Variable | str],
        **settings: Any,
    ) -> None:
        super().__init__()
        self.model = model
        self.tracer = ModelTracer(model, variables, **settings)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """A pass of the model."""
        with self.tracer:
            return self.model(*args, **kwargs)


def trace_model(
    model: nn.Module,
    variables: Variable | str | Iterable[Variable | str],
    *args: Any,
    **kwargs: Any,
) -> tuple[Any, ModelTracer]:
    """One pass of a model: its result, and the tracer that has the values."""
    tracer = ModelTracer(model, variables)
    with tracer:
        output = model(*args, **kwargs)
    return output, tracer

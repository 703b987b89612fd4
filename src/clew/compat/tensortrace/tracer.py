"""TensorTracer's `ModelTracer` and what goes with it, on Clew's traces.

In come a model and what to trace of it; each pass of the model is a step of a trace for each
`Variable`, which has the results.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from clew.callbacks import stack, stack_padded
from clew.capture.passes import Passes
from clew.compat.tensortrace.variable import Functions, GlobalVariableResult, Variable
from clew.errors import ClewError
from clew.session import trace
from clew.session.surroundings import rank_and_size, warn


def stack_tensors(name: str, results: Any, iterations: Any = None, ranks: Any = None) -> None:
    """Stack values of one shape along a new first dimension; the README's other lists likewise."""
    _stack(stack, results, iterations, ranks)


def stack_padded_tensors(
    name: str, results: Any, iterations: Any = None, ranks: Any = None
) -> None:
    """Stack values of any shapes: aligned at their last dimensions, zeros at the end of each.

    Where the README's other lists are filled up, the iteration is 0 and the rank -1.
    """
    _stack(stack_padded, results, iterations, ranks)


def _stack(how: Callable[..., Any], results: Any, iterations: Any, ranks: Any) -> None:
    tensors = [torch.as_tensor(v) for v in (results if iterations is not None else results.values)]
    dtype = functools.reduce(torch.promote_types, (t.dtype for t in tensors), torch.bool)
    stacked = torch.from_numpy(how(tensors)).to(dtype) if tensors else torch.tensor([])
    if iterations is None:
        results.values = stacked
        return
    results[:] = [stacked]
    iterations[:] = [stack_padded(iterations)]
    if ranks is not None:
        ranks[:] = [stack_padded(ranks, fill=-1)]


class ModelTracer:
    """Traces variables of a model in a `with` block.

    `variables` is a `Variable`, several, or paths; the other settings go with paths.
    """

    def __init__(
        self, model: nn.Module, variables: Any, trace_interval: int = 1,
        gathering_interval: int = 1, pre_save_callbacks: Functions = (),
        pre_gather_callbacks: Functions = (), post_gather_callbacks: Functions = (),
        post_trace_callbacks: Functions = (), eval_only: bool = False, train_only: bool = False,
    ) -> None:  # fmt: skip
        if eval_only and train_only:
            raise ClewError("eval_only=True and train_only=True: nothing is left to trace")
        wrappers = nn.parallel.DistributedDataParallel, nn.DataParallel
        self.model: nn.Module = model.module if isinstance(model, wrappers) else model
        given: Any = [variables] if isinstance(variables, (Variable, str)) else list(variables)
        if given and all(isinstance(each, str) for each in given):
            mode = "eval" if eval_only else "train" if train_only else None
            given = [Variable(
                given, trace_interval, gathering_interval, pre_save_callbacks,
                pre_gather_callbacks, post_gather_callbacks, post_trace_callbacks, mode, True,
            )]  # fmt: skip
        if not given or not all(isinstance(each, Variable) for each in given):
            raise ClewError(f"ModelTracer(model, {variables!r}): give paths or Variables")
        self.variables: list[Variable] = given
        self._passes = Passes(self.model, self._step)
        self._traces: list[Any] = []
        self._open = contextlib.ExitStack()

    rank = property(lambda self: rank_and_size()[0])
    current_iteration = property(lambda self: self._passes.count(self.variables[0].mode))
    current_training_iteration = property(lambda self: self._passes.count("train"))
    current_evaluation_iteration = property(lambda self: self._passes.count("eval"))

    @property
    def results(self) -> dict[str, GlobalVariableResult]:
        """What was gathered, by name; on rank 0."""
        return {name: r for v in self.variables for name, r in v.results.items()}

    def __enter__(self) -> ModelTracer:
        if any(one.recording for one in self._traces):
            raise ClewError("this ModelTracer is tracing already; leave its block first")
        self._traces = self._traces or [
            trace(self.model, level="modules", gather=variable.gather_interval,
                  callbacks=variable.followed(self._passes.count))
            for variable in self.variables
        ]  # fmt: skip
        for one in self._traces:
            self._open.enter_context(one)
        # After the traces: a step is over when all have seen its last value.
        self._open.enter_context(self._passes)
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)
        for variable, one in zip(self.variables, self._traces, strict=True):
            self._gather_own(variable)
            variable.end()
            for gap in one.coverage if self._passes.count() else ():
                if gap.what == "an address to capture":
                    warn(str(gap))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One traced pass."""
        with self:
            return self.model(*args, **kwargs)

    def _step(self) -> None:
        for variable, one in zip(self.variables, self._traces, strict=True):
            one.step()
            if self._passes.count(variable.mode) % variable.gather_interval == 0:
                self._gather_own(variable)

    def _gather_own(self, variable: Variable) -> None:
        """Gather what the program saved; of several ranks it has to see to that itself."""
        if rank_and_size()[1] == 1:
            variable.gather_results(0, 1)


class TracedModel(nn.Module):
    """A model every pass of which is traced, into `tracer`."""

    tracer_class: type[ModelTracer] = ModelTracer

    def __init__(self, model: nn.Module, variables: Any, *args: Any, **settings: Any) -> None:
        super().__init__()
        self.model = model
        self.tracer = self.tracer_class(model, variables, *args, **settings)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """A pass of the model."""
        with self.tracer:
            return self.model(*args, **kwargs)


def trace_model(
    model: nn.Module, variables: Any, *args: Any, **kwargs: Any
) -> tuple[Any, ModelTracer]:
    """One pass of a model: its result, and the tracer that has the values."""
    with ModelTracer(model, variables) as tracer:
        return model(*args, **kwargs), tracer

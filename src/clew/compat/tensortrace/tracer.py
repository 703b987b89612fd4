"""TensorTracer's `ModelTracer` and what goes with it; the engine collects in each pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from clew.compat.engine.collecting import Collecting, GlobalVariableResult, LocalVariableResult
from clew.compat.tensortrace.variable import Variable
from clew.errors import ClewError
from clew.request.callbacks import stack, stack_padded
from clew.session.environment import rank_and_size


def stack_tensors(name: str, results: Any, *lists: Any) -> None:
    """Stack values of one shape along a new first dimension; None is left out, with its facts."""
    _stack(stack, results, lists)


def stack_padded_tensors(name: str, results: Any, *lists: Any) -> None:
    """Stack values of any shapes, aligned at their last dimensions, with zeros at the ends.

    The README's other lists are filled up with iteration 0 and rank -1."""
    _stack(stack_padded, results, lists)


def _stack(how: Callable[..., Any], results: Any, lists: tuple[Any, ...]) -> None:
    kind: Any = GlobalVariableResult if len(lists) == 2 else LocalVariableResult
    given = kind(*lists, results) if lists else results
    given.stack(how)
    if lists and results:
        results[:] = [given.values]
        for facts, fill in zip(lists, (0, -1), strict=False):
            facts[:] = [stack_padded(facts, fill)]


class ModelTracer(Collecting):
    """Traces variables of a model: a `Variable`, several, or paths, which the settings go with."""

    def __init__(
        self, model: nn.Module, variables: Any, trace_interval: int = 1,
        gathering_interval: int = 1, pre_save_callbacks: Any = (),
        pre_gather_callbacks: Any = (), post_gather_callbacks: Any = (),
        post_trace_callbacks: Any = (), eval_only: bool = False, train_only: bool = False,
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
        super().__init__(self.model, given)

    rank = property(lambda self: rank_and_size()[0])
    current_iteration = property(lambda self: self.count(self.variables[0].mode))
    current_training_iteration = property(lambda self: self.count("train"))
    current_evaluation_iteration = property(lambda self: self.count("eval"))

    @property
    def results(self) -> dict[str, GlobalVariableResult]:
        """Return what was gathered, by name; on rank 0."""
        return {name: r for v in self.variables for name, r in v.results.items()}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one traced pass."""
        with self:
            return self.model(*args, **kwargs)


class TracedModel(nn.Module):
    """A model every pass of which is traced, into `tracer`."""

    tracer_class: type[ModelTracer] = ModelTracer

    def __init__(self, model: nn.Module, variables: Any, *args: Any, **settings: Any) -> None:
        super().__init__()
        self.model = model
        self.tracer = self.tracer_class(model, variables, *args, **settings)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run one traced pass of the model."""
        with self.tracer:
            return self.model(*args, **kwargs)


def trace_model(model: nn.Module, variables: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Run one pass of a model; return its result and the `ModelTracer` that has the values."""
    with ModelTracer(model, variables) as tracer:
        return model(*args, **kwargs), tracer

"""TensorTracer on Clew: variables of a model over a run, gathered from all ranks, saved to HDF5.

from clew.compat.tensortrace import H5PYSaverCallback, ModelTracer, Variable, stack_padded_tensors

Both forms of its interface work: `ModelTracer(model, [paths], ...)` of its README, whose callbacks
get lists, and `ModelTracer(model, Variable([paths], ...))`, whose callbacks get a result. The
engine finds, collects and gathers the values; each pass of the model is a step of its traces.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, distributed, nn

from clew.callbacks import Callbacks, deterministic, stack, stack_padded
from clew.capture.frames.paths import child_named, follow
from clew.capture.frames.paths import children as get_object_items
from clew.capture.passes import Passes
from clew.errors import ClewError
from clew.events.gathered import Gathered, nested
from clew.session import trace
from clew.session.surroundings import rank_and_size, warn
from clew.store.as_torch import own_parts
from clew.views.export.growing_hdf5 import GrowingHdf5
from clew.watching import is_same

__all__ = [
    "GlobalVariableResult", "H5PYSaverCallback", "H5PYTracedModel", "LocalVariableResult",
    "ModelTracer", "ModelTracerH5PY", "ResultEntry", "TracedModel", "Variable",
    "exact_path_matching", "extract_nested_values", "get_object_items", "get_object_value",
    "partial_path_matching", "stack_padded_tensors", "stack_tensors", "trace_model",
]  # fmt: skip

Functions: TypeAlias = Iterable[Callable[..., Any]]

_DATA = (Tensor, np.ndarray, np.generic)
_CONSTANTS = (bool, int, float, complex, str, bytes)
_OBJECT = b"\0object\0"  # begins the bytes that an object travels as


@dataclass
class LocalVariableResult:
    """Values of one process, each with its iteration."""

    iterations: Any = field(default_factory=list)
    values: Any = field(default_factory=list)


@dataclass
class GlobalVariableResult:
    """Values of all processes, each with its iteration and rank."""

    iterations: Any = field(default_factory=list)
    ranks: Any = field(default_factory=list)
    values: Any = field(default_factory=list)

    def append(self, iteration: Any, rank: Any, value: Any) -> None:
        """Add a value with its facts."""
        self.iterations.append(iteration)
        self.ranks.append(rank)
        self.values.append(value)


ResultEntry = GlobalVariableResult


@dataclass(eq=False)
class Variable:
    """Paths that are traced alike: in every `trace_interval`-th pass of a mode, "train", "eval" or
    None for both; and what came of them, gathered every `gather_interval` passes."""

    paths: Any
    trace_interval: int = 1
    gather_interval: int = 1
    pre_save_callbacks: Any = field(default_factory=list)
    pre_gather_callbacks: Any = field(default_factory=list)
    post_gather_callbacks: Any = field(default_factory=list)
    post_trace_callbacks: Any = field(default_factory=list)
    mode: str | None = "train"
    takes_lists: bool = False  # whether callbacks get the lists of a result, as the README's do

    def __post_init__(self) -> None:
        self.paths = [self.paths] if isinstance(self.paths, str) else list(self.paths)
        if not self.paths or not all(isinstance(path, str) for path in self.paths):
            told = "give paths such as 'forward.x' or 'layers.*'"
            raise ClewError(f"Variable({self.paths!r}): {told}")
        self.target_paths = [path.split(".") for path in self.paths]
        # Of this process since its last gather, of all that callbacks have seen, of all so far.
        self.local_results: dict[str, LocalVariableResult] = defaultdict(LocalVariableResult)
        self.results: dict[str, GlobalVariableResult] = defaultdict(GlobalVariableResult)
        self._so_far: dict[str, GlobalVariableResult] = defaultdict(GlobalVariableResult)
        self._own: dict[str, LocalVariableResult] = {}  # what the program saves itself

    def save_variable_result(self, var_name: str, value: Any, current_iteration: int) -> None:
        """Save a value of the program's own, if it has changed or the iteration is another.

        `gather_results` brings it to `results`; a tracer of one process does so, too.
        """
        value = copy.deepcopy(own_parts(self._saved(var_name, value, current_iteration)))
        result = self._own.setdefault(var_name, LocalVariableResult())
        self.local_results[var_name] = result
        is_new = result.iterations[-1:] != [current_iteration]
        if is_new or not is_same(result.values[-1], value):
            result.iterations.append(current_iteration)
            result.values.append(value)

    def gather_results(self, rank: int, world_size: int) -> None:
        """Bring what was saved by `save_variable_result` to rank 0; all ranks have to come."""
        mine, self._own = self._own, {}
        for name, result in mine.items():
            self._apply(self.pre_gather_callbacks, name, result)
            del self.local_results[name]
        gathered: list[Any] = [mine] * world_size
        if world_size > 1:
            distributed.gather_object(mine, gathered if rank == 0 else None)
        merged: dict[str, GlobalVariableResult] = defaultdict(GlobalVariableResult)
        for of, found in enumerate(gathered if rank == 0 else ()):
            for name, result in found.items():
                for iteration, value in _rows(result):
                    merged[name].append(iteration, of, value)
        for name, whole in merged.items():
            self._arrived(name, whole)

    def followed(self, iteration: Callable[[str | None], int]) -> dict[str, Callbacks]:
        """What the engine is to do with the values of each path."""

        def save(value: Any, address: str) -> Any:
            if isinstance(value, nn.Module):
                return value
            name = address.removesuffix(".return")
            return _packed(self._saved(name, value, iteration(self.mode)))

        after = self._after_gather
        how = Callbacks(
            save if self.pre_save_callbacks else deterministic(save),
            self._before_gather if self.pre_gather_callbacks else None,
            after if self.post_gather_callbacks else deterministic(after),
            every=self.trace_interval, only=self.mode, with_address=True, keep=False,
        )  # fmt: skip
        return dict.fromkeys(self.paths, how)

    def end(self) -> None:
        """Make of the results what is to be made: of copies, as more may come."""
        for name, result in self._so_far.items() if self.post_trace_callbacks else ():
            self.results[name] = GlobalVariableResult(*map(list, vars(result).values()))
            self._apply(self.post_trace_callbacks, name, self.results[name])

    def _saved(self, name: str, value: Any, iteration: int) -> Any:
        for function in self.pre_save_callbacks:
            value = _passed_over(function, (name, value, iteration), value)
        return value

    def _before_gather(self, found: Any) -> Gathered:
        name = found.address.removesuffix(".return")
        result = LocalVariableResult(found.ordinals, [*map(_unpacked, found)])
        self.local_results[name] = result
        self._apply(self.pre_gather_callbacks, name, result)
        rows = list(_rows(result))
        return Gathered([_packed(value) for _, value in rows], [count for count, _ in rows])

    def _after_gather(self, found: Any) -> list[Any]:
        result = GlobalVariableResult(found.ordinals, found.ranks, [*map(_unpacked, found)])
        self._arrived(found.address.removesuffix(".return"), result)
        return []  # they are here, and need not be in the trace as well

    def _arrived(self, name: str, result: GlobalVariableResult) -> None:
        self._apply(self.post_gather_callbacks, name, result)
        so_far = self.results[name] = self._so_far[name]
        for row in _rows(result):
            so_far.append(*row)

    def _apply(self, functions: Functions, name: str, result: Any) -> None:
        """Let callbacks change a result; it is as it was before one that fails."""
        for function in functions:
            before = {k: v[:] if isinstance(v, list) else v for k, v in vars(result).items()}
            *facts, values = vars(result).values()
            args = (name, values, *facts) if self.takes_lists else (name, result)
            if _passed_over(function, args, otherwise=before) is before:
                vars(result).update(before)


def _passed_over(function: Callable[..., Any], args: tuple[Any, ...], otherwise: Any) -> Any:
    """What a callback of the user's makes; it may fail, and the program goes on."""
    try:
        return function(*args)
    except Exception as error:
        called = getattr(function, "__name__", type(function).__name__)
        told = f"{type(error).__name__}: {error}"
        warn(f"the callback {called} failed for {args[0]!r} and was passed over: {told}")
        return otherwise


def _packed(value: Any) -> Any:
    """A value, but an object that the engine has no data of as bytes."""
    is_filled = isinstance(value, (dict, list, tuple)) and len(value) > 0
    if isinstance(value, _DATA) or type(value) in _CONSTANTS or is_filled or is_dataclass(value):
        return value
    try:
        return _OBJECT + pickle.dumps(value)
    except Exception:  # an iterator, a lock, a function inside another
        return value


def _unpacked(value: Any) -> Any:
    is_object = isinstance(value, bytes) and value.startswith(_OBJECT)
    return pickle.loads(value[len(_OBJECT) :]) if is_object else nested(value)


def _rows(result: Any) -> Iterable[tuple[Any, ...]]:
    """Each value after its facts; after all of them where callbacks made one of several."""
    *facts, values = vars(result).values()
    rows = [values] if isinstance(values, Tensor) and not values.ndim else list(values)
    if len(rows) != len(facts[0]):
        rows = [values] if isinstance(values, Tensor) else rows
        facts = [[stack_padded(fact)] * len(rows) for fact in facts]
    return zip(*facts, rows, strict=True)


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


class Saved(tuple[Any, Any]):
    """The datasets of a variable: `content, iterations = saved`, `saved.ranks`, `saved.shape`."""

    ranks: Any
    shape = property(lambda self: self[0].shape)


class H5PYSaverCallback(GrowingHdf5):
    """Writes what was gathered to datasets `name`, `name_iterations` and `name_ranks`.

    Give it as the last of the `post_gather_callbacks`. Floating-point numbers and integers are
    stored as they are, or as `float_dtype` and `int_dtype` if those hold them. An existing file is
    replaced, or left alone with `existing_ok=False`, which raises ValueError.
    """

    def __init__(
        self, dataset_file: str | Path, iteration_dtype: Any = np.int64, float_dtype: Any = None,
        int_dtype: Any = None, compression: str | None = None, compression_opts: Any = None,
        shuffle: bool = False, existing_ok: bool = True,
    ) -> None:  # fmt: skip
        self.dataset_file = Path(dataset_file)
        if self.dataset_file.exists() and not existing_ok:
            told = "give another dataset_file, or existing_ok=True to replace it"
            raise ValueError(f"{dataset_file} exists: {told}")
        super().__init__(
            self.dataset_file, {"f": float_dtype, "i": int_dtype, "u": int_dtype},
            compression=compression, compression_opts=compression_opts, shuffle=shuffle,
        )  # fmt: skip
        self.iteration_dtype = iteration_dtype
        self.datasets: dict[str, Saved] = {}

    def __call__(self, name: str, results: Any, iterations: Any = None, ranks: Any = None) -> None:
        """Write the values of a gather; the result, or its lists, are empty afterwards."""
        given = results if iterations is None else GlobalVariableResult(iterations, ranks, results)
        counts = [np.asarray(each, self.iteration_dtype) for each in given.iterations]
        facts = {"iterations": (counts, 0), "ranks": (given.ranks, -1)}
        for part, datasets in self.append(name, given.values, **facts).items():
            self.datasets[part] = Saved(datasets[:2])
            self.datasets[part].ranks = datasets[2]
        for column, items in vars(given).items():
            setattr(given, column, [])
            if isinstance(items, list):
                items.clear()


class ModelTracerH5PY(ModelTracer):
    """The first release's tracer, which writes to a file every `saving_interval` passes."""

    def __init__(
        self, model: nn.Module, variables: Any, dataset_file: str | Path, trace_interval: int = 1,
        saving_interval: int = 1, eval_only: bool = False, train_only: bool = False, **saving: Any,
    ) -> None:  # fmt: skip
        self.saver = H5PYSaverCallback(dataset_file, **saving)
        self.datasets = self.saver.datasets
        super().__init__(
            model, variables, trace_interval, saving_interval,
            post_gather_callbacks=[self.saver], eval_only=eval_only, train_only=train_only,
        )  # fmt: skip


class H5PYTracedModel(TracedModel):
    """A model every pass of which is traced into a file."""

    tracer_class = ModelTracerH5PY


def get_object_value(obj: Any, key: Any) -> Any:
    """What an object holds under a key, an index (also as text) or a name; None if nothing."""
    return next((value for _, value in child_named(obj, key)), None)


def extract_nested_values(data: Any, paths: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Every value that paths lead to, by its path; `*` is any key, one path may begin another."""
    return {name: value for path in paths for name, value in follow(data, path).places}


def partial_path_matching(target_path: Sequence[str], path: Sequence[str]) -> bool:
    """Whether a path leads towards a target, in which `*` is any name."""
    pairs = zip(target_path, path, strict=False)
    return len(target_path) >= len(path) and all(a == "*" or b in ("", a) for a, b in pairs)


def exact_path_matching(target_path: Sequence[str], path: Sequence[str]) -> bool:
    """Whether a path is a target, in which `*` is any name."""
    return len(target_path) == len(path) and partial_path_matching(target_path, path)

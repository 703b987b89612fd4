"""What TensorTracer traces alike, and what came of it: `Variable` and its results.

In come values from the engine, before and after a gather, and from the program itself; out come
lists of them with their iterations and ranks, as callbacks made them.
"""

from __future__ import annotations

import copy
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, is_dataclass
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor, distributed, nn

from clew.callbacks import Callbacks, deterministic, stack_padded
from clew.errors import ClewError
from clew.events.gathered import Gathered, nested
from clew.session.surroundings import warn
from clew.store.as_torch import own_parts
from clew.watching import is_same

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

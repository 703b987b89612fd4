"""TensorTracer's `Variable`: what is traced and when, what callbacks make of it, the results.

A value goes through the engine's gather together with its name, iteration and rank, as one dict;
here the dicts are packed, and unpacked into the results that callbacks are given.
"""

from __future__ import annotations

import functools
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor, distributed, nn

from clew.callbacks import Callbacks
from clew.errors import ClewError, ClewWarning

Callback: TypeAlias = Callable[..., Any]

_FAILED = object()


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


ResultEntry = GlobalVariableResult


class Variable:
    """Paths that are traced alike.

    `trace_interval=N` takes every N-th pass of its mode, `gather_interval=N` brings the values of
    N passes together. `mode` is "train", "eval", or None for both.
    """

    def __init__(
        self,
        paths: str | Iterable[str],
        trace_interval: int = 1,
        gather_interval: int = 1,
        pre_save_callbacks: Iterable[Callback] = (),
        pre_gather_callbacks: Iterable[Callback] = (),
        post_gather_callbacks: Iterable[Callback] = (),
        post_trace_callbacks: Iterable[Callback] = (),
        mode: str | None = "train",
    ) -> None:
        self.paths = [paths] if isinstance(paths, str) else list(paths)
        if not self.paths or not all(isinstance(path, str) for path in self.paths):
            raise ClewError(f"Variable({paths!r}): give paths such as 'forward.x' or 'layers.*'")
        self.trace_interval = trace_interval
        self.gather_interval = gather_interval
        self.pre_save_callbacks = list(pre_save_callbacks)
        self.pre_gather_callbacks = list(pre_gather_callbacks)
        self.post_gather_callbacks = list(post_gather_callbacks)
        self.post_trace_callbacks = list(post_trace_callbacks)
        self.mode = mode
        # What this process handed over in its last gather, and what has come of all so far.
        self.local_results: dict[str, LocalVariableResult] = {}
        self.results: dict[str, GlobalVariableResult] = defaultdict(GlobalVariableResult)
        self._before_end: dict[str, GlobalVariableResult] = {}

    def followed(self, iteration: Callable[[str | None], int]) -> dict[str, Callbacks]:
        """What the engine is to do with the values of each path."""

        def saved(value: Any, address: str) -> dict[str, Any] | None:
            if isinstance(value, nn.Module):
                return None  # `forward.*` has `self` too, whose values have paths of their own
            name, now = address.removesuffix(".return"), iteration(self.mode)
            for callback in self.pre_save_callbacks:
                call = functools.partial(callback, name, value, now)
                value = _passed_over(callback, name, call, value)
            return _packed(name, value, now, rank())

        how = Callbacks(
            saved, self._before_gather, self._after_gather,
            every=self.trace_interval, only=self.mode, with_address=True,
        )  # fmt: skip
        return dict.fromkeys(self.paths, how)

    def call(self, callback: Callback, name: str, result: Any) -> None:
        """Let a callback change a result; as it was, if the callback fails."""
        before = {key: _copied(value) for key, value in vars(result).items()}
        call = functools.partial(self._given, callback, name, result)
        if _passed_over(callback, name, call, _FAILED) is _FAILED:
            vars(result).update(before)

    def _given(self, callback: Callback, name: str, result: Any) -> None:
        callback(name, result)

    def begin(self) -> None:
        """Go on from the results as they were before the callbacks of the end."""
        self.results.update(self._before_end)
        self._before_end = {}

    def end(self) -> None:
        """Tracing is over: make of the results what is to be made."""
        for name, result in self.results.items() if self.post_trace_callbacks else ():
            lists = list(result.iterations), list(result.ranks), list(result.values)
            self._before_end[name] = GlobalVariableResult(*lists)
            for callback in self.post_trace_callbacks:
                self.call(callback, name, result)

    def _before_gather(self, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        name, own = items[0]["name"], items[0]["rank"]
        found = [_unpacked(item) for item in items]
        result = LocalVariableResult([i for i, _, _ in found], [v for _, _, v in found])
        self.local_results[name] = result
        for callback in self.pre_gather_callbacks:
            self.call(callback, name, result)
        return [
            _packed(name, value, iteration, own)
            for value, iteration in _aligned(result.values, result.iterations)
        ]

    def _after_gather(self, items: list[dict[str, Any]]) -> list[Any]:
        name = items[0]["name"]
        result = GlobalVariableResult(*map(list, zip(*map(_unpacked, items), strict=True)))
        for callback in self.post_gather_callbacks:
            self.call(callback, name, result)
        so_far = self.results[name]
        for value, iteration, rank in _aligned(result.values, result.iterations, result.ranks):
            so_far.iterations.append(iteration)
            so_far.ranks.append(rank)
            so_far.values.append(value)
        return []  # they are here, and need not be in the trace as well


class PathList(Variable):
    """The variable of the README's interface, whose callbacks change lists in place."""

    def _given(self, callback: Callback, name: str, result: Any) -> None:
        lists = [result.values, result.iterations]
        if isinstance(result, GlobalVariableResult):
            lists.append(result.ranks)
        callback(name, *lists)


def _passed_over(callback: Callback, name: str, call: Callable[[], Any], otherwise: Any) -> Any:
    """What a callback of the user's makes; it may fail, and the program goes on."""
    try:
        return call()
    except Exception as error:
        called = getattr(callback, "__name__", type(callback).__name__)
        warnings.warn(
            f"the callback {called} failed for {name!r} and was passed over: "
            f"{type(error).__name__}: {error}",
            ClewWarning,
            stacklevel=2,
        )
        return otherwise


def _copied(values: Any) -> Any:
    return list(values) if isinstance(values, list) else values


def _packed(name: str, value: Any, iteration: Any, rank: int) -> dict[str, Any]:
    return {"name": name, "value": value, "iteration": np.asarray(iteration), "rank": rank}


def _unpacked(item: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Iteration, rank and value; the parts of a container, which come by path, as a container."""
    iteration = item["iteration"]
    parts = {k.removeprefix("value."): v for k, v in item.items() if k.startswith("value.")}
    value = _nested(parts) if parts else item.get("value")
    return iteration.item() if iteration.ndim == 0 else iteration, item["rank"], value


def _nested(parts: dict[str, Any]) -> Any:
    """Parts by path as dicts, and as a tuple where the names are 0, 1, ..."""
    groups: dict[str, dict[str, Any]] = {}
    for path, value in parts.items():
        first, _, rest = path.partition(".")
        groups.setdefault(first, {})[rest] = value
    found = {key: g[""] if list(g) == [""] else _nested(g) for key, g in groups.items()}
    is_row = list(found) == [str(n) for n in range(len(found))]
    return tuple(found.values()) if is_row else found


def _aligned(values: Any, *facts: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Each value with its facts; with all of them where callbacks have made one of several."""
    rows = list(values) if not isinstance(values, Tensor) or values.ndim else [values]
    if len(rows) == len(facts[0]):
        return iter(zip(rows, *facts, strict=True))
    if isinstance(values, Tensor):
        rows = [values]
    return iter([(row, *map(stacked_facts, facts)) for row in rows])


def stacked_facts(facts: Sequence[Any], padding: int = 0) -> np.ndarray[Any, Any]:
    """Iterations or ranks as one array, filled up with a number that none of them has."""
    arrays = [np.asarray(fact, dtype=np.int64) for fact in facts]
    ndim = max((array.ndim for array in arrays), default=0)
    arrays = [array.reshape((1,) * (ndim - array.ndim) + array.shape) for array in arrays]
    shape = [max(array.shape[axis] for array in arrays) for axis in range(ndim)]
    result = np.full((len(arrays), *shape), padding, dtype=np.int64)
    for number, array in enumerate(arrays):
        result[row_of(number, array.shape)] = array
    return result


def row_of(number: int, shape: Iterable[int]) -> tuple[slice, ...]:
    """Where a row goes: the beginning of each of its dimensions."""
    return (slice(number, number + 1), *(slice(0, size) for size in shape))


def rank() -> int:
    is_one_of_many = distributed.is_available() and distributed.is_initialized()
    return distributed.get_rank() if is_one_of_many else 0

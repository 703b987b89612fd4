"""Values of a model's passes for callbacks: saved on each rank, brought together on rank 0.

For those who want the values of a long run themselves, of whatever kind, and no trace of it. Input:
a model and `Collector`s, which say what to collect. Output: the results of each, by name.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import nn

from clew.callbacks.rank_mailbox import Ranks, Round
from clew.compat.engine.copies import copied
from clew.compat.engine.object_mail import ObjectMail
from clew.compat.engine.passes import Passes
from clew.errors import ClewError, warn
from clew.keep import fast_summaries  # noqa: F401 - tensors are compared once it is loaded
from clew.keep.describing import is_same
from clew.request.callbacks import Callbacks, deterministic, stack_padded
from clew.session.tracer import Tracer, trace, unrecorded

_C = TypeVar("_C", bound="Collecting")


class _Result:
    """Values with facts of each."""

    values: Any

    def stack(self, how: Callable[[list[Any]], Any]) -> None:
        """Make one tensor of the values, by `clew.callbacks.stack` or `stack_padded`.

        None among them is left out, with its facts.
        """
        none = {at for at, value in enumerate(self.values) if value is None}
        for column in vars(self).values() if none else ():
            column[:] = [item for at, item in enumerate(column) if at not in none]
        tensors = [torch.as_tensor(value) for value in self.values]
        dtype = functools.reduce(torch.promote_types, (t.dtype for t in tensors), torch.bool)
        self.values = torch.from_numpy(how(tensors)).to(dtype) if tensors else torch.tensor([])

    def clear(self) -> None:
        """Drop everything, also from lists that somebody else has."""
        for name, column in vars(self).items():
            if isinstance(column, list):
                column.clear()
            setattr(self, name, [])


@dataclass
class LocalVariableResult(_Result):
    """Values of one process, each with its iteration."""

    iterations: Any = field(default_factory=list)
    values: Any = field(default_factory=list)


@dataclass
class GlobalVariableResult(_Result):
    """Values of all processes, each with its iteration and rank."""

    iterations: Any = field(default_factory=list)
    ranks: Any = field(default_factory=list)
    values: Any = field(default_factory=list)


class Collector:
    """Values of some paths in every so many passes of a mode, and what becomes of them.

    A callback before a value is saved gets its name, the value and the iteration, and returns what
    to save. Those before and after a gather, and at the end, get a name and a result, which they
    may change. One that fails is passed over, with a warning.
    """

    paths: list[str]
    mode: str | None
    trace_interval: int
    gather_interval: int
    pre_save_callbacks: Sequence[Callable[..., Any]]
    pre_gather_callbacks: Sequence[Callable[..., Any]]
    post_gather_callbacks: Sequence[Callable[..., Any]]
    post_trace_callbacks: Sequence[Callable[..., Any]]

    def __init__(self) -> None:
        # Of this process since its last gather, and of all, as the callbacks made them.
        self.local_results: dict[str, LocalVariableResult] = defaultdict(LocalVariableResult)
        self.results: dict[str, GlobalVariableResult] = defaultdict(GlobalVariableResult)
        self._so_far: dict[str, GlobalVariableResult] = defaultdict(GlobalVariableResult)

    def save(self, name: str, value: Any, iteration: int, if_changed: bool = False) -> None:
        """Save a copy of a value; with `if_changed` not if the last of this iteration is equal."""
        for function in self.pre_save_callbacks:
            value = _passed_over(function, (name, value, iteration), value)
        try:
            value = copied(value)
        except Exception as error:
            warn(f"{name!r} is not traced: {type(error).__name__}: {error}")
            return
        result = self.local_results[name]
        is_new = result.iterations[-1:] != [iteration]
        if is_new or not if_changed or not is_same(result.values[-1], value):
            _append(result, iteration, value)

    def gather(self) -> None:
        """Send everything to rank 0, without a tracer; all ranks have to call this."""
        ranks = _all_ranks()
        ranks.begin()
        for found in (*ranks.give(None, self.taken()), *ranks.end()[0]):
            self.arrived(found)

    def taken(self) -> list[tuple[Any, ...]]:
        """Return what was saved since the last time, as callbacks made it."""
        taken, self.local_results = self.local_results, defaultdict(LocalVariableResult)
        self._apply(self.pre_gather_callbacks, taken)
        return [(name, *row) for name, result in taken.items() for row in _rows(result)]

    def arrived(self, given: Mapping[int, Iterable[Sequence[Any]]]) -> None:
        """Add what came of each rank to the results, as callbacks made it."""
        arrived: dict[str, GlobalVariableResult] = defaultdict(GlobalVariableResult)
        for rank, rows in given.items():
            for name, iteration, value in rows:
                _append(arrived[name], iteration, rank, value)
        self._apply(self.post_gather_callbacks, arrived)
        for name, result in arrived.items():
            self.results[name] = self._so_far[name]
            for row in _rows(result):
                _append(self._so_far[name], *row)

    def end(self) -> None:
        """Make of copies of the results, as more may come, what is to be made at the end."""
        if self.post_trace_callbacks:
            for name, result in self._so_far.items():
                self.results[name] = GlobalVariableResult(*map(list, vars(result).values()))
            self._apply(self.post_trace_callbacks, self.results)

    def handed(self, name: str, result: Any) -> tuple[Any, ...]:
        """Return the arguments that a callback gets for a result."""
        return name, result

    def _apply(self, functions: Iterable[Callable[..., Any]], results: dict[str, Any]) -> None:
        """Let callbacks change results; one is as it was before a callback that fails."""
        with unrecorded() if functions else contextlib.nullcontext():
            for (name, result), function in itertools.product(results.items(), functions):
                columns = vars(result)
                before = {k: v[:] if isinstance(v, list) else v for k, v in columns.items()}
                if _passed_over(function, self.handed(name, result), before) is before:
                    columns.update(before)


@dataclass(frozen=True, slots=True)
class _InPasses(Callbacks):
    """Callbacks whose steps are passes of the model, of which each thread has its own."""

    passes: Any = None

    def is_due(self, steps: Any, training: Any) -> bool:
        return bool(self.passes.is_due(self.every, self.only))


class Collecting:
    """Collects in the passes of a model inside its `with` blocks."""

    def __init__(self, model: nn.Module, collectors: Sequence[Collector]) -> None:
        self._model = model
        self._collectors = collectors
        self._traces: list[Tracer] = []
        self._ranks: Any = None
        self._open = contextlib.ExitStack()
        self._passes = Passes(model, self._ended)
        self.count = self._passes.count

    def __enter__(self: _C) -> _C:
        if any(one.recording for one in self._traces):
            raise ClewError("this model is traced already; leave the block of its tracer first")
        self._ranks = self._ranks or _all_ranks()
        self._traces = self._traces or [
            trace(self._model, level="values", callbacks=self._callbacks(one))
            for one in self._collectors
        ]
        for one in self._traces:
            self._open.enter_context(one)
        self._ranks.begin()
        # After the traces: a pass is over when all have seen its last value.
        self._open.enter_context(self._passes)
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)
        self._gather("the rest", self._collectors)
        # An exception must not wait for others, which may never come.
        self._arrived(self._ranks.end(self.count(), wait=error[0] is None)[0])
        for collector in self._collectors:
            collector.end()

    def _callbacks(self, collector: Collector) -> dict[str, Callbacks]:
        """Return the callbacks of each path, which save its values in the collector alone."""

        def save(value: Any, address: str) -> None:
            if not isinstance(value, nn.Module):
                name = address.removesuffix(".return")
                collector.save(name, value, self._passes.number(collector.mode))

        how = _InPasses(
            save if collector.pre_save_callbacks else deterministic(save), passes=self._passes,
            every=collector.trace_interval, only=collector.mode, with_address=True, keep=False,
        )  # fmt: skip
        return dict.fromkeys(collector.paths, how)

    def _ended(self, mode: str) -> None:
        for one in self._traces:
            one.step()
        due = [
            each for each in self._collectors
            if each.mode in (None, mode)
            and self._passes.number(each.mode) % each.gather_interval == 0
        ]  # fmt: skip
        self._ranks.alive()
        if due:
            self._gather((mode, self._passes.number(mode)), due)

    def _gather(self, key: Any, due: Sequence[Collector]) -> None:
        """Send values of some collectors to rank 0."""
        mine = [(self._collectors.index(each), *row) for each in due for row in each.taken()]
        self._arrived(self._ranks.give(key, mine))

    def _arrived(self, rounds: list[Round]) -> None:
        for found, (number, collector) in itertools.product(rounds, enumerate(self._collectors)):
            collector.arrived({
                rank: [row for of, *row in rows if of == number] for rank, rows in found.items()
            })  # fmt: skip


def _all_ranks() -> Ranks:
    return Ranks(ObjectMail(), lambda trouble: warn(f"values of other ranks: {trouble}"))


def _passed_over(function: Callable[..., Any], args: tuple[Any, ...], otherwise: Any) -> Any:
    """Return what a callback of the user's returns; if it fails, warn and return `otherwise`."""
    try:
        return function(*args)
    except Exception as error:
        called = getattr(function, "__name__", type(function).__name__)
        told = f"{type(error).__name__}: {error}"
        warn(f"the callback {called} failed for {args[0]!r} and was passed over: {told}")
        return otherwise


def _append(result: Any, *row: Any) -> None:
    for column, item in zip(vars(result).values(), row, strict=True):
        column.append(item)


def _rows(result: Any) -> Iterator[tuple[Any, ...]]:
    """Return each value after its facts; after all facts where callbacks made one of several."""
    *facts, values = vars(result).values()
    is_tensor = hasattr(values, "ndim")
    rows = [values] if is_tensor and not values.ndim else list(values)
    if len(rows) != len(facts[0]):
        rows = [values] if is_tensor else rows
        facts = [[stack_padded(fact)] * len(rows) for fact in facts]
    return zip(*facts, rows, strict=True)

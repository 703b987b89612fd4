"""Assemble the observers of everything that was asked for by address or name.

Input: a request. Output: the observers of values by address: variables, gradients, taps, workers,
watched variables. They share one `Interest` and mark its ledger.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from clew.address import Address, compile_path
from clew.callbacks.apply import Named
from clew.observe.dataloader import LoaderSource, WorkerPlan
from clew.observe.tap_source import TapSource
from clew.record.gaps import Gaps
from clew.record.recorder import Recorder
from clew.record.steps import Steps
from clew.request.interest import Interest, interest_of
from clew.request.request import Request
from clew.session import on_first_use
from clew.session.worker_start import begin_worker
from clew.torch_compat import is_compiling

if TYPE_CHECKING:
    from clew.callbacks.gather import Gather
    from clew.keep.keeper import Keeper
    from clew.observe.gradients import GradSource
    from clew.observe.variables.captured import VariableSource
    from clew.observe.variables.watched import WatchSource
    from clew.store.read.worker_files import WorkerFiles
    from clew.stream.batch import Observer


class Assembly:
    """The observers of everything that was asked for by address or name."""

    def __init__(
        self,
        recorder: Recorder,
        request: Request,
        has_model: bool,
        steps: Steps,
        training: Callable[[], bool | None],
        gaps: Gaps,
    ) -> None:
        self._recorder = recorder
        # Without a model it shows only as it runs what is a module and what a variable.
        self.interest = interest = interest_of(
            request, lambda address: has_model and self._may_be_variable(address)
        )
        asks = interest.keeps_calls or interest.keeps_ops or interest.takes_ops
        recorder.values.keep(
            lambda: _keeper(recorder, request, interest, gaps),
            every=asks or request.values != "meta",
        )
        self.named = Named(recorder, interest, steps, training, gaps.add)
        # Gets calls and ops, if callbacks ask for any.
        self.called = self.named if interest.takes_calls or interest.takes_ops else None
        self.gather: Gather | None = None
        if request.gather is not None or _calls_back_at_end(interest):
            self.gather = self._gather(request.gather, steps, gaps)
        self.grads: GradSource | None = None
        if interest.follows_tensors:
            self.grads = on_first_use.GradSource(recorder, self.named)
        ledger = interest.ledger
        variables = [address for address in ledger.addresses if self._may_be_variable(address)]
        self.variables: VariableSource | None = None
        if variables:
            self.variables = on_first_use.VariableSource(
                recorder, variables, self.named, ledger, gaps.add, is_compiling
            )
        self._taps = TapSource(recorder, self.named, gaps.add)
        self.watch: WatchSource | None = None
        if request.watch:
            self.watch = on_first_use.watch_source(recorder, request, gaps)
        texts = tuple([address.text for address in ledger.addresses])
        plan = _worker_plan(texts, request.watch, request.values)
        self.workers = LoaderSource(recorder, plan, begin_worker, _open_inbox, gaps.add)

    def _gather(self, every: int | None, steps: Steps, gaps: Gaps) -> Gather:
        named = self.named
        gather = on_first_use.Gather(
            self._recorder, every, steps, named.callbacks_of, on_first_use.decode,
            on_first_use.SampleMail(), gaps.add, gaps.tell, named.only,
        )  # fmt: skip
        named.collect = gather.collect
        return gather

    def observers(self, modules: Observer) -> list[Observer]:
        """Return all in the order in which they are to be started, with that of module calls."""
        order = [
            self.variables,
            self.grads,
            modules,
            self._taps,
            self.workers,
            self.watch,  # last in, first out: nothing of the other observers is followed
        ]
        return [source for source in order if source is not None]

    def is_inside(self, source: Observer) -> bool:
        """Return whether an observer is part of what runs: hooks and code that a compiler sees."""
        return source not in (self.grads, self.workers, self.watch)

    @property
    def owners(self) -> set[str]:
        """Return the paths of the modules whose variables were recorded."""
        return set() if self.variables is None else self.variables.owners

    def names_near(self, address: Address) -> Iterable[str]:
        """Return the variables, or parts of a call, that an address may have meant."""
        elsewhere = self.interest.ledger.elsewhere.get(address.text)
        if elsewhere is not None:
            call = address.text.partition(f":{address.role}")[0]
            return [f"{call}:{address.role}.{place}" for place in elsewhere if place]
        return () if self.variables is None else self.variables.candidates(address)

    def _may_be_variable(self, address: Address) -> bool:
        """Return whether an address may name a variable: it may if no module has its name."""
        if address.kind == "function":
            return True
        if address.kind != "path" or address.role is not None:
            return False
        named = compile_path(address.path)
        return not any(named(name.path) for name in self._recorder.modules.names)


@functools.lru_cache(maxsize=16)
def _worker_plan(capture: tuple[str, ...], watch: tuple[str, ...], values: str) -> WorkerPlan:
    return WorkerPlan(capture, watch or None, values)


def _keeper(recorder: Recorder, request: Request, interest: Interest, gaps: Gaps) -> Keeper:
    values = recorder.values
    return on_first_use.Keeper(request.values, interest, values.budget, gaps.add, values.kept)


def _open_inbox(folder: Path) -> WorkerFiles:
    return on_first_use.WorkerFiles(folder)


def _calls_back_at_end(interest: Interest) -> bool:
    for asked in interest.asked:
        if asked.callbacks is not None and asked.callbacks.end is not None:
            return True
    return False

"""Assemble the observers of everything that was asked for by address or name.

Input: a request. Output: the observers of values by address: variables, gradients, taps, workers,
watched variables. They share one `Interest` and mark its ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from clew.address import Address, compile_pattern
from clew.callbacks.apply import Named
from clew.keep.keeper import Keeper
from clew.observe.dataloader import LoaderSource, WorkerPlan
from clew.observe.gradients import GradSource
from clew.observe.tap_source import TapSource
from clew.record.gaps import Gaps
from clew.record.recorder import Recorder
from clew.record.steps import Steps
from clew.request.interest import interest_of
from clew.request.request import Request
from clew.session.worker_start import begin_worker
from clew.store.format.payload_numpy import decode
from clew.store.read.worker_files import WorkerFiles
from clew.stream.batch import Observer
from clew.torch_compat import is_compiling, keep_from_dynamo

if TYPE_CHECKING:
    from clew.callbacks.gather import Gather
    from clew.observe.variables.captured import VariableSource
    from clew.observe.variables.watched import WatchSource


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
        keeper = Keeper(
            request.values, interest, recorder.values.budget, gaps.add, recorder.values.kept
        )
        asks = interest.keeps_calls or interest.keeps_ops or interest.takes_ops
        recorder.values.keep(keeper, every=asks or request.values != "meta")
        self.named = Named(recorder, interest, steps, training, gaps.add)
        # Gets calls and ops, if callbacks ask for any.
        self.called = self.named if interest.takes_calls or interest.takes_ops else None
        self.gather: Gather | None = None
        if request.gather is not None or any(
            a.callbacks is not None and a.callbacks.end is not None for a in interest.asked
        ):
            self.gather = self._gather(request.gather, steps, gaps)
        self.grads: GradSource | None = None
        if interest.follows_tensors:
            self.grads = GradSource(recorder, self.named)
        ledger = interest.ledger
        variables = [address for address in ledger.addresses if self._may_be_variable(address)]
        self.variables: VariableSource | None = None
        if variables:
            # Which takes long to load, and most traces have no use for.
            from clew.observe.variables.captured import VariableSource

            self.variables = VariableSource(
                recorder, variables, self.named, ledger, gaps.add, is_compiling
            )
        self._taps = TapSource(recorder, self.named, gaps.add)
        self.watch = _watch_source(recorder, request, gaps) if request.watch else None
        plan = WorkerPlan(
            tuple(address.text for address in ledger.addresses), request.watch or None,
            request.values,
        )  # fmt: skip
        self.workers = LoaderSource(recorder, plan, begin_worker, WorkerFiles, gaps.add)

    def _gather(self, every: int | None, steps: Steps, gaps: Gaps) -> Gather:
        # Which most traces have no use for.
        from clew.callbacks.gather import Gather
        from clew.session.rank_mail import SampleMail

        named = self.named
        gather = Gather(
            self._recorder, every, steps, named.callbacks_of, decode, SampleMail(), gaps.add,
            gaps.tell, named.only,
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
        named = compile_pattern(address.path)
        return not any(named(name.path) for name in self._recorder.modules.names)


def _watch_source(recorder: Recorder, request: Request, gaps: Gaps) -> WatchSource:
    """Return the observer of watched variables, which also reports them live if asked to."""
    # They take long to load, and most traces have no use for them.
    from clew.keep import glances  # noqa: F401 - which is known once it is loaded
    from clew.observe.variables.frames import monitoring, tracing
    from clew.observe.variables.selector import Wishes
    from clew.observe.variables.user_code import Scope
    from clew.observe.variables.watched import WatchSource
    from clew.observe.variables.watched_variables import Wants
    from clew.watch_output import output_for

    keep_from_dynamo((monitoring, tracing))
    wants = Wants(Wishes(request.watch), "full" if request.values == "full" else "stats")
    tell = None
    if request.live:
        output = output_for(None, 3, False)
        tell = None if output is None else output.tell
    return WatchSource(recorder, wants, Scope(), tell, gaps.tell, everywhere=True)

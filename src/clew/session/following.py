"""What is followed besides module calls and ops: values by address, variables, gradients, taps.

In come settings, out come the sources that make those events, and what they found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from clew.address import Address, compile_pattern
from clew.events.model import Gap
from clew.record.gaps import Gaps
from clew.request.callbacks import Callbacks, reducer
from clew.session.settings import ROLES_BEYOND_CALLS, Settings
from clew.session.workers import begin_worker
from clew.store.read.worker_files import WorkerFiles
from clew.stream.batch import Observer

if TYPE_CHECKING:
    from clew.callbacks.gather import Gather
    from clew.observe.gradients import GradSource
    from clew.observe.variables.captured import VariableSource
    from clew.observe.variables.watched import WatchSource
    from clew.record.recorder import Recorder
    from clew.record.steps import Steps


class Following:
    """The sources and treatments of everything that was asked for by address or name."""

    def __init__(
        self,
        recorder: Recorder,
        settings: Settings,
        has_model: bool,
        steps: Steps,
        training: Callable[[], bool | None],
        gaps: Gaps,
    ) -> None:
        from clew.callbacks.apply import Named, Treated
        from clew.keep.keeper import Keeper
        from clew.observe.dataloader import LoaderSource, WorkerPlan
        from clew.observe.gradients import GradSource
        from clew.observe.tap_source import TapSource
        from clew.observe.variables.captured import VariableSource
        from clew.torch_compat import is_compiling

        self._recorder = recorder
        asked = settings.addresses
        # Without a model it shows only as it runs what is a module and what a variable.
        kept = [a for a in settings.capture if a.text not in settings.followed]
        calls = [a for a in kept if not has_model or not self._may_be_variable(a)]
        if not recorder.keeps_calls:
            calls = []
        self._keeper = keeper = Keeper(
            settings.values, calls, recorder.values.budget, gaps.add, recorder.values.kept
        )
        treated = [Treated(a, how, records=True) for a, how in settings.followed.values()]
        if settings.gather is not None or not recorder.keeps_calls:
            records = not recorder.keeps_calls
            treated += [Treated(a, Callbacks(), records) for a in kept]
        self.named = Named(recorder, treated, steps, training, gaps.add)
        self.gather = self._gather(settings.gather, steps, gaps)
        # Told of calls and ops, if it asks for any.
        self.called = self.named if self.named.calls or self.named.ops else None
        every = settings.values != "meta" or keeper.is_asked or bool(self.named.ops)
        recorder.values.keep(keeper, every=every)
        self.grads: GradSource | None = None
        if any(address.role in ROLES_BEYOND_CALLS for address in asked):
            self.grads = GradSource(recorder, asked, self.named)
        variables = [address for address in asked if self._may_be_variable(address)]
        self._variables: VariableSource | None = None
        if variables:
            self._variables = VariableSource(
                recorder, variables, self.named, gaps.add, is_compiling
            )
        self._taps = TapSource(recorder, self.named, reducer, asked, gaps.add)
        self.watch = _watch_source(recorder, settings, gaps) if settings.watch else None
        plan = WorkerPlan(
            tuple(address.text for address in asked), settings.watch or None, settings.values
        )
        self.workers = LoaderSource(recorder, plan, begin_worker, WorkerFiles, gaps.add)
        matchers = (keeper, self.named, self.grads, self._variables, self._taps)
        self._matchers: list[Any] = [source for source in matchers if source is not None]

    def _gather(self, every: int | None, steps: Steps, gaps: Gaps) -> Gather:
        from clew.callbacks.gather import Gather
        from clew.session.rank_mail import SampleMail
        from clew.store.format.payload_numpy import decode

        named = self.named
        gather = Gather(
            self._recorder, every, steps, named.treatment_of, decode, SampleMail(), gaps.add,
            gaps.tell, named.only,
        )  # fmt: skip
        named.collect = gather.collect
        return gather

    def around(self, modules: Observer) -> list[Observer]:
        """All sources in the order in which they are to be started, with that of module calls."""
        order = [
            self._variables,
            self.grads,
            modules,
            self._taps,
            self.workers,
            self.watch,  # last in, first out: nothing of the other sources is followed
        ]
        return [source for source in order if source is not None]

    def looks_on(self, source: Observer) -> bool:
        """Whether a source is part of what runs: hooks and code that a compiler sees too."""
        return source not in (self.grads, self.workers, self.watch)

    def missed(self) -> Iterator[Gap]:
        """Say which addresses were found, and never came."""
        for source in (self.named, self._variables, self.grads):
            if source is not None:
                yield from source.missed()

    def not_found(self, addresses: Iterable[Address]) -> Iterable[Gap]:
        """Say which addresses name a function that does not exist."""
        return () if self._variables is None else self._variables.not_found(addresses)

    @property
    def matched(self) -> set[str]:
        """The addresses that something matched."""
        return {text for source in self._matchers for text in source.matched}

    @property
    def follows_code(self) -> bool:
        """Whether functions are followed, which have other code meanwhile."""
        return self._variables is not None

    @property
    def owners(self) -> set[str]:
        """The paths of modules that variables were recorded of."""
        return set() if self._variables is None else self._variables.owners

    def names_near(self, address: Address) -> Iterable[str]:
        """Variables, or parts of a call, that an address without a match may have meant."""
        if address.text in self._keeper.elsewhere:
            call = address.text.partition(f":{address.role}")[0]
            return [f"{call}:{address.role}.{p}" for p in self._keeper.elsewhere[address.text] if p]
        return () if self._variables is None else self._variables.candidates(address)

    def _may_be_variable(self, address: Address) -> bool:
        """Whether an address may name a variable: it does if no module has its name."""
        if address.kind == "function":
            return True
        if address.kind != "path" or address.role is not None:
            return False
        named = compile_pattern(address.path)
        return not any(named(name.path) for name in self._recorder.modules.names)


def _watch_source(recorder: Recorder, settings: Settings, gaps: Gaps) -> WatchSource:
    """Follows variables by name; told with the rest of what is live."""
    from clew.keep import glances  # noqa: F401 - which is known once it is loaded
    from clew.observe.variables.frames import monitoring, tracing
    from clew.observe.variables.selector import Wishes
    from clew.observe.variables.user_code import Scope
    from clew.observe.variables.watched import WatchSource
    from clew.observe.variables.watched_variables import Wants
    from clew.torch_compat import keep_from_dynamo

    keep_from_dynamo((monitoring, tracing))
    wants = Wants(Wishes(settings.watch), "full" if settings.values == "full" else "stats")
    tell = None
    if settings.live:
        from clew.watch_output import output_for

        output = output_for(None, 3, False)
        tell = None if output is None else output.tell
    return WatchSource(recorder, wants, Scope(), tell, gaps.tell, everywhere=True)

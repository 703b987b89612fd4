"""Report what was asked for and never came: models, addresses, names to watch.

Input: the ledgers of a recording and what it met. Output: warnings and entries of coverage, each
with the nearest names of what ran. A warning comes at the end of the first step that could have had
a match; as one may still come, coverage says it only at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from clew.address import Address, compile_path, nearest
from clew.errors import warn
from clew.events.model import Gap
from clew.record.gaps import Gaps
from clew.request.interest import CALL_GRADIENTS, TENSOR_ROLES
from clew.session import on_first_use
from clew.session.assembly import Assembly

if TYPE_CHECKING:
    from clew.record.module_registry import ModuleTable
    from clew.record.recorder import Recorder
    from clew.session.late_model import LateModel

_NOTHING_RAN = Gap(
    "events",
    "",
    "nothing ran inside the trace that torch would show",
    "run the model or the ops inside the block, on this thread",
)
_TO_CAPTURE = "an address to capture"
_NEVER_RAN = (
    "its function was found, and never called, or never with this variable; a fused fast path "
    "or code that was compiled before the trace goes past it, and compiled code does not tell "
    "whose a static method is that several modules have",
    "call it inside the block; for compiled code, compile inside the block or use "
    "clew.trace(compiled='eager')",
)


_WORKER_FAILED = (
    "Clew failed in a DataLoader worker, which may have run its function",
    "please report it, with the entry of that worker",
)


class Unmatched:
    """What was asked for and has not come."""

    def __init__(
        self,
        recorder: Recorder,
        assembly: Assembly,
        gaps: Gaps,
        late_model: LateModel | None = None,
    ) -> None:
        self._recorder = recorder
        self._assembly = assembly
        self._gaps = gaps
        self._late_model = late_model
        self._ledger = assembly.interest.ledger
        # Addresses of which no step has shown whether something matches them.
        self._unchecked = {a.text for a in self._ledger.addresses if a.call is None}
        self._watches_unchecked = assembly.watch is not None
        # What was warned of at the end of a step.
        self._warned: set[tuple[str, str]] = set()

    def warn_after_step(self, step: int) -> None:
        """Warn of what nothing in the first step that could have it has matched."""
        if not (self._unchecked or self._watches_unchecked) or self._recorder.is_empty():
            return
        has_calls = bool(self._recorder.modules.called)
        due = {a.text for a in self._ledger.addresses if has_calls or a.kind != "path"}
        due &= self._unchecked
        self._unchecked -= due
        found = list(self._without_match(due))
        if self._watches_unchecked:
            self._watches_unchecked = False
            found += self._without_watch()
        for gap in found:
            self._warned.add((gap.what, gap.where))
            warn(f"{gap} (up to the end of step {step})")

    def report_late_model(self, has_crashed: bool) -> None:
        """Report a model that never came by the name given; after a crash, do not warn of it."""
        missing = None if self._late_model is None else self._late_model.gap()
        if missing is not None:
            (self._gaps.add if has_crashed else self._gaps.tell)(missing)

    def report(self, has_schedule: bool, is_compiled: bool) -> None:
        """Report everything that never came, at the end of a recording.

        `is_compiled` says whether there is compiled code, which may have run past everything.
        """
        nothing_ran = []
        modules = self._recorder.modules
        if not modules.models and self._recorder.is_empty() and not has_schedule:
            nothing_ran.append(_NOTHING_RAN)
        nothing_ran += _models_that_never_ran(modules, self._assembly.owners, is_compiled)
        for gap in nothing_ran:
            self._gaps.tell(gap)
        if not self._ledger.addresses and self._assembly.watch is None:
            return  # nothing was asked for
        everything = {address.text for address in self._ledger.addresses}
        unmatched = [*self._never_due(), *self._awaited(), *self._without_match(everything)]
        for gap in (*self._without_watch(), *unmatched):
            # Where nothing ran at all, that is said, and why nothing matches is clear.
            is_known = nothing_ran or (gap.what, gap.where) in self._warned
            is_new = (self._gaps.add if is_known else self._gaps.tell)(gap)
            if is_new and self._assembly.watch is not None and gap not in unmatched:
                self._assembly.watch.note(gap)

    def report_after_crash(self) -> None:
        """Note what never came before an exception ended the block, without a warning.

        It might have come later; that a model never ran says nothing then.
        """
        everything = {address.text for address in self._ledger.addresses}
        asked = [*self._never_due(), *self._awaited(), *self._without_match(everything)]
        for gap in (*self._without_watch(), *asked):
            self._gaps.add(gap)

    def report_all_left_out(self, last: int) -> None:
        """Report a run whose last step came before any that the schedule records."""
        self._gaps.tell(
            Gap(
                "events",
                "",
                f"the schedule leaves out every step there was, the last of them step {last}",
                "run more; Trace.step() begins a step, as does, where it is never called, the "
                "first forward after an optimizer.step()",
            )
        )

    def _without_watch(self) -> Iterable[Gap]:
        watch = self._assembly.watch
        return () if watch is None else watch.unmatched()

    def _never_due(self) -> Iterator[Gap]:
        callbacks = {a.address.text: a.callbacks for a in self._assembly.interest.asked}
        for address in self._ledger.never_due():
            of = callbacks[address.text]
            assert of is not None
            only = f", only={of.only!r}" if of.only else ""
            why = f"none of the steps in which it ran was due (every={of.every}{only})"
            instead = "mark the steps with Trace.step(), or record more of them"
            yield Gap(_TO_CAPTURE, address.text, why, instead)

    def _awaited(self) -> Iterator[Gap]:
        self._ledger.came.update(self._recorder.met_by_workers)
        for address in self._ledger.awaited():
            if address.role is None:
                why = _WORKER_FAILED if self._assembly.workers.has_failed else _NEVER_RAN
                yield Gap(_TO_CAPTURE, address.text, *why)
                continue
            missing = "no optimizer made a step with it"
            if address.role in CALL_GRADIENTS:
                missing = "no gradient arrived for it"
            instead = "run that part of the training inside the block"
            yield Gap(_TO_CAPTURE, address.text, missing, instead)

    def _without_match(self, texts: set[str]) -> Iterator[Gap]:
        """Yield a gap for each address that nothing matches, with the nearest names of what ran."""
        self._ledger.came.update(self._recorder.met_by_workers)
        modules = self._recorder.modules
        unmatched = [a for a in self._ledger.unmatched() if a.text in texts]
        called = [name.path for name in modules.called] if unmatched else []
        owned = [path for path, _ in modules.tensors()] if unmatched else []
        for address in unmatched:
            if address.kind == "function" and address.role is None:
                why = str(on_first_use.missing(address.path, address.segments))
                instead = "import the module first, or name a function that exists"
                yield Gap(_TO_CAPTURE, address.text, why, instead)
                continue
            without_result = _without_result(address, modules)
            if without_result is not None:
                yield without_result
                continue
            sought, among = self._sought_among(address, called, owned)
            close = ", ".join(name or "the root module" for name in nearest(sought, among))
            yield Gap(
                _TO_CAPTURE,
                address.text,
                "nothing that ran matches it",
                f"the nearest that ran: {close or 'none'}",
            )

    def _sought_among(
        self, address: Address, called: list[str], owned: list[str]
    ) -> tuple[str, list[str]]:
        """Return the text of an address, and the names of its kind that came, to compare it with.

        `called` are the paths of modules that ran, `owned` those of parameters and buffers.
        """
        sought = address.text if address.field else address.path
        is_tensor = address.role in TENSOR_ROLES
        among = owned if is_tensor else called
        if is_tensor and address.role in CALL_GRADIENTS:
            among = [*called, *owned]
        if address.kind == "op":
            among = [f"op:{name}" for name in self._assembly.interest.ops_that_ran()]
            sought = sought if address.field else f"op:{sought}"
        return sought, [*among, *self._assembly.names_near(address)]


def _models_that_never_ran(
    modules: ModuleTable, with_methods: set[str], is_compiled: bool
) -> Iterator[Gap]:
    """Yield a gap for each model of which nothing ran.

    `with_methods` are the paths of modules whose methods ran, called or not.
    """
    unless = ", or only in code that was compiled before" if is_compiled else ""
    unseen = [m for m in modules.models if not modules.has_run(m)]
    ran = sorted({name.path for name in modules.called} | with_methods) if unseen else []
    for model in unseen:
        # By path, as a wrapper that was made before the trace has the name of what it wraps.
        if not {name.path for name in model.names}.isdisjoint(ran):
            continue
        listed = ", ".join(ran[:5]) or "no module at all"
        yield Gap(
            f"model {model.path or model.cls!r}",
            "",
            f"it never ran inside the trace{unless}; what ran: {listed}",
            "call this model object inside the block, or trace the one that runs",
        )


def _without_result(address: Address, modules: ModuleTable) -> Gap | None:
    """Return why a module that ran has no inputs or results: it failed, or went past the hooks."""
    whole_call = address.kind == "path" and address.call is None and not address.field
    if not whole_call or address.role not in (None, "in", "out"):
        return None
    is_meant = compile_path(address.path)
    found = [name for name in modules.called if is_meant(name.path)]
    if not found:
        return None
    if all(name.entry.calls == name.entry.failed for name in found):
        why = "every call of it raised, so it has no result"
        instead = f"capture {found[0].path}:in for what it was given"
        return Gap(_TO_CAPTURE, address.text, why, instead)
    path = found[0].path
    method = f"{path}.forward" if path else "forward"
    instead = f"{method}.<argument>" if address.role == "in" else method
    return Gap(
        _TO_CAPTURE,
        address.text,
        "it was called as module.forward(...), past torch's hooks",
        f"capture {instead}, or call the module itself",
    )

"""What a recording that is over tells about what was asked of it: models and addresses unmet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from clew.address import Address, compile_pattern, nearest
from clew.events.model import Gap
from clew.session.settings import TENSOR_ROLES

if TYPE_CHECKING:
    from clew.record.module_registry import ModuleName, ModuleTable

NOTHING_RAN = Gap(
    "events",
    "",
    "nothing ran inside the trace that torch would show",
    "run the model or the ops inside the block, on this thread",
)

EXPORTED = Gap(
    "what runs while a program is exported",
    "",
    "what records it would become part of the program, or keep it from being made",
    "run the model itself inside the block, or what was exported",
)

NOTHING_KEPT = Gap(
    "events",
    "",
    "out=False keeps none of them",
    "leave out= away to keep them in memory, or name a folder",
)


def all_left_out(last: int) -> Gap:
    """Of a run whose last step was reached before any that the schedule records."""
    return Gap(
        "events",
        "",
        f"the schedule leaves out every step there was, the last of them step {last}",
        "run more; Trace.step() begins a step, as does, where it is never called, the first "
        "forward after an optimizer.step()",
    )


def models_that_never_ran(
    given: dict[str, tuple[str, list[ModuleName]]],
    modules: ModuleTable,
    with_methods: set[str],
    is_compiled: bool,
) -> Iterator[Gap]:
    """Models of which nothing ran; `given` has the class and the names of each, by its path.

    `with_methods` are the paths of modules whose methods ran, called or not. `is_compiled` says
    whether there is compiled code, which may have run past everything.
    """
    unless = ", or only in code that was compiled before" if is_compiled else ""
    ran = sorted({name.path for name in modules.names if name.entry.calls} | with_methods)
    for path, (cls, names) in given.items():
        # By path, as a wrapper that was made before the trace has the name of what it wraps.
        if not {name.path for name in names}.isdisjoint(ran):
            continue
        listed = ", ".join(ran[:5]) or "no module at all"
        yield Gap(
            f"model {path or cls!r}",
            "",
            f"it never ran inside the trace{unless}; what ran: {listed}",
            "call this model object inside the block, or trace the one that runs",
        )


def addresses_without_match(
    unmatched: list[Address],
    modules: ModuleTable,
    names_near: Callable[[Address], Iterable[str]],
) -> Iterator[Gap]:
    """Addresses that nothing matched, each with the nearest names of what ran."""
    called = [name.path for name in modules.names if name.entry.calls]
    owned = [path for path, _ in modules.tensors()] if unmatched else []
    for address in unmatched:
        without_result = _without_result(address, modules)
        if without_result is not None:
            yield without_result
            continue
        among = [*(owned if address.role in TENSOR_ROLES else called), *names_near(address)]
        sought = address.text if address.field else address.path
        close = ", ".join(name or "the root module" for name in nearest(sought, among)) or "none"
        yield Gap(
            "an address to capture",
            address.text,
            "nothing that ran matches it",
            f"the nearest that ran: {close}",
        )


def stopped_elsewhere(thread: str) -> Gap:
    """What is left on a thread when another one stops the trace."""
    return Gap(
        f"the end of the trace on {thread}",
        "",
        "it was stopped on another thread: a dispatch mode stays there, which records nothing "
        "and is gone after the next op or with the next trace of that thread",
        "stop the trace on the thread that started it, once the others are done",
    )


def _without_result(address: Address, modules: ModuleTable) -> Gap | None:
    """For a module that ran, though never in a way that its inputs and results are handed over."""
    whole_call = address.kind == "path" and address.call is None and not address.field
    if not whole_call or address.role not in (None, "in", "out"):
        return None
    is_meant = compile_pattern(address.path)
    found = [name for name in modules.names if name.entry.calls and is_meant(name.path)]
    if not found:
        return None
    if all(name.entry.calls == name.entry.failed for name in found):
        why = "every call of it raised, so it has no result"
        instead = f"capture {found[0].path}:in for what it was given"
        return Gap("an address to capture", address.text, why, instead)
    path = found[0].path
    method = f"{path}.forward" if path else "forward"
    instead = f"{method}.<argument>" if address.role == "in" else method
    return Gap(
        "an address to capture",
        address.text,
        "it was called as module.forward(...), past torch's hooks",
        f"capture {instead}, or call the module itself",
    )

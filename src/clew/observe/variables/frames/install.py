"""Follow functions: replace their code by code that calls a probe, and restore it.

In: targets and a probe. Out: an `Installed`, which undoes it. Several uses of one function compose,
and end in any order, because its code is made from the source again for those that are left.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import CodeType, FunctionType, TracebackType

from clew.observe.variables.frames.functions import inner_codes
from clew.observe.variables.frames.hooks import CodeHooks, code_tree, inject
from clew.observe.variables.frames.monitoring import Busy
from clew.observe.variables.frames.rewrite import BARE, GUARDED, UNGUARDED
from clew.observe.variables.frames.rewritten import rewritten
from clew.observe.variables.frames.running import (
    Following,
    follow_code,
    follow_frame,
    running_frames,
)
from clew.observe.variables.frames.sites import Probe, Target
from clew.observe.variables.frames.source import Definition, NoSource, definition

_lock = threading.RLock()
_TOO_LARGE = "torch.compile could not split code this large"
_PARTIAL = {
    UNGUARDED: f"names that may have no value are not polled: {_TOO_LARGE}",
    BARE: f"neither the beginning nor the end of its calls is reported: {_TOO_LARGE}",
}


@dataclass(frozen=True, slots=True, eq=False)
class _Use:
    """One probe that follows something in a function.

    It is called through `hooks`, one for each code that the function has had while it is followed:
    calls go on with the code they began with.
    """

    target: Target
    probe: Probe
    compiling: Callable[[], bool] | None
    hooks: list[CodeHooks] = field(default_factory=list)

    def end(self) -> None:
        """Stop calling the probe."""
        for hooks in self.hooks:
            hooks.silence()


class _State:
    """One function while at least one probe follows it."""

    __slots__ = ("care", "definition", "function", "original", "ours", "uses")

    def __init__(self, function: FunctionType, found: Definition) -> None:
        self.function = weakref.ref(function)
        self.definition = found
        self.original = function.__code__
        self.ours: CodeType | None = None
        self.uses: list[_Use] = []
        self.care = GUARDED

    def apply(self) -> None:
        """Give the function the code its uses ask for, unless its code was changed elsewhere."""
        function, before = self.function(), self.ours
        if function is None or function.__code__ is not (before or self.original):
            return
        if self.uses:
            self.ours = self._code(function)
            function.__code__ = self.ours
        else:
            self.ours = None
            function.__code__ = self.original
        if before is not None:
            _restore_inner(before, self.original)

    def _code(self, function: FunctionType) -> CodeType:
        targets = [(use.target, use.compiling is not None) for use in self.uses]
        found = rewritten(self.definition, self.original, targets)
        self.care = found.care
        called = [
            CodeHooks(use.probe, use.compiling, table.sites, table.groups)
            for use, table in zip(self.uses, found.tables, strict=True)
        ]
        code = found.code_calling([hooks.name for hooks in called])
        for use, hooks in zip(self.uses, called, strict=True):
            use.hooks.append(hooks)
            inject(hooks, function.__globals__, code)
        return code


def _restore_inner(ours: CodeType, original: CodeType) -> None:
    """Give functions that were created by instrumented code the code their author wrote."""
    made = {(part.co_name, part.co_firstlineno): part for part in code_tree(original)}
    for part in code_tree(ours):
        before = made.get((part.co_name, part.co_firstlineno))
        changed = before is not None and before.co_code != part.co_code
        if part is ours or before is None or not changed:
            continue
        for function in functions_of(part):
            function.__code__ = before


def functions_of(code: CodeType) -> list[FunctionType]:
    """Find the functions that exist with this very code."""
    # In one expression: a frame that held what refers to it would keep itself alive.
    return [
        found
        for found in gc.get_referrers(code)
        if isinstance(found, FunctionType) and found.__code__ is code
    ]


_states: weakref.WeakKeyDictionary[FunctionType, _State] = weakref.WeakKeyDictionary()


class Installed:
    """The functions that `instrument` follows.

    `fallbacks` lists functions that are followed without their source, at a higher cost, `partial`
    those of which not everything is reported, `unseen` those not followed at all; with the reasons.
    """

    def __init__(
        self, probe: Probe, compiling: Callable[[], bool] | None = None, only_source: bool = False
    ) -> None:
        self._probe = probe
        self._compiling = compiling
        self._only_source = only_source
        self._uses: list[tuple[_State, _Use]] = []
        self._followed: list[Following] = []
        self.fallbacks: list[tuple[FunctionType, str]] = []
        self.unseen: list[tuple[FunctionType, str]] = []
        self.partial: list[tuple[FunctionType, str]] = []

    def uninstall(self) -> None:
        """Restore the code of all functions; a second call does nothing."""
        with _lock:
            uses, self._uses = self._uses, []
            for state, use in uses:
                state.uses.remove(use)
                use.end()
            for state in {id(state): state for state, _ in uses}.values():
                state.apply()
                function = state.function()
                if function is not None and not state.uses and _states.get(function) is state:
                    del _states[function]
            followed, self._followed = self._followed, []
            for following in followed:
                following.stop()

    def __enter__(self) -> Installed:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.uninstall()

    def _add(self, targets: Iterable[Target]) -> None:
        touched: dict[int, _State] = {}
        codes: set[int] = set()
        for target in _merged(targets):
            try:
                state = _state(target.function)
            except NoSource as reason:
                if self._only_source:
                    self.unseen.append((target.function, str(reason)))
                else:
                    self._follow_without_source(target, str(reason), codes)
                continue
            use = _Use(target, self._probe, self._compiling)
            state.uses.append(use)
            self._uses.append((state, use))
            touched[id(state)] = state
        for state in touched.values():
            running = (state.ours or state.original, state.original)
            state.apply()
            function = state.function()
            if state.care and function is not None:
                self.partial.append((function, _PARTIAL[state.care]))
            self._join_running(state, running)

    def _follow_without_source(self, target: Target, reason: str, codes: set[int]) -> None:
        function = target.function
        for code in _codes(function.__code__, target.inner):
            if id(code) in codes:
                continue
            codes.add(id(code))
            try:
                following = follow_code(
                    code, target.wanted, self._probe,
                    returns=target.returns, lines=target.lines, polls=target.polls,
                )  # fmt: skip
            except Busy as busy:
                self.unseen.append((function, f"{reason}, and {busy}"))
            else:
                self._followed.append(following)
                self.fallbacks.append((function, reason))

    def _join_running(self, state: _State, running: tuple[CodeType, ...]) -> None:
        """Follow calls that had begun: they keep the code they began with."""
        for frame in running_frames():
            if not any(frame.f_code is code for code in running):
                continue
            for found, use in self._uses:
                target = use.target
                if found is state and not target.inner:
                    self._followed.append(
                        follow_frame(
                            frame, target.wanted, self._probe,
                            lines=target.lines, polls=target.polls, origin=state.original,
                        )
                    )  # fmt: skip


def _merged(targets: Iterable[Target]) -> list[Target]:
    """Make one target of those on the same function, so that each event is reported once."""
    grouped: dict[tuple[int, str], list[Target]] = {}
    for target in targets:
        grouped.setdefault((id(target.function), target.inner), []).append(target)
    return [group[0] if len(group) == 1 else _union(group) for group in grouped.values()]


def _union(group: list[Target]) -> Target:
    return Target(
        group[0].function,
        lambda name: any(target.wanted(name) for target in group),
        returns=any(target.returns for target in group),
        lines=any(target.lines for target in group),
        polls=any(target.polls for target in group),
        inner=group[0].inner,
    )


def _codes(code: CodeType, inner: str) -> list[CodeType]:
    return [code] if not inner else [found for found, path in inner_codes(code) if path == inner]


def _state(function: FunctionType) -> _State:
    state = _states.get(function)
    if state is None or function.__code__ is not (state.ours or state.original):
        state = _State(function, definition(function))
        _states[function] = state
    return state


def instrument(
    targets: Iterable[Target],
    probe: Probe,
    *,
    compiling: Callable[[], bool] | None = None,
    only_source: bool = False,
) -> Installed:
    """Report to `probe` what happens in the targets until `uninstall`.

    Several targets on one function are one: what any of them asks for is reported once.

    With `compiling` (torch.compiler.is_compiling), functions get a second body that runs where it
    returns True: one without `try`. It reports bindings, polls of names surely bound and returns,
    and neither the beginning nor the end of the call. With `only_source`, functions whose source
    cannot be found are not followed.
    """
    with _lock:
        installed = Installed(probe, compiling, only_source)
        try:
            installed._add(targets)
        except BaseException:
            installed.uninstall()
            raise
        return installed

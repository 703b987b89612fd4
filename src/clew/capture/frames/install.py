"""Follow functions: swap their code for code that tells a probe, and put it back.

In: targets and a probe. Out: an `Installed`, which undoes it. Several uses of one function compose,
and end in any order, because its code is made from the source anew for whoever is left.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType, TracebackType

from clew.capture.frames.emit import Use
from clew.capture.frames.hooks import Hooks, code_tree
from clew.capture.frames.rewrite import rewrite
from clew.capture.frames.sites import Probe, Target
from clew.capture.frames.source import Definition, NoSource, definition

_lock = threading.RLock()


class _State:
    """One function while anybody follows it."""

    __slots__ = ("definition", "function", "original", "ours", "uses")

    def __init__(self, function: FunctionType, found: Definition) -> None:
        self.function = weakref.ref(function)
        self.definition = found
        self.original = function.__code__
        self.ours: CodeType | None = None
        self.uses: list[Use] = []

    def apply(self) -> None:
        """Give the function the code its uses ask for, if nobody else has changed it since."""
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
        node = self.definition.parse()
        rewrite(node, self.original, self.definition.qualname, self.uses)
        code = self.definition.compile(node)
        for hooks in {id(use.hooks): use.hooks for use in self.uses}.values():
            hooks.inject(function.__globals__, code)
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
    """What `instrument` put in place; `unseen` lists the functions it could not follow, and why."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._uses: list[tuple[_State, Use]] = []
        self.unseen: list[tuple[FunctionType, str]] = []

    def uninstall(self) -> None:
        """Put everything back; a second time does nothing."""
        with _lock:
            uses, self._uses = self._uses, []
            for state, use in uses:
                state.uses.remove(use)
            for state in {id(state): state for state, _ in uses}.values():
                state.apply()
                function = state.function()
                if function is not None and not state.uses and _states.get(function) is state:
                    del _states[function]
            self._hooks.silence()

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
        for target in targets:
            try:
                state = _state(target.function)
            except NoSource as reason:
                self.unseen.append((target.function, str(reason)))
                continue
            use = Use(self._hooks, target)
            state.uses.append(use)
            self._uses.append((state, use))
            touched[id(state)] = state
        for state in touched.values():
            state.apply()


def _state(function: FunctionType) -> _State:
    state = _states.get(function)
    if state is None or function.__code__ is not (state.ours or state.original):
        state = _State(function, definition(function))
        _states[function] = state
    return state


def instrument(
    targets: Iterable[Target], probe: Probe, *, compiling: Callable[[], bool] | None = None
) -> Installed:
    """Tell `probe` what happens in the targets until `uninstall`.

    With `compiling` (torch.compiler.is_compiling), functions get a second body that is taken where
    it says yes: one without `try`, which tells bindings, polls of names surely bound and returns,
    and neither the beginning nor the end of the call.
    """
    with _lock:
        installed = Installed(Hooks(probe, compiling))
        try:
            installed._add(targets)
        except BaseException:
            installed.uninstall()
            raise
        return installed

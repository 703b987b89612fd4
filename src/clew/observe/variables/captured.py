"""Local variables by address: which functions to follow, and what is recorded of their variables.

Input: addresses (`layers.*.forward.attn`, `data.py:load.video`). Output: variable events, one after
every binding of a name, one after every statement that changed the value in place. The functions
are followed by `observe.variables.frames`; they get their original code back when recording stops.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from clew.address import Address, compile_path
from clew.events.model import Gap
from clew.machinery import MACHINERY
from clew.observe.variables.frames import Installed, Site, Target, hooks, instrument
from clew.observe.variables.frames.existing import Functions, module_name
from clew.observe.variables.frames.functions import Found, methods, variables
from clew.observe.variables.open_calls import (
    LastStates,
    OpenCalls,
    changed_places,
    guarded,
    user_frame,
)
from clew.observe.variables.selector import VariableSelector
from clew.observe.variables.wanted_variables import (
    RETURN,
    Function,
    WantedVariable,
    WantedVariables,
    join_names,
)
from clew.record.recorder import At, Recorder, Where
from clew.record.stacks import STACKS, position_of
from clew.record.thread_state import NAME
from clew.request.ledger import Ledger

if TYPE_CHECKING:
    from clew.callbacks.apply import Named


class VariableSource:
    """Follows the variables that were asked for."""

    def __init__(
        self,
        recorder: Recorder,
        addresses: Iterable[Address],
        named: Named,
        ledger: Ledger,
        on_gap: Callable[[Gap], Any],
        is_compiling: Callable[[], bool] | None = None,
    ) -> None:
        self.recorder = recorder
        named_variables = [a for a in addresses if a.role is None and a.kind in _KINDS]
        self._selector = VariableSelector(named_variables, ledger)
        self.ledger = ledger
        self.named = named
        self.on_gap = on_gap
        self.is_compiling = is_compiling
        self._plans: dict[tuple[int, str], Plan] = {}
        self._running = False
        # The number of places known at the start: none of them lies in followed code.
        self._places_before = 0

    def start(self) -> None:
        """Follow the functions that exist now, and the methods of modules as these get a name."""
        self._places_before = len(STACKS.nodes)
        for match, wanted in self._selector.in_functions(Functions()):
            self._plan(match, wanted)
        modules = self.recorder.modules
        modules.on_module = self._met
        for entry in list(modules.entries.values()):
            module = entry.ref()
            for path in entry.paths if module is not None else ():
                self._met(path, module)
        self._running = True
        for plan in self._plans.values():
            plan.install()

    def stop(self) -> None:
        """Give the functions their original code back."""
        self._running = False
        self.recorder.modules.on_module = None
        codes: list[CodeType] = []
        for plan in self._plans.values():
            plan.uninstall()
            codes += plan.codes
            plan.codes = []
        STACKS.let_go(codes, since=self._places_before)

    @property
    def owners(self) -> set[str]:
        """Return the paths of the modules whose methods had something to record."""
        found = (f for plan in self._plans.values() for f in plan.functions.values())
        return {function.owner for function in found if function.owner is not None}

    def candidates(self, address: Address) -> list[str]:
        """Return the variables an address may have meant: those of the methods it leads to."""
        found = []
        entries = self.recorder.modules.entries.values()
        for entry in [entry for entry in entries if not entry.wrapper]:
            for path in entry.paths:
                for name, rest in address.splits():
                    if len(rest) > 1 and compile_path(name)(path):
                        for match in methods(entry.ref(), rest[:1]):
                            stem = join_names(path, match.name, match.inner)
                            found += [f"{stem}.{v}" for v in variables(match.function)]
        return found

    def _met(self, path: str, module: Any) -> None:
        """Follow the wanted methods of a module that has just got a name.

        Skip a wrapper: its name is that of the module inside, whose methods are meant.
        """
        if not self.recorder.modules.entries[id(module)].wrapper:
            for match, wanted in self._selector.in_module(path, module):
                self._plan(match, wanted)

    def _plan(self, match: Found, wanted: WantedVariable) -> None:
        plan = self._plans.get((id(match.function), match.inner))
        if plan is None:
            plan = Plan(self, match.function, match.inner)
            self._plans[id(match.function), match.inner] = plan
        if plan.wanted.add(wanted) and self._running:
            plan.install()


_KINDS = ("path", "function")
_numbers = itertools.count()
# Plans that compiled code may call, by their numbers.
plans: dict[int, Plan] = {}


class Plan(hooks.Silent):
    """What is followed in one function; it also records the variables."""

    def __init__(self, source: VariableSource, function: FunctionType, inner: str) -> None:
        self.number = next(_numbers)
        self.is_compiling = source.is_compiling or _not_compiling
        self._source = source
        self._function = function
        self._is_made = function.__code__.co_filename.startswith(MACHINERY.generated)
        self._inner = inner
        self._installed: Installed | None = None
        self._calls: OpenCalls[LastStates] = OpenCalls()
        # Of all calls of compiled code together, as they have no frame.
        self._compiled: LastStates = {}
        self.wanted = WantedVariables()
        # The function as a method of each module, by its name there and the path of the module.
        self.functions: dict[tuple[str, str | None], Function] = {}
        # The code objects of the function while it was followed.
        self.codes: list[CodeType] = []

    def install(self) -> None:
        """Follow the function, with all the variables that are wanted now."""
        self.uninstall()
        target = Target(
            self._function,
            lambda name: bool(self.wanted.named(name)),
            returns=any(wanted.name == RETURN for wanted in self.wanted.all),
            polls=True,
            inner=self._inner,
        )
        self._installed = instrument([target], self, compiling=self._source.is_compiling)
        plans[self.number] = self
        self.codes += hooks.code_tree(self._function.__code__)
        for function, why in self._installed.unseen:
            self._source.on_gap(
                Gap("variables", function.__qualname__, why, "tap the value instead: clew.tap")
            )

    def uninstall(self) -> None:
        """Give the function its original code back."""
        if self._installed is not None:
            self.codes += hooks.code_tree(self._function.__code__)
            self._installed.uninstall()
            self._installed = None
            del plans[self.number]
        self._calls.clear()
        self._compiled.clear()

    # Called by instrumented code.

    def entered(self, site: Site, owner: object) -> None:
        self._calls[id(user_frame())] = {}

    def left(self, site: Site, owner: object) -> None:
        self._calls.close()

    def bound(self, site: Site, value: object, owner: object) -> None:
        if self.is_compiling():
            _bound_compiled(value, self.number, site.name, site.line, owner, True)
        else:
            self._record_at(site, site.name, value, owner, always=True)

    def polled(self, site: Site, value: object, owner: object) -> None:
        if self.is_compiling():
            _bound_compiled(value, self.number, site.name, site.line, owner, False)
        else:
            self._record_at(site, site.name, value, owner, always=False)

    def returned(self, site: Site, value: object, owner: object) -> None:
        if self.is_compiling():
            _bound_compiled(value, self.number, RETURN, site.line, owner, True)
        else:
            self._record_at(site, RETURN, value, owner, always=True)

    def yielded(self, site: Site, value: object, owner: object) -> None:
        self._record_at(site, RETURN, value, owner, always=True)

    def deleted(self, site: Site, owner: object) -> None:
        last = self._calls.here()
        if last is not None:
            last.clear()

    def compiled(self, value: object, name: str, line: int, path: str, always: bool) -> None:
        """Record a variable of compiled code; called as that code runs."""
        where = At(None, position_of(self._function.__code__, line), below=True)
        wanted = [
            (w, w.path_in_compiled(path, self._function, self._source.recorder))
            for w in self.wanted.named(name)
            if not w.inside
        ]
        self._record(self._compiled, name, value, wanted, always, where)

    def _record_at(self, site: Site, name: str, value: object, owner: object, always: bool) -> None:
        if value is None and self._is_made:
            return  # torch.fx binds None to a name to release its value
        recorder = self._source.recorder
        with guarded(recorder.gaps, site.function, name):
            frame = user_frame()
            last = self._calls.setdefault(id(frame), {})
            position = (
                site.file, site.function, site.line, site.end_line, site.col, site.end_col,
            )  # fmt: skip
            owner = self._running() if owner is None else owner
            found = self.wanted.named(name)
            wanted = [(w, w.path_of(owner, self._function, recorder)) for w in found]
            self._record(last, name, value, wanted, always, At(frame, position, below=False))

    def _running(self) -> object:
        """Return the module that runs, for a method whose `self` is not known."""
        name = self._source.recorder.thread().stack[-1][NAME]
        return None if name is None else name.entry.ref()

    def _record(
        self, last: LastStates, name: str, value: object,
        wanted: Iterable[tuple[WantedVariable, str | None]], always: bool, where: Where,
    ) -> None:  # fmt: skip
        """Record what is wanted of a variable, each with the path of its module, if it has one."""
        source = self._source
        found = [(w, self._as_method(w, path)) for w, path in wanted if path is not None]
        source.ledger.came.update(w.address for w, _ in found)
        for place in changed_places(last, name, value, found, always, source.on_gap):
            source.named.record(place.label, place.value, where, place.now)

    def _as_method(self, wanted: WantedVariable, path: str) -> Function:
        """Return the function as the method of a module, or by itself if it has no owners."""
        owner = None if wanted.owners is None else path
        key = (wanted.function, owner)
        if key not in self.functions:
            file = self._function.__code__.co_filename
            package = module_name(self._function.__globals__)
            self.functions[key] = Function(file, package, owner, wanted.function)
        return self.functions[key]


def _bound_compiled(
    value: Any, plan: int, name: str, line: int, owner: object, always: bool
) -> None:
    """Record a variable in code that Dynamo traces."""
    from clew.observe import compiled_ops  # loads torch; Dynamo imports it as it traces

    compiled_ops.bound(value, plan, name, line, owner, always)


def _not_compiling() -> bool:
    return False

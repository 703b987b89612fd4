"""Local variables by address: which functions to follow, and what is recorded of their variables.

Input: addresses (`layers.*.forward.attn`, `data.py:load.video`). Output: variable events, one after
every binding of a name, one after every statement that changed the value in place. The functions
are followed by `observe.variables.frames`; they get their original code back when recording stops.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from clew.address import Address, Segment, compile_pattern, segment_matches
from clew.events.model import Gap
from clew.events.records import Label
from clew.keep.changes import Look, not_all_seen
from clew.machinery import MACHINERY
from clew.observe.variables.frames import Installed, Site, Target, hooks, instrument
from clew.observe.variables.frames.existing import Functions
from clew.observe.variables.frames.functions import (
    Found,
    methods,
    resolve,
    self_name,
    variables,
)
from clew.observe.variables.looking import (
    RETURN,
    join_names,
    label_of,
    look_again,
    places,
    user_frame,
)
from clew.observe.variables.owners import WantedVariable
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
        self._recorder = recorder
        self._addresses = [a for a in addresses if a.role is None and a.kind in _KINDS]
        self._named = named
        self._on_gap = on_gap
        self._is_compiling = is_compiling
        self._plans: dict[tuple[int, str], Plan] = {}
        self._running = False
        # The number of places known at the start: none of them lies in followed code.
        self._places_before = 0
        self._ledger = ledger

    def start(self) -> None:
        """Follow the functions that exist now, and the methods of modules as these get a name."""
        self._places_before = len(STACKS.nodes)
        functions = Functions()
        for address in self._addresses:
            if address.kind == "function":
                self._follow_function(address, functions)
        del functions
        modules = self._recorder.modules
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
        self._recorder.modules.on_module = None
        codes: list[CodeType] = []
        for plan in self._plans.values():
            plan.uninstall()
            codes += plan.codes
            plan.codes = []
        STACKS.let_go(codes, since=self._places_before)

    @property
    def owners(self) -> set[str]:
        """Return the paths of the modules whose methods had something to record."""
        labels = (label for plan in self._plans.values() for label in plan.labels.values())
        return {label.module for label in labels if label.module is not None}

    def candidates(self, address: Address) -> list[str]:
        """Return the variables an address may have meant: those of the methods it leads to."""
        found = []
        entries = self._recorder.modules.entries.values()
        for entry in [entry for entry in entries if not entry.wrapper]:
            for path in entry.paths:
                for name, rest in address.splits():
                    if len(rest) > 1 and compile_pattern(name)(path):
                        for match in methods(entry.ref(), rest[:1]):
                            stem = join_names(path, _stem(match, True))
                            found += [f"{stem}.{v}" for v in variables(match.function)]
        return found

    def _follow_function(self, address: Address, functions: Functions) -> None:
        found = resolve(address.path, address.segments, functions)
        found = [match for match in found if not match.rest or _has_variable(match)]
        for match in found:
            self._plan(match, address, None)

    def _met(self, path: str, module: Any) -> None:
        """Follow the wanted methods of a module that has just got a name.

        Skip a wrapper: its name is that of the module inside, whose methods are meant.
        """
        if self._recorder.modules.entries[id(module)].wrapper:
            return
        for address in self._addresses:
            if address.kind != "path":
                continue
            for name, rest in address.splits():
                if rest and compile_pattern(name)(path):
                    self._follow_methods(address, path, module, rest, name == path)

    def _follow_methods(
        self, address: Address, path: str, module: Any, rest: tuple[Segment, ...], is_named: bool
    ) -> None:
        for match in methods(module, rest):
            file = match.function.__code__.co_filename
            # Torch's code that calls modules has any module as its `self`; it is not the program's.
            calls = MACHINERY.call_frame is not None and file == MACHINERY.call_frame.co_filename
            # Generated code, such as a model of torch.fx, is followed only by its exact name.
            if calls or (file.startswith(MACHINERY.generated) and not is_named):
                continue
            if not match.rest or _has_variable(match):
                self._plan(match, address, {id(module): path})

    def _plan(self, match: Found, address: Address, owners: dict[int, str] | None) -> None:
        self._ledger.found.add(address.text)
        plan = self._plans.get((id(match.function), match.inner))
        if plan is None:
            plan = Plan(self, match.function, match.inner)
            self._plans[id(match.function), match.inner] = plan
        name, rest = (match.rest[0], match.rest[1:]) if match.rest else (RETURN, ())
        stem, called = _stem(match, owners is not None), ""
        function = match.function
        own = self_name(function.__code__, function.__qualname__) if name == "self" else None
        if own is not None:
            name, called = own, "self"
        changed = plan.add(
            WantedVariable(address, name, rest, stem, owners, match.gets_owner, called)
        )
        if changed and self._running:
            plan.install()


_KINDS = ("path", "function")
_numbers = itertools.count()
# Plans that compiled code may call, by their numbers.
plans: dict[int, Plan] = {}


@dataclass(slots=True)
class _CallLooks:
    """One call of a followed function: the state of its variables when last recorded.

    `told` holds what is recorded already for the current statement: two addresses may name it.
    """

    looks: dict[str, Look] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)


class Plan:
    """What is followed in one function; a `Probe` of `observe.variables.frames`."""

    def __init__(self, source: VariableSource, function: FunctionType, inner: str) -> None:
        self.number = next(_numbers)
        self.is_compiling = source._is_compiling or _not_compiling
        self._source = source
        self._recorder = source._recorder
        self._function = function
        self._is_made = function.__code__.co_filename.startswith(MACHINERY.generated)
        self._inner = inner
        self._installed: Installed | None = None
        self._calls: dict[int, _CallLooks] = {}
        self.wanted: list[WantedVariable] = []
        # By the id of the wanted variable, the path of the module and the name of the variable.
        self.labels: dict[tuple[int, str, str], Label] = {}
        # The code objects of the function while it was followed.
        self.codes: list[CodeType] = []

    def add(self, wanted: WantedVariable) -> bool:
        """Add a wanted variable; return whether it was not wanted before."""
        for known in self.wanted:
            if (known.address, known.name, known.rest) == (
                wanted.address, wanted.name, wanted.rest,
            ):  # fmt: skip
                if known.owners is not None and wanted.owners is not None:
                    known.owners.update(wanted.owners)
                return False
        self.wanted.append(wanted)
        return True

    def install(self) -> None:
        """Follow the function, with all the variables that are wanted now."""
        self.uninstall()
        target = Target(
            self._function,
            lambda name: any(segment_matches(w.name, name) for w in self.wanted),
            returns=any(w.name == RETURN for w in self.wanted),
            polls=True,
            inner=self._inner,
        )
        self._installed = instrument([target], self, compiling=self._source._is_compiling)
        plans[self.number] = self
        self.codes += hooks.code_tree(self._function.__code__)
        for function, why in self._installed.unseen:
            self._source._on_gap(
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

    # Called by instrumented code.

    def entered(self, site: Site, owner: object) -> None:
        self._calls[id(user_frame())] = _CallLooks()

    def left(self, site: Site, owner: object) -> None:
        self._calls.pop(id(user_frame()), None)

    def bound(self, site: Site, value: object, owner: object) -> None:
        if self.is_compiling():
            _bound_compiled(value, self.number, site.name, site.line, owner, True)
        else:
            self._seen(site, site.name, value, owner, always=True)

    def polled(self, site: Site, value: object, owner: object) -> None:
        if self.is_compiling():
            _bound_compiled(value, self.number, site.name, site.line, owner, False)
        else:
            self._seen(site, site.name, value, owner, always=False)

    def returned(self, site: Site, value: object, owner: object) -> None:
        if self.is_compiling():
            _bound_compiled(value, self.number, RETURN, site.line, owner, True)
        else:
            self._seen(site, RETURN, value, owner, always=True)

    def yielded(self, site: Site, value: object, owner: object) -> None:
        self._seen(site, RETURN, value, owner, always=True)

    def deleted(self, site: Site, owner: object) -> None:
        call = self._calls.get(id(user_frame()))
        if call is not None:
            call.looks.clear()

    def resumed(self, site: Site, owner: object) -> None: ...

    def raised(self, site: Site, error: BaseException, owner: object) -> None: ...

    def line(self, site: Site, owner: object) -> None: ...

    def compiled(self, value: object, name: str, line: int, path: str, always: bool) -> None:
        """Record a variable of compiled code; called as that code runs."""
        call = self._calls.setdefault(-1, _CallLooks())
        where = At(None, position_of(self._function.__code__, line), below=True)
        call.told.clear()
        for wanted in self.wanted:
            if segment_matches(wanted.name, name) and not wanted.rest:
                owner = wanted.path_in_compiled(path, self._function, self._recorder)
                if owner is not None:
                    self._record(wanted, owner, name, value, always, call, where)

    def _seen(self, site: Site, name: str, value: object, owner: object, always: bool) -> None:
        if value is None and self._is_made:
            return  # torch.fx binds None to a name to release its value
        jit = MACHINERY.pause_jit()
        try:
            frame = user_frame()
            call = self._calls.setdefault(id(frame), _CallLooks())
            call.told.clear()
            position = (
                site.file, site.function, site.line, site.end_line, site.col, site.end_col,
            )  # fmt: skip
            where = At(frame, position, below=False)
            owner = self._running() if owner is None else owner
            for wanted in self.wanted:
                if segment_matches(wanted.name, name):
                    path = wanted.path_of(owner, self._function, self._recorder)
                    if path is not None:
                        self._record(wanted, path, name, value, always, call, where)
        except Exception as fault:
            self._recorder.gaps.fault(fault, f"{site.function}.{name}")
        finally:
            if jit is not None:
                MACHINERY.resume_jit(jit)

    def _running(self) -> object:
        """Return the module that runs, for a method whose `self` is not known."""
        name = self._recorder.thread().stack[-1][NAME]
        return None if name is None else name.entry.ref()

    def _record(
        self, wanted: WantedVariable, path: str, name: str, value: object, always: bool,
        call: _CallLooks, where: Where,
    ) -> None:  # fmt: skip
        self._source._ledger.came.add(wanted.address.text)
        source = self._source
        found_places, cut = places(wanted.called or name, value, wanted.rest)
        for variable, found in found_places:
            label = self._label(wanted, path, variable)
            stem = label.stem
            if stem in call.told:
                continue
            call.told.add(stem)
            now, is_same = look_again(found, call.looks.get(stem))
            if now.cut:
                source._on_gap(not_all_seen(stem))
            if always or not is_same:
                call.looks[stem] = now
                source._named.record(label, found, where, now)
        if cut is not None:
            source._on_gap(replace(cut, where=wanted.address.text))

    def _label(self, wanted: WantedVariable, path: str, variable: str) -> Label:
        key = id(wanted), path, variable
        label = self.labels.get(key)
        if label is None:
            stem = join_names(path, wanted.stem, variable)
            owner = None if wanted.owners is None else path
            package = str(self._function.__globals__.get("__name__", ""))
            label = label_of(stem, variable, owner, self._function.__code__, package)
            self.labels[key] = label
        return label


def _bound_compiled(
    value: Any, plan: int, name: str, line: int, owner: object, always: bool
) -> None:
    """Record a variable in code that Dynamo traces."""
    from clew.observe import compiled_ops  # loads torch; Dynamo imports it as it traces

    compiled_ops.bound(value, plan, name, line, owner, always)


def _not_compiling() -> bool:
    return False


def _has_variable(match: Found) -> bool:
    name = match.rest[0]
    names = (*variables(match.function, match.inner), RETURN)
    return any(segment_matches(name, known) for known in names)


def _stem(match: Found, is_method: bool) -> str:
    """Return what precedes a variable: `forward`, `forward.inner`, `data.py:Dataset.load`."""
    if is_method:
        return join_names(match.name, match.inner)
    code = match.function.__code__
    qualname = getattr(code, "co_qualname", match.function.__qualname__).replace(".<locals>", "")
    return f"{os.path.basename(code.co_filename)}:{join_names(qualname, match.inner)}"

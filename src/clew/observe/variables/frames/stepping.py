"""Report to a probe what a function does, from the instructions it runs.

In: frames and the offsets they reach, from `monitoring` or `tracing`. Out: the same calls of a
probe that rewritten code makes. Holds neither frames nor values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import CodeType, FrameType
from typing import Literal, TypeAlias

from clew.frame_locals import locals_of
from clew.observe.variables.frames.bytecode import NameStep, map_of
from clew.observe.variables.frames.sites import Kind, Probe, Site

BUDGET = 1000

Params: TypeAlias = Literal["wanted", "begin", "followed"]


class _FrameState:
    """The state of one running frame."""

    __slots__ = ("entered", "holds", "line", "pending")

    def __init__(self, entered: bool, line: int, holds: bool) -> None:
        self.entered = entered
        self.line = line
        # Whether one of the names that are wanted may have a value by now.
        self.holds = holds
        self.pending: NameStep | None = None


class CodeWatch:
    """One probe's interest in one code object; with `only`, in one frame that runs it.

    Without `inside`, calls are reported with their parameters and results, and nothing in between.
    `params` says which parameters: those that are "wanted"; with "begin" all, as calls begin; with
    "followed" all, and they are then followed as if wanted.
    """

    def __init__(
        self,
        code: CodeType,
        wanted: Callable[[str], bool],
        probe: Probe,
        *,
        returns: bool = False,
        lines: bool = False,
        polls: bool = False,
        only: int | None = None,
        budget: int | None = None,
        origin: CodeType | None = None,
        calls: bool = True,
        inside: bool = True,
        params: Params = "wanted",
    ) -> None:
        self.code = code
        self.tells_calls = calls
        self.map = map_of(code, origin)
        self.probe = probe
        self.returns, self.lines = returns, lines
        self.only = only
        self.budget = budget
        self.spent: set[int] = set()
        always = self.map.params if params == "followed" else ()
        self._wanted = {name: name in always or bool(wanted(name)) for name in self._names()}
        self._polled = [name for name, is_wanted in self._wanted.items() if is_wanted]
        self.polls = polls and bool(self._polled)
        own = set(code.co_varnames).difference(self.map.params, code.co_cellvars)
        self._holds = not own.issuperset(self._polled)
        self._params = [n for n in self.map.params if params != "wanted" or self._wanted.get(n)]
        steps = self.map.steps if inside else {}
        self._steps = {at: step for at, step in steps.items() if self._matters(step)}
        # Bindings are reported at the next instruction, where the name has its value. Where that
        # may be reached by a jump, the binding itself has to be seen first.
        self._done = {after[0]: step for step, after in self._certain()}
        self._after = {o for at in self._steps for o in self.map.following.get(at, ())}
        # The offsets of the instructions of interest.
        self.offsets = frozenset((*self._steps, *self._done, *self._after))
        self._hits: dict[int, int] = {}
        self.calls: dict[int, _FrameState] = {}
        self._sites: dict[tuple[object, ...], Site] = {}

    def _names(self) -> Iterable[str]:
        code = self.code
        own = dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars))
        for step in self.map.steps.values():
            own |= dict.fromkeys((*step.bound, *step.deleted))
        return [name for name in own if not name.startswith(".") and name != "__class__"]

    def _matters(self, step: NameStep) -> bool:
        names = (*step.bound, *step.deleted)
        return any(self._wanted[name] for name in names) or bool(
            step.line and (self.lines or self.polls)
        )

    def _certain(self) -> list[tuple[NameStep, tuple[int, ...]]]:
        """Return the bindings that surely ran when the instruction after them runs."""
        found: list[tuple[NameStep, tuple[int, ...]]] = []
        for at, step in list(self._steps.items()):
            after = self.map.following.get(at, ())
            if (
                (step.bound or step.deleted)
                and len(after) == 1
                and after[0] not in self.map.targets
            ):
                found.append((step, after))
                del self._steps[at]
                if step.line and (self.lines or self.polls):
                    self._steps[at] = replace(step, bound=(), deleted=())
        return found

    def renew(self, probe: Probe) -> None:
        """Reset, as if nothing had been reported."""
        self.probe = probe
        self.spent.clear()
        self._hits.clear()
        self.calls.clear()

    def spent_lines(self) -> set[int]:
        """Return the lines at which the budget ran out."""
        steps = [self._done.get(o) or self._steps.get(o) for o in self.spent]
        return {step.at[0] for step in steps if step is not None}

    def follows(self, frame: FrameType) -> bool:
        return self.only is None or self.only == id(frame)

    def join(self, frame: FrameType) -> None:
        """Follow a frame from the middle of its run."""
        self.calls[id(frame)] = _FrameState(False, frame.f_lineno or 0, True)

    # Events

    def entered(self, frame: FrameType) -> bool:
        """Handle a call that begins; return whether the next one is to be reported."""
        if not self.follows(frame) or id(frame) in self.calls:
            return True
        self.calls[id(frame)] = _FrameState(self.tells_calls, self.code.co_firstlineno, self._holds)
        if not self.tells_calls:
            return True
        values, owner = self._values(frame)
        self.probe.entered(self._site("enter", "", self.map.whole()), owner)
        for name in self._params:
            if name in values:
                site = self._site("param", name, self.map.whole())
                self.probe.bound(site, values[name], owner)
        return True

    def step(self, frame: FrameType, offset: int) -> bool:
        """Handle an instruction about to run; return whether it is to be reported again."""
        if offset not in self.offsets:
            return False
        step, done = self._steps.get(offset), self._done.get(offset)
        if not self.follows(frame):
            return True
        call = self.calls.get(id(frame))
        if call is None:
            return True
        if call.pending is not None:
            pending, call.pending = call.pending, None
            self._tell_step(frame, pending)
        if done is not None and offset not in self.spent:
            call.holds = True
            self._tell_step(frame, done)
        if step is not None and offset not in self.spent:
            if step.line:
                self._tell_line(frame, call, step)
            if step.bound or step.deleted:
                call.holds = True
                call.pending = step
        return not self._is_spent(offset)

    def _is_spent(self, offset: int) -> bool:
        if self.budget is None:
            return False
        hits = self._hits[offset] = self._hits.get(offset, 0) + 1
        if hits < self.budget:
            return False
        self.spent.add(offset)
        return True

    def returned(self, frame: FrameType, value: object) -> None:
        call = self.calls.pop(id(frame), None)
        if call is None or not self.follows(frame):
            return
        owner = self._last(frame, call)
        if self.returns and call.entered:
            self.probe.returned(self._here("return", frame), value, owner)
        if call.entered:
            self.probe.left(self._site("leave", "", self.map.whole()), owner)

    def raised(self, frame: FrameType, error: BaseException) -> None:
        call = self.calls.pop(id(frame), None)
        if call is None or not self.follows(frame):
            return
        owner = self._last(frame, call)
        if call.entered:
            self.probe.raised(self._here("raise", frame), error, owner)
            self.probe.left(self._site("leave", "", self.map.whole()), owner)

    def yielded(self, frame: FrameType, offset: int, value: object) -> None:
        call = self.calls.get(id(frame))
        if call is None or not self.follows(frame) or offset not in self.map.yields:
            return
        if not self.tells_calls:
            return
        owner = self._last(frame, call)
        self.probe.yielded(self._here("yield", frame), value, owner)

    def resumed(self, frame: FrameType, plainly: bool = True) -> None:
        call = self.calls.get(id(frame))
        if call is None:
            if self.follows(frame):
                self.join(frame)
            return
        if plainly and self.tells_calls and self.follows(frame):
            _, owner = self._values(frame)
            self.probe.resumed(self._here("yield", frame), owner)

    # Calls of the probe

    def _last(self, frame: FrameType, call: _FrameState) -> object:
        """Report the last instructions before the frame stops or ends; return its owner."""
        if call.pending is not None:
            pending, call.pending = call.pending, None
            self._tell_step(frame, pending)
        values, owner = self._values(frame)
        if self._may_poll(call):
            self._poll(values, owner, frame.f_lineno or call.line, ())
        return owner

    def _tell_step(self, frame: FrameType, step: NameStep) -> None:
        values, owner = self._values(frame)
        for name in step.bound:
            if self._wanted[name]:
                held = frame.f_globals if name in self.map.globals else values
                if name in held:
                    self.probe.bound(self._site("bind", name, step.at), held[name], owner)
        for name in step.deleted:
            if self._wanted[name]:
                self.probe.deleted(self._site("delete", name, step.at), owner)

    def _tell_line(self, frame: FrameType, call: _FrameState, step: NameStep) -> None:
        is_polled = self._may_poll(call) and bool(call.line)
        if is_polled or self.lines:
            values, owner = self._values(frame)
            if is_polled:
                self._poll(values, owner, call.line, step.bound)
            if self.lines:
                self.probe.line(self._site("line", "", self.map.whole(step.line)), owner)
        call.line = step.line

    def _may_poll(self, call: _FrameState) -> bool:
        """Return whether there may be something to poll; spent bindings no longer set `holds`."""
        return self.polls and (call.holds or bool(self.spent))

    def _poll(
        self, values: Mapping[str, object], owner: object, line: int, skip: tuple[str, ...]
    ) -> None:
        for name in self._polled:
            if name not in skip and name in values:
                self.probe.polled(
                    self._site("poll", name, self.map.whole(line)), values[name], owner
                )

    def _values(self, frame: FrameType) -> tuple[Mapping[str, object], object]:
        values = locals_of(frame)
        return values, values.get(self.map.owner) if self.map.owner else None

    def _here(self, kind: Kind, frame: FrameType) -> Site:
        return self._site(kind, "", self.map.whole(frame.f_lineno or 0))

    def _site(self, kind: Kind, name: str, at: tuple[int, int, int, int]) -> Site:
        key = (kind, name, at)
        found = self._sites.get(key)
        if found is None:
            found = self._sites[key] = self.map.site(kind, name, at)
        return found

"""Report to a probe what a function does, from the instructions it runs.

In: frames and the offsets they reach, from `monitoring` or `tracing`. Out: the same calls of a
probe that rewritten code makes. Holds neither frames nor values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FrameType

from clew.frame_locals import locals_of
from clew.observe.variables.frames.bytecode import NameStep, map_of
from clew.observe.variables.frames.sites import Kind, Probe, Site
from clew.observe.variables.frames.watched_steps import InstructionBudget, Params, WatchedSteps

BUDGET = 1000


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
        self.map = map_of(code, origin)
        self.steps = WatchedSteps(code, self.map, wanted, params, lines, polls, inside)
        self.probe = probe
        self.reports_calls = calls
        self.returns, self.lines = returns, lines
        self.only = only
        self.budget = InstructionBudget(budget)
        self.calls: dict[int, _FrameState] = {}
        self._sites: dict[tuple[object, ...], Site] = {}

    def renew(self, probe: Probe) -> None:
        """Reset, as if nothing had been reported."""
        self.probe = probe
        self.budget.renew()
        self.calls.clear()

    def spent_lines(self) -> set[int]:
        """Return the lines at which the budget ran out."""
        lines = map(self.steps.line_at, self.budget.spent)
        return {line for line in lines if line is not None}

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
        holds = self.steps.begin_with_value
        self.calls[id(frame)] = _FrameState(self.reports_calls, self.code.co_firstlineno, holds)
        if not self.reports_calls:
            return True
        values, owner = self._values(frame)
        self.probe.entered(self._site("enter", "", self.map.whole()), owner)
        for name in self.steps.params:
            if name in values:
                site = self._site("param", name, self.map.whole())
                self.probe.bound(site, values[name], owner)
        return True

    def step(self, frame: FrameType, offset: int) -> bool:
        """Handle an instruction about to run; return whether it is to be reported again."""
        steps, spent = self.steps, self.budget.spent
        if offset not in steps.offsets:
            return False
        step, done = steps.steps.get(offset), steps.after.get(offset)
        if not self.follows(frame):
            return True
        call = self.calls.get(id(frame))
        if call is None:
            return True
        if call.pending is not None:
            pending, call.pending = call.pending, None
            self._report_step(frame, pending)
        if done is not None and offset not in spent:
            call.holds = True
            self._report_step(frame, done)
        if step is not None and offset not in spent:
            if step.line:
                self._report_line(frame, call, step)
            if step.bound or step.deleted:
                call.holds = True
                call.pending = step
        return self.budget.use(offset)

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
        if not self.reports_calls:
            return
        owner = self._last(frame, call)
        self.probe.yielded(self._here("yield", frame), value, owner)

    def resumed(self, frame: FrameType, plainly: bool = True) -> None:
        call = self.calls.get(id(frame))
        if call is None:
            if self.follows(frame):
                self.join(frame)
            return
        if plainly and self.reports_calls and self.follows(frame):
            _, owner = self._values(frame)
            self.probe.resumed(self._here("yield", frame), owner)

    # Calls of the probe

    def _last(self, frame: FrameType, call: _FrameState) -> object:
        """Report the last instructions before the frame stops or ends; return its owner."""
        if call.pending is not None:
            pending, call.pending = call.pending, None
            self._report_step(frame, pending)
        values, owner = self._values(frame)
        if self._may_poll(call):
            self._poll(values, owner, frame.f_lineno or call.line, ())
        return owner

    def _report_step(self, frame: FrameType, step: NameStep) -> None:
        values, owner = self._values(frame)
        for name in self.steps.bound(step):
            held = frame.f_globals if name in self.map.globals else values
            if name in held:
                self.probe.bound(self._site("bind", name, step.at), held[name], owner)
        for name in self.steps.deleted(step):
            self.probe.deleted(self._site("delete", name, step.at), owner)

    def _report_line(self, frame: FrameType, call: _FrameState, step: NameStep) -> None:
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
        return bool(self.steps.polled) and (call.holds or bool(self.budget.spent))

    def _poll(
        self, values: Mapping[str, object], owner: object, line: int, skip: Sequence[str]
    ) -> None:
        for name in self.steps.polled:
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

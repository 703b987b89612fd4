"""Variables of watched calls: compared when they may have changed, recorded, and reported.

Input: values with the call and the line they occurred at. Output: variable events in a recording,
and `WatchEvent`s to the output. Must not know: which calls are watched. Must not import torch.
"""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

from clew.events.notebook_cells import file_of
from clew.events.watch_events import OTHER, ValueSummary, WatchEvent, What
from clew.frame_locals import locals_of
from clew.keep.changes import state_of
from clew.keep.describing import Describer, is_equal, summarize
from clew.keep.value_summaries import differences, holds_arrays, is_array
from clew.observe.variables.frames import Site
from clew.observe.variables.frames.running import Answer
from clew.observe.variables.open_calls import ChangedPlace, changed_places
from clew.observe.variables.wanted_variables import RETURN, WantedVariable
from clew.observe.variables.watched_calls import OpenCall, WatchOptions
from clew.record.recorder import At, Recorder
from clew.record.stacks import position_of

# A whole variable that is followed although no address names it.
_WHOLE = (WantedVariable("", "**", ()),)


class WatchedVariables:
    """The variables of a watch: records and reports their changes."""

    def __init__(
        self,
        recorder: Recorder,
        options: WatchOptions,
        show: Callable[[WatchEvent], None] | None,
        ask_again: Callable[[], None] = lambda: None,
    ) -> None:
        self.recorder = recorder
        self.show = show
        # Asks again about calls that were put off while no watched variable held an object.
        self._ask_again = ask_again
        self._put_off = False
        self._options = options
        self._describer = Describer(recorder.values, options.values, shown=options.decorated)
        # The number of watched variables that hold an object, by its id; and the names that some
        # call has for an object its caller watches.
        self._objects: Counter[int] = Counter()
        self._aliases: set[str] = set()
        self._others = None if options.others is None else options.others()

    def clear(self) -> None:
        """Forget the objects and calls that were followed."""
        self._objects.clear()
        if self._others is not None:
            self._others.clear()

    def opened(self, call: OpenCall) -> None:
        """Record that a call begins."""
        if self._others is not None and not call.info.decorated:
            self._others.opened(call)

    def closed(self, call: OpenCall) -> None:
        """Forget the objects that the variables of a call held, as it is over."""
        for name in list(call.objects.held):
            self._let_go(call, name)

    def is_given(self, frame: FrameType) -> Answer:
        """Answer whether a call that begins is given an object that a watched variable holds."""
        if not self._objects:
            self._put_off = True
            return "later"
        code, given = frame.f_code, locals_of(frame)
        count = code.co_argcount + code.co_kwonlyargcount
        is_given = any(id(given.get(name)) in self._objects for name in code.co_varnames[:count])
        return "yes" if is_given else "no"

    def begin_block(self, call: OpenCall, frame: FrameType) -> None:
        """Record and report the wanted variables as they are when a block begins."""
        at = (frame.f_lineno or 0, frame.f_back)
        for name, value in list(locals_of(frame).items()):
            if not name.startswith("__"):
                self._compare(call, "input", name, value, at, True)

    def deleted(self, call: OpenCall, site: Site) -> None:
        """Report that a variable is deleted, with everything reported of its contents."""
        self._let_go(call, site.name)
        gone = [name for name in call.summaries if _root_name(name) == site.name]
        for name in gone:
            before = call.summaries.pop(name)
            call.last.pop(call.function.label(name).stem, None)
            if self._others is not None:
                self._others.deleted(name)
            if self._others is None or not self._others.is_left(call, site.name):
                self.emit("delete", call, site.line, name=name, before=before)

    def may_have_changed(self, call: OpenCall, name: str) -> bool:
        """Return whether a variable may be followed, so that it is compared after each line."""
        return name in call.summaries or not self._options.names.everything

    def may_be(self, name: str) -> bool:
        """Return whether some call may have a watched variable, or watched object, of this name."""
        return name in self._aliases or self._options.names.may_be(name)

    def bound(self, call: OpenCall, frame: FrameType, site: Site, value: Any) -> None:
        """Record and report a variable that is bound, or a parameter that is given."""
        name = site.name
        at = (site.line, frame.f_back)
        if name in call.objects.aliases:
            call.objects.aliases[name] = (
                name  # bound again: no longer the object that the caller watches
            )
        elif site.kind == "param" and not self._options.decorated and _is_followed(value):
            known = call.objects.names().get(id(value))
            if known is not None:
                call.objects.aliases[name] = known
                self._aliases.add(name)
        what: What = "input" if site.kind == "param" else "change"
        is_wanted = self._compare(call, what, name, value, at, always=True)
        if not is_wanted and what == "input":
            self._show_input(call, site, value)

    def polled(self, call: OpenCall, frame: FrameType, site: Site, value: Any) -> None:
        """Record and report a variable if its value was changed in place."""
        at = (site.line, frame.f_back)
        self._compare(call, "change", site.name, value, at, always=False)

    def _wanted(self, call: OpenCall, name: str, value: Any) -> tuple[WantedVariable, ...]:
        """Return what is wanted of a variable; nothing if it is not watched."""
        if self._options.names.everything:
            return _WHOLE if name in call.summaries or holds_arrays(value) else ()
        return call.wanted.named(name) or (_WHOLE if name in call.objects.aliases else ())

    def _show_input(self, call: OpenCall, site: Site, value: Any) -> None:
        """Report an argument that is not watched, in full for a decorated function."""
        if self.show is None:
            return
        in_full = call.info.decorated
        summary = summarize(value, numbers=in_full)
        if in_full or summary.text is not None or summary.items or summary.kind != OTHER:
            self.emit("input", call, site.line, name=site.name, after=summary)

    def _compare(
        self, call: OpenCall, what: What, name: str, value: Any,
        at: tuple[int, FrameType | None], always: bool,
    ) -> bool:  # fmt: skip
        """Record and report what has changed in a variable; return whether it is watched."""
        wanted = self._wanted(call, name, value)
        if any(not variable.inside for variable in wanted):
            self._hold(call, name, value)
        self._options.names.ledger.came.update(w.address for w in wanted)
        always = always and not self._options.on_change
        functions = [(variable, call.function) for variable in wanted]
        gaps = self.recorder.gaps
        for place in changed_places(call.last, name, value, functions, always, gaps.add):
            self._changed(call, what, name, place, at)
        return bool(wanted)

    def _changed(
        self,
        call: OpenCall,
        what: What,
        name: str,
        place: ChangedPlace,
        at: tuple[int, FrameType | None],
    ) -> None:
        """Record and report a variable, or a place inside one, that is new or has changed."""
        variable, state_before = place.label.name, place.before
        before = call.summaries.get(variable)
        if before is not None and state_before is not None:
            before = before._replace(memory=state_before.memory)  # it may have moved, unchanged
        is_same_state = state_before is not None and state_before.same == place.now.same
        with self.recorder.naming:
            out, summary = self._describer.described(place.value, place.now)
            changes = differences(before, summary)
            if not changes and not is_same_state and not is_equal(before, summary):
                changes = ("values",)
            call.summaries[variable] = summary
            if self._options.on_change and before is not None and not changes:
                return
            others = self._others
            if others is not None and others.is_reported(call, what, name, variable, summary):
                return
            self._record(call, variable, out, at)
        alias = call.objects.aliases.get(name, "") if what == "input" else ""
        self.emit(what, call, at[0], name=variable, before=before, after=summary,
                  changes=changes, alias="" if alias == name else alias)  # fmt: skip

    def _hold(self, call: OpenCall, name: str, value: Any) -> None:
        """Record which object a watched variable holds from now on."""
        if call.objects.held.get(name) != id(value):
            self._let_go(call, name)
            if _is_followed(value):
                call.objects.held[name] = id(value)
                self._objects[id(value)] += 1
                if self._put_off:
                    self._put_off = False
                    self._ask_again()

    def _let_go(self, call: OpenCall, name: str) -> None:
        """Forget the object that a variable held, as another object may get its id."""
        held = call.objects.held.pop(name, None)
        if held is not None:
            self._objects[held] -= 1
            if self._objects[held] <= 0:
                self._objects.pop(held, None)  # another thread may have removed it

    def _record(
        self, call: OpenCall, variable: str, out: Any, at: tuple[int, FrameType | None],
        start: int | None = None,
    ) -> None:  # fmt: skip
        line, caller = at
        if self._options.decorated:
            caller = None  # the callers are in the text, and are not read again
        where = At(caller, position_of(call.code, line), below=True)
        self.recorder.record_described(call.function.label(variable), out, where, start)

    def returned(self, call: OpenCall, frame: FrameType, site: Site, value: Any) -> None:
        """Record the value that a call returns; it is reported when the call is left."""
        if not call.summaries and not holds_arrays(value):
            call.result = (summarize(value, numbers=self._options.decorated), site.line)
            return
        # A returned value is not compared to an earlier one.
        digest = not self._options.decorated
        with self.recorder.naming:
            out, summary = self._describer.described(value, state_of(value), digest)
            call.result = (summary, site.line)
            self._record(call, RETURN, out, (site.line, frame.f_back), call.start)

    def yielded(self, call: OpenCall, frame: FrameType, site: Site, value: Any) -> None:
        """Record and report a value that a generator yields."""
        with self.recorder.naming:
            out, summary = self._describer.described(value, state_of(value))
            self._record(call, RETURN, out, (site.line, frame.f_back))
        self.emit("yield", call, site.line, after=summary)

    def emit(
        self, what: What, call: OpenCall, line: int, name: str = "", alias: str = "",
        before: ValueSummary | None = None, after: ValueSummary | None = None,
        changes: tuple[str, ...] = (), seconds: float | None = None, text: str = "",
    ) -> None:  # fmt: skip
        """Send an event to the output, unless the call is quiet."""
        if self.show is None or call.quiet:
            return
        try:
            is_shown = what in ("line", "change")
            file = file_of(call.info.file)
            source = linecache.getline(file, line, None).strip() if is_shown else ""
            self.show(
                WatchEvent(what, call.info, line, name, alias, before, after, changes, source,
                          seconds, text)
            )  # fmt: skip
        except Exception as fault:
            self.recorder.gaps.fault(fault, call.info.function)


def _is_followed(value: Any) -> bool:
    """Return whether a value is followed under whatever name a function has for it."""
    return is_array(value) or isinstance(value, dict | list)


def _root_name(variable: str) -> str:
    return variable.partition(".")[0].partition("[")[0]

"""Variables of watched calls: compared when they may have changed, recorded, and reported.

Input: values with the call and the line they occurred at. Output: variable events in a recording,
and `WatchEvent`s to the output. Must not know: which calls are watched. Must not import torch.
"""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from clew.events.notebook_cells import file_of
from clew.events.watched import OTHER, Seen, WatchEvent, What
from clew.frame_locals import locals_of
from clew.keep.changes import look, not_all_seen
from clew.keep.describing import Describer, glimpse, is_equal
from clew.keep.seen import differences, holds_arrays, is_array
from clew.machinery import MACHINERY
from clew.observe.variables.frames import Site
from clew.observe.variables.frames.running import Answer
from clew.observe.variables.looking import RETURN, label_of, look_again, places
from clew.observe.variables.open_calls import OpenCall
from clew.observe.variables.selector import Wishes
from clew.observe.variables.told_once import ToldOnce
from clew.record.recorder import At, Recorder
from clew.record.stacks import position_of


@dataclass(frozen=True, slots=True)
class Wants:
    """What a watch was asked for.

    `decorated` asks for every call of the decorated function itself in full, however deep: who
    called it, and its arguments with their numbers. Variables are then followed by their names
    only, not by the objects that they hold, and statistics are those that a line of text shows.
    """

    names: Wishes
    values: str = "stats"
    lines: bool = False
    stack: bool = False
    on_change: bool = True
    depth: int | None = None
    budget: int = 10_000
    decorated: bool = False


class WatchedVariables:
    """The variables of a watch: records and reports their changes."""

    def __init__(
        self,
        recorder: Recorder,
        wants: Wants,
        tell: Callable[[WatchEvent], None] | None,
        ask_again: Callable[[], None] = lambda: None,
    ) -> None:
        self.recorder = recorder
        self.tell = tell
        # Asks again about calls that were put off while no watched variable held an object.
        self._ask_again = ask_again
        self._put_off = False
        self._wants = wants
        self._describer = Describer(recorder.values, wants.values, shown=wants.decorated)
        # The number of watched variables that hold an object, by its id; and the names that some
        # call has for an object its caller watches.
        self._objects: Counter[int] = Counter()
        self._aliases: set[str] = set()
        self._told_once = ToldOnce()

    def clear(self) -> None:
        """Forget the objects and calls that were followed."""
        self._objects.clear()
        self._told_once.clear()

    def opened(self, call: OpenCall) -> None:
        """Record that a call begins."""
        if self._wants.decorated and not call.info.decorated:
            self._told_once.opened(call)

    def closed(self, call: OpenCall) -> None:
        """Forget the objects that the variables of a call held, as it is over."""
        for name in list(call.held):
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

    def look_around(self, call: OpenCall, frame: FrameType) -> None:
        """Record and report the wanted variables as they are when a block begins."""
        at = (frame.f_lineno or 0, frame.f_back)
        for name, value in list(locals_of(frame).items()):
            if not name.startswith("__"):
                for path in self._paths(call, name, value):
                    self._look_at(call, "input", name, path, value, at, True)

    def deleted(self, call: OpenCall, site: Site) -> None:
        """Report that a variable is deleted, with everything reported of its contents."""
        self._let_go(call, site.name)
        gone = [name for name in call.told if _root_name(name) == site.name]
        for name in gone:
            _, before = call.told.pop(name)
            self._told_once.deleted(name)
            if not self._told_once.is_left(call, site.name):
                self.emit("delete", call, site.line, name=name, before=before)

    def may_have_changed(self, call: OpenCall, name: str) -> bool:
        """Return whether a variable may be followed, so that it is compared after each line."""
        return name in call.told or not self._wants.names.everything

    def may_be(self, name: str) -> bool:
        """Return whether some call may have a watched variable, or watched object, of this name."""
        names = self._wants.names
        return names.everything or name in self._aliases or names.may_be(name)

    def guarded(self, call: OpenCall, name: str, work: Callable[[], None]) -> None:
        """Run `work`, and record an exception as a fault so that the program does not see it."""
        jit = MACHINERY.pause_jit()
        try:
            work()
        except Exception as fault:
            self.recorder.gaps.fault(fault, f"{call.info.function}.{name}")
        finally:
            if jit is not None:
                MACHINERY.resume_jit(jit)

    def bound(self, call: OpenCall, frame: FrameType, site: Site, value: Any) -> None:
        """Record and report a variable that is bound, or a parameter that is given."""
        name = site.name
        at = (site.line, frame.f_back)
        if name in call.aliases:
            call.aliases[name] = name  # bound again: no longer the object that the caller watches
        elif site.kind == "param" and not self._wants.decorated and _is_followed(value):
            known = call.names_of_objects().get(id(value))
            if known is not None:
                call.aliases[name] = known
                self._aliases.add(name)
        what: What = "input" if site.kind == "param" else "change"
        paths = self._paths(call, name, value)
        for path in paths:
            self._look_at(call, what, name, path, value, at, always=True)
        if not paths and what == "input":
            self._show_input(call, site, value)

    def polled(self, call: OpenCall, frame: FrameType, site: Site, value: Any) -> None:
        """Record and report a variable if its value was changed in place."""
        at = (site.line, frame.f_back)
        for path in self._paths(call, site.name, value):
            self._look_at(call, "change", site.name, path, value, at, always=False)

    def _paths(self, call: OpenCall, name: str, value: Any) -> tuple[Any, ...]:
        """Return the paths to follow inside a variable; none if it is not watched."""
        if self._wants.names.everything:
            return ((),) if name in call.told or holds_arrays(value) else ()
        found = self._wants.names.paths(call.function, name)
        return found or (((),) if name in call.aliases else ())

    def _show_input(self, call: OpenCall, site: Site, value: Any) -> None:
        """Report an argument that is not watched, in full for a decorated function."""
        if self.tell is None:
            return
        in_full = call.info.decorated
        seen = glimpse(value, numbers=in_full)
        if in_full or seen.text is not None or seen.items or seen.kind != OTHER:
            self.emit("input", call, site.line, name=site.name, after=seen)

    def _look_at(
        self, call: OpenCall, what: What, name: str, path: tuple[Any, ...], value: Any,
        at: tuple[int, FrameType | None], always: bool,
    ) -> None:  # fmt: skip
        """Record and report what a path inside a variable leads to, if it has changed."""
        if not path:
            self._hold(call, name, value)
        found_places, cut = places(name, value, path)
        if cut is not None:
            self.recorder.gaps.add(cut)
        for variable, found in found_places:
            told = call.told.get(variable)
            now, same = look_again(found, None if told is None else told[0])
            if now.cut:
                self.recorder.gaps.add(not_all_seen(call.function.stem(variable)))
            if told is not None and same and (self._wants.on_change or not always):
                if told[0].memory != now.memory:  # equal, in other memory: the first may be gone
                    call.told[variable] = (now, told[1]._replace(memory=now.memory))
                continue
            before = None if told is None else told[1]
            with self.recorder.naming:
                out, seen = self._describer.described(found, now)
                changes = differences(before, seen)
                if not changes and not same and not is_equal(before, seen):
                    changes = ("values",)
                call.told[variable] = (now, seen)
                if self._wants.on_change and before is not None and not changes:
                    continue
                once = self._told_once
                if self._wants.decorated and once.is_told(call, what, name, variable, seen):
                    continue
                self._record(call, variable, out, at)
            alias = call.aliases.get(name, "") if what == "input" else ""
            self.emit(what, call, at[0], name=variable, before=before, after=seen,
                      changes=changes, alias="" if alias == name else alias)  # fmt: skip

    def _hold(self, call: OpenCall, name: str, value: Any) -> None:
        """Record which object a watched variable holds from now on."""
        if call.held.get(name) != id(value):
            self._let_go(call, name)
            if _is_followed(value):
                call.held[name] = id(value)
                self._objects[id(value)] += 1
                if self._put_off:
                    self._put_off = False
                    self._ask_again()

    def _let_go(self, call: OpenCall, name: str) -> None:
        """Forget the object that a variable held, as another object may get its id."""
        held = call.held.pop(name, None)
        if held is not None:
            self._objects[held] -= 1
            if self._objects[held] <= 0:
                self._objects.pop(held, None)  # another thread may have removed it

    def _record(
        self, call: OpenCall, variable: str, out: Any, at: tuple[int, FrameType | None],
        start: int | None = None,
    ) -> None:  # fmt: skip
        where = call.function
        stem = where.stem(variable)
        label = label_of(stem, variable, where.owner, where.code, where.package)
        line, caller = at
        if self._wants.decorated:
            caller = None  # the callers are in the text, and are not read again
        self.recorder.told(label, out, At(caller, position_of(where.code, line), below=True), start)

    def returned(self, call: OpenCall, frame: FrameType, site: Site, value: Any) -> None:
        """Record the value that a call returns; it is reported when the call is left."""
        if not call.told and not holds_arrays(value):
            call.result = (glimpse(value, numbers=self._wants.decorated), site.line)
            return
        # A returned value is not compared to an earlier one.
        digest = not self._wants.decorated
        with self.recorder.naming:
            out, seen = self._describer.described(value, look(value), digest)
            call.result = (seen, site.line)
            self._record(call, RETURN, out, (site.line, frame.f_back), call.start)

    def yielded(self, call: OpenCall, frame: FrameType, site: Site, value: Any) -> None:
        """Record and report a value that a generator yields."""
        with self.recorder.naming:
            out, seen = self._describer.described(value, look(value))
            self._record(call, RETURN, out, (site.line, frame.f_back))
        self.emit("yield", call, site.line, after=seen)

    def emit(
        self, what: What, call: OpenCall, line: int, name: str = "", alias: str = "",
        before: Seen | None = None, after: Seen | None = None, changes: tuple[str, ...] = (),
        seconds: float | None = None, text: str = "",
    ) -> None:  # fmt: skip
        """Send an event to the output, unless the call is quiet."""
        if self.tell is None or call.quiet:
            return
        try:
            is_shown = what in ("line", "change")
            file = file_of(call.info.file)
            source = linecache.getline(file, line, None).strip() if is_shown else ""
            self.tell(
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

"""Follow variables through the functions that a piece of the program calls.

Input: calls, bindings and in-place writes from `frames`. Output: those of watched calls, passed to
`watched_variables`. Must not import torch: without it, arrays and Python's own values are followed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

from clew.events.model import Gap
from clew.events.notebook_cells import shown_file
from clew.events.watch_events import WatchEvent
from clew.machinery import MACHINERY
from clew.observe.variables.frames import FollowingCalls, Site, follow_calls
from clew.observe.variables.frames.functions import unwrap
from clew.observe.variables.frames.running import Answer
from clew.observe.variables.open_calls import guarded, user_frame
from clew.observe.variables.user_code import Scope, is_library
from clew.observe.variables.wanted_variables import RETURN
from clew.observe.variables.watch_report import WatchReport
from clew.observe.variables.watched_calls import OpenCall, WatchedCalls, WatchOptions
from clew.observe.variables.watched_variables import WatchedVariables
from clew.program_errors import error_text
from clew.record.recorder import Recorder

_Handler = Callable[[OpenCall, FrameType, Site, Any], None]
_GENERATOR_ENDS = (GeneratorExit, StopIteration, StopAsyncIteration)


class WatchSource:
    """Follows what is wanted while it is started; a `Probe` of `observe.variables.frames`."""

    def __init__(
        self,
        recorder: Recorder,
        options: WatchOptions,
        scope: Scope,
        show: Callable[[WatchEvent], None] | None = None,
        on_gap: Callable[[Gap], Any] = lambda gap: None,
        everywhere: bool = False,
    ) -> None:
        self.recorder = recorder
        self._options = options
        self._variables = WatchedVariables(recorder, options, show, self._ask_again)
        self._scope = scope
        self.calls = WatchedCalls(recorder, options, everywhere)
        self.report = WatchReport(recorder, options.names, self.calls, show, on_gap)
        self._following: FollowingCalls | None = None
        # The function last followed and its stopped `FollowingCalls`, to be started again.
        self._rested: tuple[Callable[..., object], FollowingCalls] | None = None
        # Code -> whether it has a watched variable.
        self._concerned: dict[int, tuple[CodeType, bool]] = {}
        self._block: int | None = None
        # Whether it has ended because this process is a fork of the one it began in.
        self.abandoned = False

    # Start and stop

    def start(self) -> None:
        """Follow the frame that starts it, and everything called from now on."""
        frame = user_frame()
        while id(frame.f_code) in MACHINERY.hidden and frame.f_back is not None:
            frame = frame.f_back  # a recorded step begins with the call of a module
        if not is_library(frame.f_code.co_filename):
            self.start_block(frame, quiet=self.calls.everywhere)
            return
        # The frame of a library, such as a worker's loop: follow only what it calls.
        self.start_function(_nowhere)
        if self._following is not None:
            self._following.extent.enter()

    def start_block(self, frame: FrameType, quiet: bool = False) -> None:
        """Follow a frame from where it is, and everything it calls."""
        self.calls.note_threads()
        call = self._open(frame, frame.f_code, None, None, begun=False)
        call.quiet = quiet
        self._block = id(frame)
        self._following = self._follow(frame)
        if not quiet:
            self._variables.emit("enter", call, frame.f_lineno or 0)
        with guarded(self.recorder.gaps, call.info.function, ""):
            self._variables.begin_block(call, frame)

    def start_function(self, function: Callable[..., object]) -> None:
        """Follow a function and everything it calls; after a stop, the same one again."""
        self.calls.note_threads()
        self.calls.ran.clear()
        if self._rested is not None and self._rested[0] is function:
            self._following = self._rested[1]
            self._following.start(function, self)
            return
        self.calls.roots = {found.__code__ for found in unwrap(function)}
        for code in self.calls.roots:
            self._options.names.concern(code)
        self._following = self._follow(function)
        self._rested = (function, self._following)

    def _follow(self, root: Callable[..., object] | FrameType) -> FollowingCalls:
        options = self._options
        # Whether every function is of interest, not only those with certain variables.
        all_of_it = options.lines or options.names.everything
        return follow_calls(
            root, self._scope, options.names.may_be, self,
            lines=options.lines, budget=options.budget,
            worthwhile=None if all_of_it else self._worthwhile,
            inside=not (options.depth == 0 and options.names.nothing and not options.lines),
            # The object of a parameter may be watched under its name in the caller.
            params="begin" if options.decorated else "followed",
        )  # fmt: skip

    def _worthwhile(self, code: CodeType, frame: FrameType) -> Answer:
        """Answer whether a function has a watched variable, by its names or its arguments."""
        known = self._concerned.get(id(code))
        if known is None:
            known = self._concerned[id(code)] = (code, self._options.names.concern(code))
        if known[1]:
            return "yes"
        if self._options.decorated:
            return "never"
        return self._variables.is_given(frame)

    def _ask_again(self) -> None:
        if self._following is not None:
            self._following.ask_again()

    def stop(self) -> None:
        """Stop following, and report the lines that ran more often than the budget."""
        following = self._following
        if following is None:
            return
        following.stop()
        self._following = None
        block = self.calls.open.get(self._block or 0)
        if block is not None and not block.quiet:
            seconds = (time.perf_counter_ns() - block.start) / 1e9
            self._variables.emit("return", block, block.info.line, seconds=seconds)
        self._block = None
        self.calls.open.clear()
        self._variables.clear()
        for code, line in following.spent:
            where = f"{os.path.basename(shown_file(code.co_filename))}:{line}"
            self.report.say(
                Gap("a watched line", where, f"it ran more than {self._options.budget:,} times and "
                    "was not followed further", "raise it with clew.watch(..., budget=...)")
            )  # fmt: skip

    def abandon(self) -> None:
        """Stop following, without a report, in a process that inherited it by a fork."""
        self.abandoned = True
        self._variables.show = self.report.show = None
        following, self._following = self._following, None
        self.calls.open.clear()
        if following is not None:
            following.stop()

    def unmatched(self) -> Iterator[Gap]:
        """Yield a gap for each name that no function had."""
        return self.report.unmatched()

    def note(self, gap: Gap) -> None:
        """Send a gap to the output, as a note among the other events."""
        self.report.note(gap)

    # Called by `observe.variables.frames`

    def entered(self, site: Site, owner: object) -> None:
        frame = user_frame()
        try:
            self._entered(frame, site, owner)
        except Exception as fault:
            self.recorder.gaps.fault(fault, site.function)

    def _entered(self, frame: FrameType, site: Site, owner: object) -> None:
        parent, is_ours = self.calls.parent(frame.f_back)
        if not is_ours and self.calls.is_watched(site.code, parent):
            call = self._open(frame, site.code, parent, owner)
            self._variables.emit("enter", call, site.line)

    def _open(
        self, frame: FrameType, code: CodeType, parent: OpenCall | None, owner: object,
        begun: bool = True,
    ) -> OpenCall:  # fmt: skip
        call = self.calls.begin(frame, code, parent, owner, begun)
        self._variables.opened(call)
        return call

    def bound(self, site: Site, value: object, owner: object) -> None:
        self._handle(self._variables.bound, site.name, site, value)

    def polled(self, site: Site, value: object, owner: object) -> None:
        watched, name = self._variables, site.name
        if not watched.may_be(name):
            return
        call = self.calls.open.here()
        if call is not None and watched.may_have_changed(call, name):
            self._handle(watched.polled, name, site, value)

    def deleted(self, site: Site, owner: object) -> None:
        call = self.calls.open.here()
        if call is not None:
            self._variables.deleted(call, site)

    def returned(self, site: Site, value: object, owner: object) -> None:
        self._handle(self._variables.returned, RETURN, site, value)

    def yielded(self, site: Site, value: object, owner: object) -> None:
        self._handle(self._variables.yielded, "yield", site, value)

    def _handle(self, handler: _Handler, name: str, site: Site, value: object) -> None:
        frame = user_frame()
        call = self.calls.open.get(id(frame))
        if call is not None:
            with guarded(self.recorder.gaps, call.info.function, name):
                handler(call, frame, site, value)

    def resumed(self, site: Site, owner: object) -> None:
        call = self.calls.open.here()
        if call is not None:
            self._variables.emit("resume", call, site.line)

    def raised(self, site: Site, error: BaseException, owner: object) -> None:
        call = self.calls.open.here()
        if call is not None and not isinstance(error, _GENERATOR_ENDS):
            call.error = error_text(error)
            call.result = (None, site.line)

    def left(self, site: Site, owner: object) -> None:
        call = self.calls.open.close()
        if call is None:
            return
        self._variables.closed(call)
        seconds = (time.perf_counter_ns() - call.start) / 1e9
        result, line = call.result or (None, site.line)
        if call.error is not None:
            self._variables.emit("raise", call, line, seconds=seconds, text=call.error)
        else:
            self._variables.emit("return", call, line, after=result, seconds=seconds)

    def line(self, site: Site, owner: object) -> None:
        call = self.calls.open.here()
        if call is not None:
            self._variables.emit("line", call, site.line)


def _nowhere() -> None:
    """Stand for a function below which everything is followed; never called."""

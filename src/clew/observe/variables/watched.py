"""Follow variables through the functions that a piece of the program calls.

Input: calls, bindings and in-place writes from `frames`. Output: those of watched calls, passed to
`watched_variables`. Must not import torch: without it, arrays and Python's own values are followed.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

from clew.address import nearest
from clew.events.model import Gap
from clew.events.notebook_cells import shown_file
from clew.events.watched import WatchedCall, WatchEvent
from clew.machinery import MACHINERY, OURS
from clew.observe.variables.frames import FollowingCalls, Site, follow_calls
from clew.observe.variables.frames.bytecode import bound_names
from clew.observe.variables.frames.functions import unwrap
from clew.observe.variables.frames.running import Answer
from clew.observe.variables.looking import RETURN, user_frame
from clew.observe.variables.open_calls import BETWEEN, OpenCall, chain_of, name_of
from clew.observe.variables.selector import TOP_LEVEL, Function, parts_of
from clew.observe.variables.user_code import Scope, is_library
from clew.observe.variables.watched_variables import Wants, WatchedVariables
from clew.program_errors import error_text
from clew.record.recorder import Recorder

_GENERATOR_ENDS = (GeneratorExit, StopIteration, StopAsyncIteration)


class WatchSource:
    """Follows what is wanted while it is started; a `Probe` of `observe.variables.frames`."""

    def __init__(
        self,
        recorder: Recorder,
        wants: Wants,
        scope: Scope,
        tell: Callable[[WatchEvent], None] | None = None,
        on_gap: Callable[[Gap], Any] = lambda gap: None,
        everywhere: bool = False,
    ) -> None:
        self.recorder = recorder
        self._wants = wants
        self._variables = WatchedVariables(recorder, wants, tell, self._ask_again)
        self._scope = scope
        self.gap = on_gap
        # Whether calls are watched that no watched call has made.
        self._everywhere = everywhere
        self._roots: set[CodeType] = set()
        self._older: set[int | None] = set()
        self._calls: dict[int, OpenCall] = {}
        self._numbers = itertools.count()
        self._following: FollowingCalls | None = None
        # The function last followed and its stopped `FollowingCalls`, to be started again.
        self._rested: tuple[Callable[..., object], FollowingCalls] | None = None
        # Code that ran; names that were asked for, did not occur and were reported as missing.
        self._ran: set[CodeType] = set()
        self._said: set[str] = set()
        # Code -> whether it has a watched variable.
        self._concerned: dict[int, tuple[CodeType, bool]] = {}
        self._block: int | None = None
        self.worker = ""
        # Whether it has ended because this process is a fork of the one it began in.
        self.abandoned = False

    # Start and stop

    def start(self) -> None:
        """Follow the frame that starts it, and everything called from now on."""
        frame = user_frame()
        while id(frame.f_code) in MACHINERY.hidden and frame.f_back is not None:
            frame = frame.f_back  # a recorded step begins with the call of a module
        if not is_library(frame.f_code.co_filename):
            self.start_block(frame, quiet=self._everywhere)
            return
        # The frame of a library, such as a worker's loop: follow only what it calls.
        self.start_function(_nowhere)
        if self._following is not None:
            self._following.extent.enter()

    def start_block(self, frame: FrameType, quiet: bool = False) -> None:
        """Follow a frame from where it is, and everything it calls."""
        self._older = {thread.ident for thread in threading.enumerate()}
        call = self._open(frame, frame.f_code, None, begun=False)
        call.quiet = quiet
        self._block = id(frame)
        self._following = self._follow(frame)
        if not quiet:
            self._variables.emit("enter", call, frame.f_lineno or 0)
        self._variables.guarded(call, "", lambda: self._variables.look_around(call, frame))

    def start_function(self, function: Callable[..., object]) -> None:
        """Follow a function and everything it calls; after a stop, the same one again."""
        self._older = {thread.ident for thread in threading.enumerate()}
        self._ran.clear()
        if self._rested is not None and self._rested[0] is function:
            self._following = self._rested[1]
            self._following.start(function, self)
            return
        self._roots = {found.__code__ for found in unwrap(function)}
        for code in self._roots:
            self._wants.names.concern(code)
        self._following = self._follow(function)
        self._rested = (function, self._following)

    def _follow(self, root: Callable[..., object] | FrameType) -> FollowingCalls:
        wants = self._wants
        # Whether every function is of interest, not only those with certain variables.
        all_of_it = wants.lines or wants.names.everything
        return follow_calls(
            root, self._scope, self._is_wanted, self, lines=wants.lines, budget=wants.budget,
            worthwhile=None if all_of_it else self._worthwhile,
            inside=not (wants.depth == 0 and wants.names.nothing and not wants.lines),
            # The object of a parameter may be watched under its name in the caller.
            params="begin" if wants.decorated else "followed",
        )  # fmt: skip

    def _is_wanted(self, name: str) -> bool:
        """Return whether a variable of this name may be followed, whatever it holds."""
        return self._wants.names.everything or self._wants.names.may_be(name)

    def _worthwhile(self, code: CodeType, frame: FrameType) -> Answer:
        """Answer whether a function has a watched variable, by its names or its arguments."""
        known = self._concerned.get(id(code))
        if known is None:
            known = self._concerned[id(code)] = (code, self._wants.names.concern(code))
        if known[1]:
            return "yes"
        if self._wants.decorated:
            return "never"
        return self._variables.is_given(frame)

    def _ask_again(self) -> None:
        if self._following is not None:
            self._following.ask_again()

    def stop(self) -> None:
        """Stop following, and report the lines that ran more often than the budget."""
        following, self._following = self._following, None
        if following is None:
            return
        following.stop()
        block = self._calls.get(self._block or 0)
        if block is not None and not block.quiet:
            seconds = (time.perf_counter_ns() - block.start) / 1e9
            self._variables.emit("return", block, block.info.line, seconds=seconds)
        self._block = None
        self._calls.clear()
        self._variables.clear()
        for code, line in following.spent:
            where = f"{os.path.basename(shown_file(code.co_filename))}:{line}"
            self._gap(
                Gap("a watched line", where, f"it ran more than {self._wants.budget:,} times and "
                    "was not followed further", "raise it with clew.watch(..., budget=...)")
            )  # fmt: skip

    def abandon(self) -> None:
        """Stop following, without a report, in a process that inherited it by a fork."""
        self.abandoned = True
        self._variables.tell = None
        following, self._following = self._following, None
        self._calls.clear()
        if following is not None:
            following.stop()

    def is_unseen(self) -> bool:
        """Return whether no call of the function has been seen since it was started."""
        return not self._roots & self._ran

    def say_compiled(self) -> None:
        """Report that other code ran in place of the function's own, as with torch.compile."""
        name = ", ".join(sorted(code.co_name for code in self._roots))
        missed = {address.text for address in self._wants.names.addresses}
        if name not in self._said:
            self._gap(
                Gap("a watched function", name, "it was called but its own code did not run, as "
                    "when torch.compile runs other code in its place",
                    "run it under torch.compiler.set_stance('force_eager') to see inside")
            )  # fmt: skip
        self._said |= {name, *missed}

    def unmatched(self) -> Iterator[Gap]:
        """Yield a gap for each name that no function had, with the nearest names that ran."""
        ledger = self._wants.names.ledger
        ledger.came.update(self.recorder.met_by_workers)
        for address in ledger.unmatched():
            if address.text not in self._said:
                met = {name for code in self._ran for name in bound_names(code)}
                last = str(address.segments[-1]) if address.segments else address.text
                close = ", ".join(nearest(last, sorted(met))) or "none"
                yield Gap("a variable to watch", address.text, "nothing that ran has it",
                          f"the nearest that ran: {close}")  # fmt: skip

    def say_missed(self) -> None:
        """Report the names that no function had."""
        for gap in self.unmatched():
            self._said.add(gap.where)
            self._gap(gap)

    def _gap(self, gap: Gap) -> None:
        if self.gap(gap) is not False:
            self.note(gap)

    def note(self, gap: Gap) -> None:
        """Send a gap to the output, as a note among the other events."""
        tell = self._variables.tell
        if tell is not None:
            call = WatchedCall(next(self._numbers), None, 0, "", "", 0)
            tell(WatchEvent("note", call, 0, text=str(gap)))

    # Called by `observe.variables.frames`

    def entered(self, site: Site, owner: object) -> None:
        frame = user_frame()
        try:
            self._entered(frame, site, owner)
        except Exception as fault:
            self.recorder.gaps.fault(fault, site.function)

    def _entered(self, frame: FrameType, site: Site, owner: object) -> None:
        parent, own = self._parent(frame.f_back)
        if own or (parent is None and not self._is_top(site.code)):
            return
        depth = 0 if parent is None else parent.info.depth + (not parent.quiet)
        deepest = self._wants.depth
        if deepest is not None and depth > deepest and not self._is_decorated(site.code):
            return
        call = self._open(frame, site.code, parent, owner=owner)
        self._variables.emit("enter", call, site.line)

    def bound(self, site: Site, value: object, owner: object) -> None:
        frame = user_frame()
        call = self._calls.get(id(frame))
        if call is not None:
            told = self._variables
            told.guarded(call, site.name, lambda: told.bound(call, frame, site, value))

    def polled(self, site: Site, value: object, owner: object) -> None:
        told, name = self._variables, site.name
        if not told.may_be(name):
            return
        frame = user_frame()
        call = self._calls.get(id(frame))
        if call is not None and told.may_have_changed(call, name):
            told.guarded(call, name, lambda: told.polled(call, frame, site, value))

    def deleted(self, site: Site, owner: object) -> None:
        call = self._calls.get(id(user_frame()))
        if call is not None:
            self._variables.deleted(call, site)

    def returned(self, site: Site, value: object, owner: object) -> None:
        frame = user_frame()
        call = self._calls.get(id(frame))
        if call is not None:
            told = self._variables
            told.guarded(call, RETURN, lambda: told.returned(call, frame, site, value))

    def yielded(self, site: Site, value: object, owner: object) -> None:
        frame = user_frame()
        call = self._calls.get(id(frame))
        if call is not None:
            told = self._variables
            told.guarded(call, "yield", lambda: told.yielded(call, frame, site, value))

    def resumed(self, site: Site, owner: object) -> None:
        call = self._calls.get(id(user_frame()))
        if call is not None:
            self._variables.emit("resume", call, site.line)

    def raised(self, site: Site, error: BaseException, owner: object) -> None:
        call = self._calls.get(id(user_frame()))
        if call is not None and not isinstance(error, _GENERATOR_ENDS):
            call.error = error_text(error)
            call.result = (None, site.line)

    def left(self, site: Site, owner: object) -> None:
        call = self._calls.pop(id(user_frame()), None)
        if call is None:
            return
        self._variables.closed(call)
        seconds = (time.perf_counter_ns() - call.start) / 1e9
        seen, line = call.result or (None, site.line)
        if call.error is not None:
            self._variables.emit("raise", call, line, seconds=seconds, text=call.error)
        else:
            self._variables.emit("return", call, line, after=seen, seconds=seconds)

    def line(self, site: Site, owner: object) -> None:
        call = self._calls.get(id(user_frame()))
        if call is not None:
            self._variables.emit("line", call, site.line)

    # Calls

    def _parent(self, frame: FrameType | None) -> tuple[OpenCall | None, bool]:
        """Return the innermost watched call on a stack, and whether Clew itself made the call."""
        while frame is not None:
            call = self._calls.get(id(frame))
            if call is not None:
                return call, False
            file = frame.f_code.co_filename
            if file.startswith(OURS) and file not in BETWEEN:
                return None, True
            frame = frame.f_back
        return None, False

    def _is_top(self, code: CodeType) -> bool:
        """Return whether a call is watched although no watched call made it."""
        new_thread = threading.get_ident() not in self._older
        return self._everywhere or code in self._roots or new_thread

    def _open(
        self,
        frame: FrameType,
        code: CodeType,
        parent: OpenCall | None,
        begun: bool = True,
        owner: object = None,
    ) -> OpenCall:
        self._ran.add(code)
        package = str(frame.f_globals.get("__name__", ""))
        where = Function(code, parts_of(code, owner), package, self._path_of(owner))
        decorated = self._is_decorated(code)
        alone = parent is None or parent.quiet or decorated
        info = WatchedCall(
            number=next(self._numbers),
            parent=None if parent is None or parent.quiet else parent.info.number,
            depth=0 if parent is None else parent.info.depth + (not parent.quiet),
            function=name_of(where),
            file=shown_file(code.co_filename),
            line=(frame.f_lineno or 0) if not begun else code.co_firstlineno,
            chain=self._chain(frame) if alone and where.parts != TOP_LEVEL else (),
            begun=begun,
            decorated=decorated,
            worker=self._worker(),
        )
        call = OpenCall(info, where, time.perf_counter_ns())
        if parent is not None:
            call.given = parent.names_of_objects()
        self._calls[id(frame)] = call
        self._variables.opened(call)
        return call

    def _is_decorated(self, code: CodeType) -> bool:
        return self._wants.decorated and code in self._roots

    def _chain(self, frame: FrameType) -> tuple[str, ...]:
        return tuple(chain_of(frame.f_back, self._wants.stack))

    def _worker(self) -> str:
        thread = threading.current_thread()
        own = "" if thread.ident in self._older or not self._older else thread.name
        return " ".join(part for part in (self.worker, own) if part)

    def _path_of(self, owner: object) -> str | None:
        """Return the path of a module that is registered in the recording, else None."""
        entry = self.recorder.modules.entries.get(id(owner))
        return entry.paths[0] if entry is not None and entry.ref() is owner else None


def _nowhere() -> None:
    """Stand for a function below which everything is followed; never called."""

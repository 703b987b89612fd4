"""What a watch knows of a call while it runs: its function, its callers, its variables.

Input: frames. Output: names, callers and the state of open calls. Holds no frame.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Protocol

from clew.events.notebook_cells import shown_file
from clew.events.watch_events import ValueSummary, WatchedCall, What
from clew.machinery import OURS
from clew.observe.variables.frames.existing import module_name
from clew.observe.variables.open_calls import LastStates, OpenCalls
from clew.observe.variables.selector import VariableSelector
from clew.observe.variables.user_code import is_library
from clew.observe.variables.wanted_variables import Function, WantedVariables, join_names
from clew.record.recorder import Recorder

# The files of Clew that call the program's functions on its behalf.
_BETWEEN = (
    OURS + "watching.py",
    os.path.join(OURS, "session", "decorating.py"),
    os.path.join(OURS, "observe", "dataloader.py"),
)
_CHAIN = 3


class OtherWatches(Protocol):
    """Decides what a watch of decorated functions leaves to the watches of others."""

    @staticmethod
    def register(code: CodeType, names: VariableSelector) -> None:
        """Add a function that has a watch of its own, with the variables it reports."""

    def opened(self, call: OpenCall) -> None:
        """Handle a call of a function that is not the watch's own."""

    def is_left(self, call: OpenCall, name: str) -> bool:
        """Return whether another watch reports a variable of a call."""

    def is_reported(
        self, call: OpenCall, what: What, name: str, variable: str, summary: ValueSummary
    ) -> bool:
        """Return whether a value of a variable has been, or will be, reported elsewhere."""

    def deleted(self, variable: str) -> None:
        """Handle a variable that is deleted."""

    def clear(self) -> None:
        """Forget all calls, as they are over."""


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """What a watch was asked for.

    `others` asks for every call of the decorated function itself in full, however deep: who called
    it, and its arguments with their numbers. Variables are then followed by their names only, not
    by the objects that they hold, and statistics are those that a line of text shows.
    """

    names: VariableSelector
    values: str = "stats"
    lines: bool = False
    stack: bool = False
    on_change: bool = True
    depth: int | None = None
    budget: int = 10_000
    others: type[OtherWatches] | None = None

    @property
    def decorated(self) -> bool:
        """Return whether calls of decorated functions are reported in full."""
        return self.others is not None


@dataclass(slots=True)
class WatchedObjects:
    """The objects that watched variables hold, in one call and in its callers, by their ids."""

    # Parameters that hold an object which the caller watches, with its name there.
    aliases: dict[str, str] = field(default_factory=dict)
    # Watched variable -> id of the object that it holds now, which lives as long as it does.
    held: dict[str, int] = field(default_factory=dict)
    # id of an object that a watched variable of a caller holds -> the variable
    given: dict[int, str] = field(default_factory=dict)

    def names(self) -> dict[int, str]:
        """Return the name of each object, the nearest if it has several."""
        own = {held: self.aliases.get(name, name) for name, held in self.held.items()}
        return {**self.given, **own}


@dataclass(slots=True)
class OpenCall:
    """One watched call that is open; `summaries` describe its variables as last reported."""

    info: WatchedCall
    code: CodeType
    function: Function
    wanted: WantedVariables
    start: int
    quiet: bool = False
    last: LastStates = field(default_factory=dict)
    summaries: dict[str, ValueSummary] = field(default_factory=dict)
    objects: WatchedObjects = field(default_factory=WatchedObjects)
    result: tuple[ValueSummary | None, int] | None = None
    error: str | None = None


def _name_of(where: Function) -> str:
    """Return the name of a call in the text."""
    if where.owner is not None:
        return join_names(where.owner, where.name)
    return ".".join(where.name.split(".")[-2:]) or "top level"


def _chain_of(frame: FrameType | None, whole: bool) -> Iterator[str]:
    """Yield the callers, nearest first: the whole stack, or a few functions of the program."""
    count = 0
    while frame is not None and (whole or count < _CHAIN):
        code = frame.f_code
        top = code.co_name == "<module>"
        ours = code.co_filename.startswith((OURS, "<frozen "))
        if not ours and (whole or not is_library(code.co_filename)):
            count += 1
            name = "" if top else f" {code.co_name}"
            yield f"{os.path.basename(shown_file(code.co_filename))}:{frame.f_lineno}{name}"
            if top and not whole:
                return  # further callers only run the program
        frame = frame.f_back


class WatchedCalls:
    """The calls that a watch follows: decides which, and describes each."""

    def __init__(self, recorder: Recorder, options: WatchOptions, everywhere: bool) -> None:
        self._recorder = recorder
        self._options = options
        # Whether calls are watched that no watched call has made.
        self.everywhere = everywhere
        self.open: OpenCalls[OpenCall] = OpenCalls()
        # The code of the function that is watched, and all code that ran.
        self.roots: set[CodeType] = set()
        self.ran: set[CodeType] = set()
        self.numbers = itertools.count()
        self.worker = ""
        self._older: set[int | None] = set()

    def note_threads(self) -> None:
        """Note the threads that run already: what others do belongs to the watch."""
        self._older = {thread.ident for thread in threading.enumerate()}

    def is_unseen(self) -> bool:
        """Return whether no call of the function has been seen since the watch was started."""
        return not self.roots & self.ran

    def parent(self, frame: FrameType | None) -> tuple[OpenCall | None, bool]:
        """Return the innermost watched call on a stack, and whether Clew itself made the call."""
        while frame is not None:
            call = self.open.get(id(frame))
            if call is not None:
                return call, False
            file = frame.f_code.co_filename
            if file.startswith(OURS) and file not in _BETWEEN:
                return None, True
            frame = frame.f_back
        return None, False

    def is_watched(self, code: CodeType, parent: OpenCall | None) -> bool:
        """Return whether a call is watched: as deep as asked for, below a call that is."""
        if parent is None:
            new_thread = threading.get_ident() not in self._older
            return self.everywhere or code in self.roots or new_thread
        deepest = self._options.depth
        return deepest is None or _below(parent) <= deepest or self._is_decorated(code)

    def begin(
        self, frame: FrameType, code: CodeType, parent: OpenCall | None, owner: object, begun: bool
    ) -> OpenCall:
        """Add a call; `begun` is False if it runs already."""
        self.ran.add(code)
        package = module_name(frame.f_globals)
        path = self._path_of(owner)
        where, wanted = self._options.names.in_call(code, package, owner, path)
        decorated = self._is_decorated(code)
        alone = parent is None or parent.quiet or decorated
        info = WatchedCall(
            number=next(self.numbers),
            parent=None if parent is None or parent.quiet else parent.info.number,
            depth=0 if parent is None else _below(parent),
            function=_name_of(where),
            file=shown_file(code.co_filename),
            line=(frame.f_lineno or 0) if not begun else code.co_firstlineno,
            chain=self._chain(frame) if alone and where.name else (),
            begun=begun,
            decorated=decorated,
            worker=self._worker(),
        )
        call = OpenCall(info, code, where, wanted, time.perf_counter_ns())
        if parent is not None:
            call.objects.given = parent.objects.names()
        self.open[id(frame)] = call
        return call

    def _is_decorated(self, code: CodeType) -> bool:
        return self._options.decorated and code in self.roots

    def _chain(self, frame: FrameType) -> tuple[str, ...]:
        return tuple(_chain_of(frame.f_back, self._options.stack))

    def _worker(self) -> str:
        thread = threading.current_thread()
        own = "" if thread.ident in self._older or not self._older else thread.name
        return " ".join(part for part in (self.worker, own) if part)

    def _path_of(self, owner: object) -> str | None:
        """Return the path of a module that is registered in the recording, else None."""
        entry = self._recorder.modules.entries.get(id(owner))
        return entry.paths[0] if entry is not None and entry.ref() is owner else None


def _below(parent: OpenCall) -> int:
    """Return the depth of the calls that a watched call makes."""
    return parent.info.depth + (not parent.quiet)

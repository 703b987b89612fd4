"""Follow one thread of the program: its open module calls, and which of its frames run in them.

Input: live frames. Output: stack nodes and the calls they run in. No frame is held: a call
has the id of the frame it runs in, which no other frame can get while the call is open.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final

from clew.events.vocabulary import BACKWARD, RECOMPUTE, Unseen
from clew.frame_locals import first_argument, some_locals
from clew.keep.nesting import describe
from clew.machinery import MACHINERY
from clew.record.module_registry import ModuleName
from clew.record.stacks import STACKS, StackNode
from clew.stream.records import OPEN

if TYPE_CHECKING:
    from torch import nn

    from clew.record.recorder import Recorder

NO_FRAME = id(None)

# Fields of an open call: a plain tuple, for speed. FRAME is the id of the Python frame that the
# call runs in; frames are never held.
ID: Final = 0
NODE: Final = 1
FRAME: Final = 2
NAME: Final = 3
PARENT: Final = 4
START: Final = 5
NUMBER: Final = 6
INPUTS: Final = 7
NAMED: Final = 8
Call = tuple[int, StackNode, int, "ModuleName | None", int, int, int, Any, Any]


class DirectCall:
    """A module call that went past the hooks, tied to the frame it runs in.

    It sits in the frame's `f_trace` slot and dies with the frame: the one way to tell two
    activations apart without keeping either. A debugger uses that slot too. If it has put a trace
    function there, this object calls it. If it replaces this object later, `__del__` puts a new
    one into the slot, which calls the debugger's function in turn.
    """

    __slots__ = ("_frame", "_tracer", "event", "name", "owner")

    def __init__(self, owner: object, event: int, name: ModuleName, frame: FrameType) -> None:
        self.owner = owner
        self.event = event
        self.name = name
        self._frame = id(frame)
        self._tracer: Any = frame.f_trace
        frame.f_trace = self

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        """Call the trace function of the debugger that traces this frame, if there is one."""
        if self._tracer is not None:
            found = self._tracer(frame, event, arg)
            self._tracer = self._tracer if found is None else found

    def __del__(self) -> None:
        frame: FrameType | None = sys._getframe()
        while frame is not None and id(frame) != self._frame:
            frame = frame.f_back
        if frame is not None:
            DirectCall(self.owner, self.event, self.name, frame)

    @staticmethod
    def of(frame: FrameType, owner: object) -> DirectCall | None:
        """Return the `DirectCall` that a recording has put into a frame."""
        mark: Any = frame.f_trace
        while isinstance(mark, DirectCall) and mark.owner is not owner:
            mark = mark._tracer
        return mark if isinstance(mark, DirectCall) else None


class ThreadStates:
    """The state of each thread of one recorder, and the names of all threads and processes.

    `on_direct` is called before an outermost module call is recorded that went past the hooks.
    """

    def __init__(self, recorder: Recorder, on_direct: Callable[[nn.Module], None]) -> None:
        self._recorder = recorder
        self.on_direct = on_direct
        # Called with the index of a thread that is not to be recorded, or is to be again.
        self.on_mute: Callable[[int, bool], None] | None = None
        # Marks exceptions and frames as recorded here. A separate object, so that the marks keep
        # nothing else alive.
        self.owner = object()
        self.by_ident: dict[int, ThreadState] = {}
        self.names: list[str] = []
        self._processes: dict[str, int] = {}
        # Makes the state of a thread.
        self.state_of: Callable[[Recorder, int, int], ThreadState] = ThreadState

    def of_thread(self, boundary: int = NO_FRAME) -> ThreadState:
        """Return the state of the running thread; make it if there is none."""
        ident = threading.get_ident()
        thread = self.by_ident.get(ident)
        if thread is not None and thread.python_thread() is not threading.current_thread():
            # Its thread has ended, and the system gave the number to a new one.
            thread.abandon_above(0)
            thread.release()
            thread = None
        if thread is None:
            thread = self.by_ident[ident] = self.state_of(self._recorder, len(self.names), boundary)
            self.names.append(thread.name)
            if self._recorder.halted:
                thread.set_mute(True)
        return thread

    def of_process(self, name: str) -> int:
        """Return the thread number that stands for another process here."""
        if name not in self._processes:
            self._processes[name] = len(self.names)
            self.names.append(name)
        return self._processes[name]

    def __iter__(self) -> Iterator[ThreadState]:
        return iter(list(self.by_ident.values()))

    def mute(self) -> None:
        """Stop recording the ops of all threads."""
        for thread in self:
            thread.set_mute(True)

    def open_calls(self, admitted: Callable[[int], bool]) -> list[Any]:
        """Return records of the module calls open now, of each thread until one is not admitted."""
        records: list[Any] = []
        for thread in self:
            for event, node, _, name, parent, start, number, inputs, named in thread.stack[1:]:
                if not admitted(event):
                    break
                if inputs is None:
                    continue  # the native engine has its record
                records += (event, name, node, parent, start, OPEN, number, inputs, named)
                records += (None, None, None)
        return records

    # The next three run as every trace ends, without the call that `__iter__` takes.

    def given(self) -> list[Any]:
        """Return the arguments of open calls, as tokens."""
        threads = list(self.by_ident.values())
        return [[call[INPUTS], call[NAMED]] for thread in threads for call in thread.stack[1:]]

    def end_all(self) -> None:
        """Record every open call as one whose end was not seen."""
        for thread in list(self.by_ident.values()):
            thread.abandon_above(0)

    def release(self) -> None:
        """Drop the state of all threads."""
        for thread in list(self.by_ident.values()):
            thread.release()
        self.by_ident.clear()


class ThreadState:
    """The state of one thread: its open module calls and its place in the stack tree."""

    def __init__(self, recorder: Recorder, index: int, boundary: int) -> None:
        self.recorder = recorder
        self.index = index
        self.ident = threading.get_ident()
        thread = threading.current_thread()
        self.python_thread = weakref.ref(thread)
        self.name = thread.name
        self.engine_root = STACKS.root(index, BACKWARD)
        root = STACKS.root(index)
        self.stack: list[Call] = [_outside(root, boundary)]
        # Whether the ops of this thread are recorded while ops are recorded at all.
        self.followed = False
        # True while code of Clew or opaque code runs: then ops are not recorded. See `set_mute`.
        self.mute = False

    def set_mute(self, mute: bool) -> None:
        """Record nothing of this thread, or record it again."""
        self.mute = mute
        on_mute = self.recorder.threads.on_mute
        if on_mute is not None:
            on_mute(self.index, mute)

    @property
    def bottom(self) -> Call:
        """Return the entry below all open calls, for code outside any module."""
        return self.stack[0]

    @property
    def outermost(self) -> nn.Module | None:
        """Return the module whose call contains all other open calls."""
        name = self.stack[1][NAME] if len(self.stack) > 1 else None
        return None if name is None else name.entry.ref()

    def release(self) -> None:
        """Drop what is known of open calls; `Threads` drops this object."""
        # Neither is taken away: a hook of a thread that still runs may be using them.
        self.stack = self.stack[:1]

    def place(self, frame: FrameType | None) -> tuple[StackNode, int]:
        """Return the stack node of a frame and the id of the module call it runs in."""
        top = self.stack[-1]
        target = top[FRAME]
        call_frame, wrapped_call = MACHINERY.call_frame, MACHINERY.wrapped_call
        key: list[int] = []
        walker = frame
        while id(walker) != target:
            if walker is None:
                return self._search(frame)
            code = walker.f_code
            if code is call_frame or code is wrapped_call:
                return self._search(frame)
            # Faster than to extend it by both.
            key.append(id(code))
            key.append(walker.f_lasti)
            walker = walker.f_back
        node = top[NODE].kids.get(tuple(key))
        if node is None or node.direct:
            return self._search(frame)
        return node, top[ID]

    def _search(self, frame: FrameType | None) -> tuple[StackNode, int]:
        """Find what `place` returns for a new stack, or one that the open calls do not fit."""
        frames: list[FrameType] = []
        while id(frame) != self.stack[-1][FRAME]:
            if frame is None:
                if threading.get_ident() != self.ident:
                    # An engine thread that runs this thread's backward has a short stack.
                    return STACKS.descend(self.engine_root, frames), -1
                self.abandon_above(0)
                self.stack[0] = _outside(self.stack[0][NODE], NO_FRAME)
                break
            is_call = frame.f_code in (MACHINERY.call_frame, MACHINERY.wrapped_call)
            if is_call and self.reopen(id(frame)):
                break
            if id(frame.f_code) not in MACHINERY.hidden:
                frames.append(frame)
            frame = frame.f_back
        top = self.stack[-1]
        node = STACKS.descend(top[NODE], frames)
        if node.direct:
            return node, self._direct_parent(frames, top)
        return node, top[ID]

    def reopen(self, frame_id: int) -> bool:
        """Make the call of a frame the innermost one; calls above it have ended."""
        calls = list(self.stack)  # another thread that ends the trace may shorten it
        for depth in range(len(calls) - 1, 0, -1):
            if calls[depth][FRAME] == frame_id:
                self.abandon_above(depth)
                return True
        return False

    def reopen_module(self, module: nn.Module) -> bool:
        """Make the innermost call of a module the innermost of all."""
        calls = list(self.stack)
        for depth in range(len(calls) - 1, 0, -1):
            name = calls[depth][NAME]
            if name is not None and name.entry.ref() is module:
                self.abandon_above(depth)
                return True
        return False

    def abandon_above(self, depth: int) -> None:
        """Record calls that ended without the exit hook, stopped by a BaseException."""
        while len(self.stack) > depth + 1:
            self.recorder.end_call(self.stack.pop(), OPEN, None, None)

    def _direct_parent(self, frames: list[FrameType], top: Call) -> int:
        """Return the innermost call of a `forward` past the hooks on a stack; open it if new."""
        parent = top[ID]
        caller = top[NAME]
        owner = caller.entry.ref() if caller is not None else None
        for position in range(len(frames) - 1, -1, -1):
            frame = frames[position]
            if frame.f_code.co_name != "forward":
                continue
            module = first_argument(frame)
            if module is owner or not _is_forward_of(module, frame.f_code):
                continue
            call = self.direct_call(frame)
            if call is None:
                place = STACKS.descend(top[NODE], frames[position + 1 :])
                code = frame.f_code
                names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
                arguments = dict(zip(names, some_locals(frame, names), strict=True))
                call = self.open_direct(frame, module, caller, parent, place, arguments)
            parent, caller, owner = call.event, call.name, module
        return parent

    def direct_call(self, frame: FrameType) -> DirectCall | None:
        """Return the call past the hooks that runs in a frame."""
        return DirectCall.of(frame, self.recorder.threads.owner)

    def open_direct(
        self,
        frame: FrameType,
        module: nn.Module,
        caller: ModuleName | None,
        parent: int,
        place: StackNode,
        arguments: dict[str, Any],
    ) -> DirectCall:
        """Record a call that went past the hooks, with its arguments."""
        recorder = self.recorder
        if parent < 0:
            recorder.threads.on_direct(module)
        name = recorder.modules.name_of(module, caller, place.index)
        given = describe(arguments, recorder.values.tensors.known)
        event = next(recorder.buffer.ids)
        now = recorder.clock()
        number = count_call(name, place)
        if recorder.keeps_calls:
            recorder.buffer.events.extend(
                (event, name, place, parent, now, OPEN, number, [], given, Unseen, None, None)
            )
        return DirectCall(recorder.threads.owner, event, name, frame)


def _is_forward_of(module: Any, code: CodeType) -> bool:
    """Return whether code is the `forward` of a module, also an inherited or decorated one."""
    # Find out whether it is a module without torch, which need not be imported.
    if not hasattr(type(module), "_call_impl"):
        return False
    candidates = [cls.__dict__.get("forward") for cls in type(module).__mro__]
    candidates.append(module.__dict__.get("forward"))
    for function in candidates:
        while function is not None:
            if getattr(function, "__code__", None) is code:
                return True
            function = getattr(function, "__wrapped__", None)
    return False


def _outside(root: StackNode, boundary: int) -> Call:
    """Return the entry at the bottom of every stack, for code outside any module."""
    return (-1, root, boundary, None, -1, 0, 0, None, None)


def count_call(name: ModuleName, node: StackNode) -> int:
    """Return the index of a module's call; recomputed calls are counted separately."""
    entry = name.entry
    if node.phase == RECOMPUTE:
        entry.recomputed += 1
        return entry.recomputed - 1
    entry.calls += 1
    return entry.calls - 1

"""The dispatch modes of one recording: one for each thread whose ops are recorded."""

from __future__ import annotations

import threading
from typing import Protocol

from clew.callbacks.apply import Named
from clew.events.model import Gap
from clew.observe.dispatch import OpMode
from clew.observe.modules import NativeCalls
from clew.observe.other_threads import ops_not_recorded
from clew.observe.own_hooks import OwnHooks
from clew.record.recorder import Recorder
from clew.record.thread_state import ThreadState


class OpObserver(Protocol):
    """Records the ops of a program, on each thread that is followed."""

    # Records module calls too, if it can.
    native: NativeCalls | None
    own_hooks: OwnHooks

    def begin(self, thread: ThreadState) -> None:
        """Remember the running thread as the one that the recording was started on."""

    def push(self, thread: ThreadState) -> None:
        """Follow the running thread."""

    def pop(self, thread: ThreadState) -> None:
        """Follow a thread no more."""

    def pop_all(self) -> None:
        """Follow no thread any more."""

    def on_thread(self) -> ThreadState | None:
        """Follow the running thread, as a module runs on it; None if the recording is over."""

    def on_idle(self, thread: ThreadState) -> None:
        """Leave nothing on another thread, whose outermost module call is over."""

    def retire(self) -> None:
        """Stop recording the ops of every thread."""

    def forked(self) -> None:
        """Report what was missed while the process forked."""

    def abandon(self) -> None:
        """Stop recording in a forked process."""


class OpModes:
    """Puts a mode on each thread that is followed, and takes it away again.

    Without `sees_ops` threads are followed for their module calls alone. `named` gets the ops.
    """

    def __init__(self, recorder: Recorder, sees_ops: bool, named: Named | None) -> None:
        self.native: NativeCalls | None = None
        self.own_hooks = OwnHooks()
        self._recorder = recorder
        self._sees_ops = sees_ops
        self._named = named
        self._modes: dict[int, OpMode] = {}
        # The thread that the recording was started on, whose ops are recorded everywhere; 0 after
        # its end.
        self._main = 0

    def begin(self, thread: ThreadState) -> None:
        """Remember the running thread as the one that the recording was started on."""
        self._main = thread.ident

    def push(self, thread: ThreadState) -> None:
        """Follow the running thread."""
        thread.followed = True
        if self._sees_ops:
            mode = self._modes[thread.ident] = OpMode(self._recorder, thread, self._named)
            mode.start()

    def pop(self, thread: ThreadState) -> None:
        """Follow a thread no more."""
        thread.followed = False
        mode = self._modes.get(thread.ident)
        if mode is not None:
            if not mode.stop():
                self._recorder.gaps.add(_stopped_elsewhere(thread.name))
            self._modes.pop(thread.ident, None)

    def pop_all(self) -> None:
        """Follow no thread any more."""
        for thread in self._recorder.threads:
            self.pop(thread)
        self._main = 0

    def on_thread(self) -> ThreadState | None:
        """Follow the running thread, as a module runs on it: see its ops too.

        Return None if the recording is over: another hook of the same call may have ended it.
        """
        if not self._main:
            return None
        thread = self._recorder.thread()
        if thread.ident not in self._modes:
            self.push(thread)
        return thread

    def on_idle(self, thread: ThreadState) -> None:
        """Leave no mode behind on another thread, whose outermost module call is over."""
        if thread.ident != self._main:
            self.pop(thread)
            if self._sees_ops:
                self._recorder.gaps.add(ops_not_recorded(thread.name))

    def retire(self) -> None:
        """Stop recording the ops of every thread."""
        for mode in list(self._modes.values()):
            mode.retire()

    def forked(self) -> None:
        """Do nothing: a mode stays where it is."""

    def abandon(self) -> None:
        """Take the mode off the one thread that a forked process has."""
        mode = self._modes.pop(threading.get_ident(), None)
        if mode is not None:
            mode.stop()


def _stopped_elsewhere(thread: str) -> Gap:
    """Return the gap that says what is left on a thread when another one stops the trace."""
    return Gap(
        f"the end of the trace on {thread}",
        "",
        "it was stopped on another thread: a dispatch mode stays there, which records nothing "
        "and is gone after the next op or with the next trace of that thread",
        "stop the trace on the thread that started it, once the others are done",
    )

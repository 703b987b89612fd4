"""Explain the exception that ends the block of a trace, while it is alive.

Input: the exception, and the run up to it. Output: the note that the user reads below the
traceback, and what is stored of the crash. Loaded when a block ends by an exception.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clew.analysis.crash import crash_note
from clew.analysis.crashes.facts import CrashFacts
from clew.analysis.failures import event_of_error
from clew.program_errors import error_text, inner_errors
from clew.record.recorder import Recorder
from clew.run.event import Event
from clew.run.run import Run
from clew.session.crash_facts import facts_of_crash


class LiveCrash:
    """The exception that ended a block: its text, and what only the live exception knew."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._facts: CrashFacts | None = None

    def find_facts(
        self, error: BaseException, run: Run, event: Event | None, recorder: Recorder
    ) -> None:
        """Read the names and numbers of what failed from the frames of the exception.

        They are those of `event`, or of an exception inside it that a recorded op has raised.
        """
        inner = None
        for one in inner_errors(error, is_own=event is None or event.kind == "note"):
            raised = event_of_error(run, error_text(one))
            if raised is not None and raised != event:
                inner = error = one
                event = raised
                break
        source = None if event is None else event.source
        text = None if source is None else run.columns.sources.get(source.file)
        thread = recorder.thread()
        mute = thread.mute
        thread.set_mute(True)
        try:
            facts = facts_of_crash(error, source, text)
            if inner is not None:
                facts = replace(facts, inner=error_text(inner))
        except Exception as fault:
            recorder.gaps.fault(fault, "the names of what failed")
            facts = CrashFacts()
        finally:
            thread.set_mute(mute)
        self._facts = facts

    def note(self, run: Run, event: Event | None) -> str:
        """Return what the user reads below the traceback."""
        return crash_note(run, event, self._text, self._facts or CrashFacts())

    def to_json(self) -> dict[str, Any]:
        """Return what is stored of it in the environment of the trace."""
        facts = {} if self._facts is None else {"crash_facts": self._facts.to_json()}
        return {"crash": self._text, **facts}

"""Record the program that runs in this process, from its import of torch until it ends.

Input: the options, as `CLEW_RUN` has them. `startup/sitecustomize.py` calls `begin`. Nothing here
raises into the program: what cannot be recorded is said in a line on the error stream.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shlex
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import clew
from clew.errors import ClewWarning
from clew.events.model import SCHEMA
from clew.events.number_text import bytes_text
from clew.launch.defaults import defaults_for
from clew.launch.options import RunOptions, options_from_words, options_of
from clew.launch.output_folder import HOME, output_path, program_name, remove_oldest
from clew.launch.progress import Heartbeat
from clew.launch.summary import MOST_READ, summary_of, summary_unread
from clew.plain_text import plain
from clew.session.environment import rank_and_size
from clew.session.tracer import Tracer
from clew.store.storage import is_url, storage_of
from clew.views.strict_json import as_json
from clew.views.text.live import LivePrinter
from clew.views.text.style import counted

if TYPE_CHECKING:
    from clew.session.guard import Guard
    from clew.session.late_model import LateModel

# Programs that import torch and only start others, which may be recorded.
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
_LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch")


def begin(text: str, folder: str) -> None:
    """Begin to record, as the text of CLEW_RUN says; `folder` is where the program was started."""
    try:
        options = _options(text, folder)
        if options.records_rank(rank_and_size()[0]) and not _is_launcher():
            Recording(options, folder).begin()
    except Exception as wrong:
        _say(f"nothing is recorded: {' '.join(str(wrong).split()) or type(wrong).__name__}")


def _options(text: str, folder: str) -> RunOptions:
    """Return the options; those of pyproject.toml count where the command has not read them."""
    given = options_from_words(shlex.split(text))
    if given.get("complete"):
        return options_of(given, RunOptions())
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return options_of(given, defaults_for(folder if script is None else Path(script).parent))


def _is_launcher() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    script = os.path.basename((getattr(sys, "argv", None) or [""])[0])
    return script in _LAUNCHERS or getattr(spec, "name", None) in _LAUNCHER_MODULES


class Recording:
    """The recording of the program that runs in this process."""

    def __init__(self, options: RunOptions, folder: str) -> None:
        self._options = options
        self._folder = folder
        self._process = os.getpid()
        path = output_path(options.out, folder)
        live = LivePrinter(sys.stderr) if options.live else False
        request = options.request(program_name(), path, live)
        self._tracer = Tracer({}, request, _late_model(options.model), is_paced=True)
        self._heartbeat = Heartbeat(self._tracer._hand_over, self._progress)
        self._has_crashed = False
        self._guard: Guard | None = None

    def begin(self) -> None:
        """Start, and see to the end."""
        with warnings.catch_warnings():
            if self._options.child:
                # That the trace of its parent is being written, so that it gets a number.
                warnings.simplefilter("ignore", ClewWarning)
            self._tracer.start()
        if self._options.guard:
            self._guard = clew.guard().__enter__()
        path = self._tracer.path
        if path is not None and self._options.out is None and rank_and_size()[0] == 0:
            remove_oldest(Path(self._folder, HOME))
        if path is not None and self._options.children:
            known = replace(self._options, out=str(path), complete=True, child=True)
            os.environ["CLEW_RUN"] = shlex.join(known.words())
        self._next_hook = sys.excepthook
        sys.excepthook = self._excepthook
        atexit.register(self._end)
        self._heartbeat.start()

    def _excepthook(
        self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        """Add the note to the exception that ends the program, and show it as it would be."""
        self._crashed(error)
        self._next_hook(kind, error, traceback)

    def _crashed(self, error: BaseException) -> None:
        if os.getpid() == self._process and self._tracer.recording:
            self._has_crashed = True
            with contextlib.suppress(Exception):
                self._stop(error)

    def _stop(self, error: BaseException | None) -> None:
        self._heartbeat.stop()
        if self._guard is not None:
            self._guard.stop()
        with warnings.catch_warnings():
            # The line at the end says it.
            warnings.simplefilter("ignore", ClewWarning)
            self._tracer.__exit__(*_as_raised(error))

    def _end(self) -> None:
        """Write the rest, and say what was recorded."""
        if os.getpid() != self._process:
            return  # a fork, which records nothing
        error = getattr(sys, "last_value", None)
        if error is not None:
            self._crashed(error)  # past the hook, which the program has replaced
        if sys.excepthook == self._excepthook:
            sys.excepthook = self._next_hook
        try:
            if self._tracer.recording:
                self._stop(None)
            if self._has_crashed or rank_and_size()[0] == 0:
                self._report()
        except Exception as wrong:
            _say(f"the trace is in {self._tracer.path}, but: {wrong}")
        if type(error) is KeyboardInterrupt:
            _end_by_signal()

    def _progress(self) -> str:
        """Return how far the recording is, in words."""
        events, step = self._tracer._hand_over()
        path = self._tracer.path
        size = 0 if path is None or is_url(path) else sum(storage_of(path).sizes().values())
        return f"clew: {counted(events, 'event')}, step {step}, {bytes_text(size)}"

    def _report(self) -> None:
        path = self._tracer.path
        if path is None:
            _say("nothing was written: a warning above says why")
            return
        seen, step = self._tracer._hand_over()
        if self._options.all and seen > MOST_READ:
            summary = summary_unread(seen, step, str(path), self._folder)
        else:
            summary = summary_of(self._tracer, seen, str(path), self._folder)
        # Of the children of a program many only start others.
        if summary.events or not self._options.child:
            facts = {"schema": SCHEMA, **summary.to_dict()}
            _say(as_json(facts) if self._options.json else str(summary))


def _end_by_signal() -> None:
    """Have Python end the process by SIGINT, as it does after a KeyboardInterrupt.

    Python notes that one ended the program, and forgets it whenever text is executed as code, as
    modules do that were loaded here. Executed code that raises one makes the note again.
    """
    with contextlib.suppress(KeyboardInterrupt):
        exec("raise KeyboardInterrupt")


def _late_model(name: str | None) -> LateModel | None:
    from clew.session.late_model import LateModel  # needs all of torch, which may be another's

    return None if name is None else LateModel(name)


def _as_raised(error: BaseException | None) -> Any:
    """Return what `__exit__` gets for an exception."""
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


def _say(text: str) -> None:
    try:
        sys.stderr.write(text + "\n" if text.startswith("{") else f"clew: {plain(text)}\n")
        sys.stderr.flush()
    except Exception:
        pass  # the program has closed the stream, and nobody listens

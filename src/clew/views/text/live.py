"""The live log: module calls and ops printed as they happen, under the lines that made them.

In come plain facts from a running trace, out go lines to a stream, each flushed. A failing stream
ends the log and nothing else. Made to be called while the program runs, so it keeps little state:
which line was printed last at each depth of module calls.
"""

from __future__ import annotations

import threading
from typing import TextIO

from clew.events.model import Source
from clew.views.text.style import Style, style_for, time_text

_BAR = "│ "


class _Thread(threading.local):
    """How far one thread's log has come, by depth of module calls."""

    def __init__(self) -> None:
        self.label: str | None = None
        # Where lines of the module at a depth stand, and where what they ran stands.
        self.body = [0]
        self.under = [0]
        # The source line printed last at a depth.
        self.line: list[tuple[str, int] | None] = [None]


class LivePrinter:
    """Prints what happens to a stream."""

    def __init__(self, stream: TextIO, color: bool | None = None) -> None:
        self._stream = stream
        self._style: Style = style_for(stream, color)
        self._here = _Thread()
        self._first_thread = threading.get_ident()
        self._failed = False

    def enter(
        self, depth: int, path: str, cls: str, source: Source | None, inputs_text: str
    ) -> None:
        """A module call begins; `depth` is the number of calls around it."""
        try:
            self._line(depth, source)
            here = self._here
            name = self._style.paint(path or cls, "bold")
            shown = f"{name} {cls}" if path and path != cls else name
            self._print(here.under[depth], f"▸ {shown}({inputs_text})")
            self._keep(depth + 1)
            here.body.append(here.under[depth] + 1)
            here.under.append(here.under[depth] + 1)
            # Ops of torch's own modules have the line of the call.
            here.line.append(here.line[depth] if source is not None else None)
        except Exception:
            self._failed = True

    def leave(
        self,
        depth: int,
        path: str,
        cls: str,
        outputs_text: str,
        seconds: float | None,
        error: str | None,
    ) -> None:
        """A module call ends, well or with an error."""
        try:
            self._keep(depth + 1)
            name = path or cls
            time = self._style.paint(f"  {time_text(seconds)}", "dim") if seconds else ""
            if error is not None:
                text = self._style.paint(f"✗ {name} {_first_line(error)}", "red", "bold")
            else:
                text = f"◂ {name}" + (f" -> {outputs_text}" if outputs_text else "")
            self._print(self._here.under[depth], text + time)
        except Exception:
            self._failed = True

    def op(self, depth: int, source: Source | None, text: str, error: str | None) -> None:
        """An op ran, or failed to."""
        try:
            self._line(depth, source)
            shown = f"# {text}"
            if error is not None:
                shown = self._style.paint(f"# ✗ {text}  {_first_line(error)}", "red", "bold")
            self._print(self._here.under[depth], shown)
        except Exception:
            self._failed = True

    def _line(self, depth: int, source: Source | None) -> None:
        """Print the source line of what comes next, unless it was the last one printed."""
        self._keep(depth + 1)
        here = self._here
        if source is None or here.line[depth] == (source.file, source.line):
            return
        name = source.file.replace("\\", "/").rpartition("/")[2]
        where = self._style.paint(f"# {name}:{source.line} in {source.function}", "dim")
        self._print(here.body[depth], f"{source.text}  {where}" if source.text else where)
        here.line[depth] = (source.file, source.line)
        here.under[depth] = here.body[depth] + 1

    def _keep(self, depths: int) -> None:
        """Forget what lies deeper; make up for calls that began before the log did."""
        here = self._here
        for state in (here.body, here.under):
            del state[depths:]
            state.extend(state[-1] for _ in range(depths - len(state)))
        del here.line[depths:]
        here.line.extend([None] * (depths - len(here.line)))

    def _print(self, indent: int, text: str) -> None:
        if self._failed:
            return
        line = self._style.paint(_BAR * indent, "dim") + text
        self._stream.write(self._style.finish(f"{self._label()}{line}\n"))
        self._stream.flush()

    def _label(self) -> str:
        """The name of the thread, where it is not the one the log began on."""
        if self._here.label is None:
            thread = threading.current_thread()
            own = thread.ident == self._first_thread
            self._here.label = "" if own else f"[{thread.name}] "
        return self._here.label


def _first_line(error: str) -> str:
    return error.splitlines()[0] if error else ""

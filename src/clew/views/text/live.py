"""The live log: module calls and ops printed as they happen, under the lines that made them.

Input: plain facts from a running trace. Output: lines to a stream, each flushed. If the stream
fails, the log ends and the program goes on. It is called while the program runs, so it keeps little
state: which line was printed last at each depth of module calls.
"""

from __future__ import annotations

import threading
from typing import TextIO

from clew.events.live_events import Happening, arguments_text, text_of
from clew.events.model import Source
from clew.plain_text import first_line, plain, plain_code
from clew.views.text.code_places import short_place_of
from clew.views.text.style import Style, short_op, style_for, time_text

_BAR = "│ "


class _Thread(threading.local):
    """How far one thread's log has come, by depth of module calls."""

    def __init__(self) -> None:
        self.label: str | None = None
        # Indentation of the module's lines at a depth, and of what they ran.
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

    def begins(self, event: Happening) -> None:
        """Print the beginning of a module call."""
        try:
            depth, here = event.depth, self._here
            self._line(depth, event.source)
            name = self._style.paint(plain(event.path or event.name), "bold")
            named = event.path and event.path != event.name
            shown = f"{name} {plain(event.name)}" if named else name
            self._print(here.under[depth], f"▸ {shown}({arguments_text(event)})")
            self._keep(depth + 1)
            here.body.append(here.under[depth] + 1)
            here.under.append(here.under[depth] + 1)
            # Ops of torch's modules have the line of the call.
            here.line.append(here.line[depth] if event.source is not None else None)
        except Exception:
            self._failed = True

    def ends(self, event: Happening) -> None:
        """Print the end of a module call or op, with its error if it raised, or a named value."""
        try:
            if event.kind == "module":
                self._leave(event)
            elif event.kind == "op":
                self._op(event)
            elif event.kind != "note":
                self._line(event.depth, event.source)
                text = f"{plain(event.name)} = {text_of(event.outputs)}"
                self._print(self._here.under[event.depth], text)
        except Exception:
            self._failed = True

    def _leave(self, event: Happening) -> None:
        self._keep(event.depth + 1)
        name, seconds = plain(event.path or event.name), event.seconds
        outputs = text_of(event.outputs)
        time = self._style.paint(f"  {time_text(seconds)}", "dim") if seconds else ""
        if event.error is not None:
            text = self._style.paint(f"✗ {name} {first_line(event.error)}", "red", "bold")
        else:
            text = f"◂ {name}" + (f" -> {outputs}" if outputs else "")
        self._print(self._here.under[event.depth], text + time)

    def _op(self, event: Happening) -> None:
        self._line(event.depth, event.source)
        outputs = text_of(event.outputs)
        arrow = f" -> {outputs}" if outputs else ""
        text = f"{short_op(plain(event.name))}({arguments_text(event)}){arrow}"
        shown = f"# {text}"
        if event.error is not None:
            shown = self._style.paint(f"# ✗ {text}  {first_line(event.error)}", "red", "bold")
        self._print(self._here.under[event.depth], shown)

    def _line(self, depth: int, source: Source | None) -> None:
        """Print the source line of what comes next, unless it was the last one printed."""
        self._keep(depth + 1)
        here = self._here
        if source is None or here.line[depth] == (source.file, source.line):
            return
        place = short_place_of(source.file, source.line)
        where = self._style.paint(f"# {place} in {plain(source.function)}", "dim")
        code = plain_code(source.text)
        self._print(here.body[depth], f"{code}  {where}" if code else where)
        here.line[depth] = (source.file, source.line)
        here.under[depth] = here.body[depth] + 1

    def _keep(self, depths: int) -> None:
        """Drop deeper levels; add levels for calls that began before the log did."""
        here = self._here
        for state in (here.body, here.under):
            del state[depths:]
            state.extend(state[-1] for _ in range(depths - len(state)))
        del here.line[depths:]
        here.line.extend([None] * (depths - len(here.line)))

    def _print(self, indent: int, text: str) -> None:
        if self._failed:
            return
        lines = self._style.wrapped(self._label() + _BAR * indent, text)
        self._stream.write(self._style.finish("\n".join([*lines, ""])))
        self._stream.flush()

    def _label(self) -> str:
        """Return the name of the thread, empty for the thread the log began on."""
        if self._here.label is None:
            thread = threading.current_thread()
            own = thread.ident == self._first_thread
            self._here.label = "" if own else f"[{plain(thread.name)}] "
        return self._here.label

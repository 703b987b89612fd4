"""torch-code-tracing's `TracingMode` on Clew: every op under the source lines that led to it.

Input: the events of a running trace. Output: lines as that tool prints them. Unlike there, no
frame is held, the op that fails is shown, and colour is left out where it is not wanted.
"""

from __future__ import annotations

import dis
import inspect
import linecache
import os
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from typing import Any

import torch

from clew.errors import warn
from clew.events.live_events import Happening, LiveValue, in_words
from clew.events.model import Source
from clew.events.tensor_text import short_dtype
from clew.session import Tracer, trace
from clew.views.text.style import suited, uncoloured

__all__ = ["DTYPE_ABBRS", "Trace", "TracingMode"]

_TENSORS = LiveValue, torch.Tensor

_CYAN, _DIM, _END = "\033[96m", "\033[2m", "\033[0m"

DTYPE_ABBRS = {
    dtype: short_dtype(str(dtype).removeprefix("torch."))
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
}


@dataclass(slots=True)
class Trace:
    """One op: what it was called with, the lines that led to it, outermost first, and its module.

    Torch's own lines are not among them, and the `frame` of each is None: none is kept. `module`
    is the path of the module that ran the op.
    """

    op_str: str
    stack: list[inspect.FrameInfo]
    module: str | None = None


class TracingMode:
    """Show each op, its shapes and its constants under the lines of code that ran it.

    `quiet` prints nothing; `traces`, `print()` and `format()` have it all. `succinct` shows a line
    once for all its ops in a row, otherwise once for each place in the line.
    """

    def __init__(
        self, _dispatch_key: Any = None, *, quiet: bool = False, succinct: bool = True,
        color: bool = True,
    ) -> None:  # fmt: skip
        if _dispatch_key is not None:  # which torch's own modes take
            warn(f"TracingMode does not heed {_dispatch_key}: ops are shown as they reach backends")
        self.traces: list[Trace] = []
        self._quiet = quiet
        self._succinct = succinct
        self._color = color
        self._shown: list[inspect.FrameInfo] = []
        # Frames by the id of the lines they are made of, which stay as long as the frames do.
        self._frames: dict[int, tuple[tuple[Source, ...], list[inspect.FrameInfo]]] = {}
        self._tracer: Tracer | None = None

    def __enter__(self) -> TracingMode:
        if self._tracer is None:
            self._tracer = trace(live=self, out=False)
        # The block is the caller's: lines above it are not part of what is traced.
        self._tracer._start(sys._getframe(1))
        return self

    def __exit__(self, *error: Any) -> None:
        tracer = self._tracer
        if tracer is not None:
            tracer.__exit__(*error)
            if not tracer.recording:
                self._tracer = None
                _tell_threads(tracer)

    def begins(self, event: Happening) -> None:
        """Do nothing: module calls are not shown."""

    def ends(self, event: Happening) -> None:
        """Add an op to `traces`, and print it unless quiet."""
        if event.kind != "op":
            return
        call = _op_to_str(event.name, *event.inputs, **event.keywords)
        if event.error is None:
            outcome = _arg_to_str(_returned(event.outputs), "()")
        else:
            outcome = f"!! {event.error.splitlines()[0]}"
        found = Trace(f"{call} -> {outcome}", self._stack(event.stack()), event.path)
        self.traces.append(found)
        if not self._quiet:
            lines = _lines(found, self._shown, self._succinct)
            self._shown = found.stack
            _write(_text(lines, self._color))

    def _stack(self, lines: tuple[Source, ...]) -> list[inspect.FrameInfo]:
        known = self._frames.get(id(lines))
        if known is None:
            known = self._frames[id(lines)] = lines, [*map(_frame, lines)]
        return known[1].copy()

    def print(self, *, succinct: bool = True) -> None:
        """Print everything seen so far."""
        if self.traces:
            _write(self.format(color=self._color, succinct=succinct))

    def format(self, *, color: bool = False, succinct: bool = True) -> str:
        """Return everything seen so far as text."""
        shown: list[inspect.FrameInfo] = []
        lines = []
        for found in self.traces:
            lines += _lines(found, shown, succinct)
            shown = found.stack
        return _text(lines, color)


def _tell_threads(tracer: Tracer) -> None:
    """Warn of threads whose ops may be missing."""
    kinds = ["ops outside module calls"]
    if threading.current_thread() is threading.main_thread():
        # From another thread's view the main one has always run.
        kinds += ["a thread that was not watched"]
    # The gaps themselves: `coverage` would read the whole trace.
    gaps = () if tracer._session is None else tracer._session.gaps
    threads = [gap.where for gap in gaps if gap.what in kinds]
    if threads:
        warn(
            "ops of other threads are shown only inside module calls; "
            f"open a TracingMode in a thread to see all of its ops: {', '.join(threads)}"
        )


def _text(lines: list[str], color: bool) -> str:
    return "\n".join(lines) if color else uncoloured("\n".join(lines))


def _write(text: str) -> None:
    if sys.stdout is not None:  # as in a program without a console
        sys.stdout.write(suited(f"{text}\n", sys.stdout))


def _frame(source: Source) -> inspect.FrameInfo:
    """Return a line as `inspect.stack()` has it."""
    text = linecache.getline(source.file, source.line)
    context = ([text], 0) if text else (None, None)
    frame_info: Any = inspect.FrameInfo  # which is typed to have a frame
    facts = None, source.file, source.line, source.function.rpartition(".")[2], *context
    if sys.version_info < (3, 11):
        return frame_info(*facts)  # type: ignore[no-any-return]
    columns = (source.col, source.end_col) if source.end_col else (None, None)
    positions = dis.Positions(source.line, source.end_line, *columns)
    return frame_info(*facts, positions=positions)


def _lines(found: Trace, shown: list[inspect.FrameInfo], succinct: bool) -> list[str]:
    """Return the lines that are new since the last op, and the op."""
    pairs = zip(found.stack, shown, strict=False)
    same = len([*takewhile(lambda pair: _is_same(*pair, succinct), pairs)])
    lines = []
    for depth in range(same, len(found.stack)):
        frame = found.stack[depth]
        where = f"# {_file(frame.filename)}:{frame.lineno} in {frame.function}:"
        lines.append(f"{'│ ' * depth}{_marked(frame)}  {_DIM}{where}{_END}")
        if depth < len(found.stack) - 1:
            lines.append(f"{'│ ' * (depth + 1)}{_DIM}⬇️{_END}")
    lines.append(f"{'│ ' * len(found.stack)}{_DIM}# {found.op_str};{_END}")
    return lines


def _is_same(mine: inspect.FrameInfo, theirs: inspect.FrameInfo, succinct: bool) -> bool:
    if mine is theirs:
        return True
    # File, line and function.
    return mine[1:4] == theirs[1:4] and (succinct or _positions(mine) == _positions(theirs))


def _positions(frame: inspect.FrameInfo) -> Any:
    """Return where in its lines the part is that runs; None before Python 3.11."""
    return getattr(frame, "positions", None)


def _file(file: str) -> str:
    """Return a file as seen from the current folder, an installed one from `site-packages` on."""
    installed = file.rfind(f"site-packages{os.sep}")
    here = os.path.join(os.getcwd(), "")
    return file[installed:] if installed >= 0 else file.removeprefix(here)


def _marked(frame: inspect.FrameInfo) -> str:
    """Return the source line with the part that runs in colour."""
    raw = frame.code_context[0] if frame.code_context else ""
    at = _positions(frame)
    if at is None or at.end_col_offset is None or at.lineno != at.end_lineno:
        return raw.strip()
    line, start, end = raw.encode(), at.col_offset, at.end_col_offset  # columns count bytes
    parts = line[:start], line[start:end], line[end:]
    before, inside, after = (part.decode(errors="replace") for part in parts)
    return f"{before}{_CYAN}{inside}{_END}{after}".strip()


def _op_to_str(op: Any, /, *args: Any, **kwargs: Any) -> str:
    """Return a call as `add.Tensor(f32[2], 1, alpha=2)`, of an op or its name in an event."""
    texts = [*map(_arg_to_str, args)]
    texts += [f"{key}={_arg_to_str(value)}" for key, value in kwargs.items()]
    return f"{_name(op)}({', '.join(texts)})"


def _returned(outputs: Any) -> Any:
    """Return what an op returned, without the arguments it wrote to, which an event names."""
    if not isinstance(outputs, dict):
        return outputs
    if "" in outputs:
        return outputs[""]
    return [item for key, item in outputs.items() if key.isdigit()] or None


@cache
def _name(op: Any) -> str:
    """Return `mul.Tensor`, with a namespace where that is not torch's own: `vision::nms`."""
    return str(op).removesuffix(".default").replace(".", "::", 1).removeprefix("aten::")


def _arg_to_str(arg: Any, brackets: str = "[]") -> str:
    return in_words(arg, _tensor_debug_string, brackets, _TENSORS)


def _tensor_debug_string(tensor: LiveValue | torch.Tensor) -> str:
    try:
        shape = tensor.shape
    except RuntimeError:  # strided nested tensors have none
        shape = None
    dtype = tensor.dtype  # a name in an event
    short = short_dtype(dtype) if isinstance(dtype, str) else DTYPE_ABBRS[dtype]
    return f"{short}{_stringify_shape(shape)}"


def _stringify_shape(shape: Iterable[Any] | None) -> str:
    # A size that differs from row to row is -1 in an event.
    return "[?]" if shape is None else f"[{', '.join(map(str, shape))}]".replace("-1", "?")

"""torch-code-tracing's `TracingMode` on Clew: every op under the source lines that led to it.

In come the events of a running trace, out go lines as that tool prints them. Unlike there, no
frame is held, the op that fails is shown, and colour is left out where it is not wanted.
"""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from clew.events.live import Happening, LiveValue, in_words
from clew.events.model import Source, short_dtype
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


@dataclass(frozen=True, slots=True)
class Trace:
    """One op: what it was called with, the lines that led to it, outermost first, and its module.

    Torch's own lines are not among them; `module` is the path of the module that ran it.
    """

    op_str: str
    stack: tuple[Source, ...]
    module: str | None = None


class TracingMode:
    """Show each op, its shapes and its constants under the lines of code that ran it.

    `quiet` prints nothing; `traces`, `print()` and `format()` have it all. `succinct` shows a line
    once for all its ops in a row, otherwise once for each place in the line.
    """

    def __init__(self, *, quiet: bool = False, succinct: bool = True, color: bool = True) -> None:
        self.traces: list[Trace] = []
        self._quiet = quiet
        self._succinct = succinct
        self._color = color
        self._shown: tuple[Source, ...] = ()
        self._tracer: Tracer | None = None

    def __enter__(self) -> TracingMode:
        self._tracer = trace(live=self)
        # The block is the caller's: lines above it are not part of what is traced.
        self._tracer._start(sys._getframe(1))
        return self

    def __exit__(self, *error: Any) -> None:
        if self._tracer is not None:
            self._tracer.__exit__(*error)
            self._tracer = None

    def begins(self, event: Happening) -> None:
        """Module calls are not shown."""

    def ends(self, event: Happening) -> None:
        """Take down an op, and print it."""
        if event.kind != "op":
            return
        call = _op_to_str(event.name, *event.inputs, **event.keywords)
        self.traces.append(Trace(f"{call} -> {_outcome(event)}", event.stack(), event.path))
        if not self._quiet:
            lines = _lines(self.traces[-1], self._shown, self._succinct)
            self._shown = self.traces[-1].stack
            sys.stdout.write(suited(_finished(lines, self._color), sys.stdout))

    def print(self, *, succinct: bool = True) -> None:
        """Print everything seen so far."""
        text = self.format(color=self._color, succinct=succinct)
        sys.stdout.write(suited(text, sys.stdout))

    def format(self, *, color: bool = False, succinct: bool = True) -> str:
        """Everything seen so far as text."""
        shown: tuple[Source, ...] = ()
        text = ""
        for found in self.traces:
            text += _finished(_lines(found, shown, succinct), color)
            shown = found.stack
        return text


def _finished(lines: list[str], color: bool) -> str:
    text = "".join(f"{line}\n" for line in lines)
    return text if color else uncoloured(text)


def _lines(found: Trace, shown: tuple[Source, ...], succinct: bool) -> list[str]:
    """The lines that are new since the last op, and the op."""
    same = 0
    for mine, theirs in zip(found.stack, shown, strict=False):
        if _place(mine, succinct) != _place(theirs, succinct):
            break
        same += 1
    lines = []
    for depth in range(same, len(found.stack)):
        source = found.stack[depth]
        where = f"# {_file(source)}:{source.line} in {_function(source)}:"
        lines.append(f"{'│ ' * depth}{_marked(source)}  {_DIM}{where}{_END}")
        if depth < len(found.stack) - 1:
            lines.append(f"{'│ ' * (depth + 1)}⬇️")
    lines.append(f"{'│ ' * len(found.stack)}# {found.op_str};")
    return lines


def _place(source: Source, succinct: bool) -> tuple[Any, ...]:
    columns = () if succinct else (source.col, source.end_col)
    return source.file, source.line, source.function, *columns


def _file(source: Source) -> str:
    """A file as seen from the current folder, an installed one from `site-packages` on."""
    installed = source.file.rfind(f"site-packages{os.sep}")
    here = os.path.join(os.getcwd(), "")
    return source.file[installed:] if installed >= 0 else source.file.removeprefix(here)


def _function(source: Source) -> str:
    return source.function.rpartition(".")[2] or source.function


def _marked(source: Source) -> str:
    """The source line with the part that runs in colour."""
    if source.line != source.end_line or source.end_col <= source.col:
        return source.text
    raw = linecache.getline(source.file, source.line)
    # Columns count from the start of the line, the text from its first letter.
    start, end = (
        column - (len(raw) - len(raw.lstrip())) for column in (source.col, source.end_col)
    )
    return f"{source.text[:start]}{_CYAN}{source.text[start:end]}{_END}{source.text[end:]}"


def _outcome(event: Happening) -> str:
    if event.error is not None:
        return f"!! {event.error.splitlines()[0]}"
    return _arg_to_str(event.outputs, "()")


def _op_to_str(op: Any, /, *args: Any, **kwargs: Any) -> str:
    """A call as `add.Tensor(f32[2], 1, alpha=2)`, of an op or what an event calls it."""
    texts = [*map(_arg_to_str, args)]
    texts += [f"{key}={_arg_to_str(value)}" for key, value in kwargs.items()]
    return f"{_name(op)}({', '.join(texts)})"


def _name(op: Any) -> str:
    """`mul.Tensor`, with its namespace where that is not torch's own: `vision::nms`."""
    if not isinstance(op, str):
        function = f"{op.__module__}.{op.__name__}"
        op = function.removeprefix("torch._ops.")
        if op == function:  # of Python, not an op
            return function
    return str(op).removesuffix(".default").replace(".", "::", 1).removeprefix("aten::")


def _arg_to_str(arg: Any, brackets: str = "[]") -> str:
    return in_words(arg, _tensor_debug_string, brackets, _TENSORS)


def _tensor_debug_string(tensor: LiveValue | torch.Tensor) -> str:
    try:
        shape = tensor.shape
    except RuntimeError:  # strided nested tensors have none
        shape = None
    return f"{short_dtype(str(tensor.dtype).removeprefix('torch.'))}{_stringify_shape(shape)}"


def _stringify_shape(shape: Iterable[Any] | None) -> str:
    # A size that differs from row to row is -1 in an event.
    return "[?]" if shape is None else f"[{', '.join(map(str, shape))}]".replace("-1", "?")

"""Tracy NN's `Tracer` on Clew: modules and operations with their shapes, printed as they run.

In come the events of a running trace, out go blocks as that tool prints them. Nothing is patched:
every operation is seen, modules with children too, and each block stands under the module that
ran it. Operands have the names they have in the source.
"""

from __future__ import annotations

import ast
import contextlib
import linecache
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from clew.events.live import Happening, LiveValue, in_words
from clew.events.model import Source
from clew.session import Tracer as _Tracer
from clew.session import trace as _trace
from clew.views.text.style import base_op, suited

__all__ = ["Color", "TensorOpsTracer", "Tracer", "trace_model"]
__version__ = "0.1.0"

_RULE = "-" * 80
# What is worth telling of a layer, by its class.
_PARAMETERS = {
    nn.Linear: ("in_features", "out_features"),
    nn.Conv1d: ("in_channels", "out_channels", "kernel_size", "stride", "padding"),
    nn.Conv2d: ("in_channels", "out_channels", "kernel_size", "stride", "padding"),
    nn.Conv3d: ("in_channels", "out_channels", "kernel_size", "stride", "padding"),
    nn.BatchNorm2d: ("num_features",),
    nn.Dropout: ("p",),
    nn.Embedding: ("num_embeddings", "embedding_dim"),
    nn.LayerNorm: ("normalized_shape",),
    nn.MultiheadAttention: ("embed_dim", "num_heads"),
}
# How an operator is written, and the ops that are its own; others that it runs make ready for them.
_OPERATORS: dict[type[ast.operator], tuple[str, tuple[str, ...]]] = {
    ast.MatMult: ("@", ("mm", "bmm", "mv", "dot")), ast.Add: ("+", ("add",)),
    ast.Sub: ("-", ("sub",)), ast.Mult: ("*", ("mul",)), ast.Div: ("/", ("div",)),
    ast.FloorDiv: ("//", ("floor_divide",)), ast.Mod: ("%", ("remainder",)),
    ast.Pow: ("**", ("pow",)),
}  # fmt: skip


class Color:
    """Escape codes; empty once `disable` was called, or where the output is no terminal."""

    BLUE = "\033[94m"
    CYAN = "\033[96m"
    GREEN = "\033[92m"
    YELLOW = "\033[93m"
    RED = "\033[91m"
    BOLD = "\033[1m"
    DIM = "\033[2m"
    END = "\033[0m"

    @classmethod
    def disable(cls) -> None:
        """Print without colour from here on."""
        for name in filter(str.isupper, list(vars(cls))):
            setattr(cls, name, "")


class TensorOpsTracer:
    """Prints operations; a `Tracer` has one."""

    def __init__(self, color_class: type[Color] = Color) -> None:
        self._color = color_class

    def show(self, event: Happening) -> list[str]:
        """An operation as a block of lines."""
        color, source = self._color, event.source
        where = f" @ [{_function(source)}]" if source is not None else ""
        name = base_op(event.name).rstrip("_") or event.name
        tensors = [value for value in event.inputs if _holds_tensor(value)]
        # What a library ran on behalf of a line has no names there.
        line = source if event.is_direct and _is_own(name, _segment(source)) else None
        shown, names = _expression(line, len(tensors))
        constants = ", ".join(_plain(v) for v in event.inputs if not _holds_tensor(v))
        lines = [f"{color.YELLOW}● {shown or f'Tensor.{name}({constants})'}{color.END}{where}"]
        for number, value in enumerate(tensors):
            label = names[number] if number < len(names) else "Input"
            lines.append(f"├─ {label}: {_shown(value)}")
        outcome = event.error.splitlines()[0] if event.error else _shown(event.outputs)
        lines.append(f"└─ {'Error' if event.error else _target(line)}: {outcome}")
        return lines


class Tracer:
    """Print the shapes that flow through a model, from `start` to `stop` or in a `with` block."""

    def __init__(self, name: str = "Neural Network") -> None:
        self.name = name
        self.tensor_ops_tracer = TensorOpsTracer(Color)
        self._tracer: _Tracer | None = None
        self._model: Callable[[], nn.Module | None] = lambda: None
        self._thread = 0
        self._here = _Here()

    def start(self, model: nn.Module) -> None:
        """Begin to print what runs."""
        if self._tracer is not None:
            _print(f"{Color.RED}● Tracer {self.name} is already active{Color.END}")
            return
        _print(_RULE, f"{Color.BOLD}● TRACING {self.name} STARTED{Color.END}", _RULE)
        self._model, self._thread = weakref.ref(model), threading.get_ident()
        self._tracer = _trace(model, live=self).start()

    def stop(self) -> None:
        """Stop printing."""
        if self._tracer is None:
            return
        tracer, self._tracer = self._tracer, None
        tracer.stop()
        _print(_RULE, f"{Color.BOLD}● TRACING {self.name} COMPLETE{Color.END}", _RULE)

    @contextlib.contextmanager
    def trace(self, model: nn.Module) -> Iterator[Tracer]:
        """Print what runs in the block."""
        self.start(model)
        try:
            yield self
        finally:
            self.stop()

    def __enter__(self) -> Tracer:
        return self

    def __exit__(self, *error: Any) -> None:
        self.stop()

    def begins(self, event: Happening) -> None:
        """A module is called."""
        module = event.module()
        if event.depth == 0:
            self._here.is_other = not _belong(module, self._model())
        if self._here.is_other:
            return
        title = f"{Color.GREEN}● {event.path or self.name} ({event.name}){Color.END}"
        title += _details(module)
        if event.depth == 0 and threading.get_ident() != self._thread:
            title += f" @ [thread {threading.current_thread().name}]"
        arguments = [*event.inputs, *event.keywords.values()]
        shown = ", ".join(_shown(value) for value in arguments if _holds_tensor(value)) or "N/A"
        self._block(event.depth, [title, f"├─ Input: {shown}"])

    def ends(self, event: Happening) -> None:
        """A module call or an operation is over."""
        is_other = self._here.is_other
        if event.kind == "module" and event.depth == 0:
            self._here.is_other = False
        if is_other:
            return
        if event.kind == "module":
            outcome = event.error.splitlines()[0] if event.error else _shown(event.outputs)
            label = "Error" if event.error else "Output"
            self._block(event.depth, [f"└─ {label}: {outcome}", "│"])
        elif event.kind == "op":
            self._block(event.depth, [*self.tensor_ops_tracer.show(event), "│"])

    def _block(self, depth: int, lines: list[str]) -> None:
        _print(*("│  " * depth + line for line in lines))


class _Here(threading.local):
    """Whether the module that runs in a thread, outermost, has nothing to do with the model."""

    is_other = False


def trace_model(model: nn.Module, name: str = "Quick Trace") -> Tracer:
    """A tracer with a name."""
    return Tracer(name)


def _print(*lines: str) -> None:
    sys.stdout.write(suited("".join(f"{line}\n" for line in lines), sys.stdout))


def _belong(module: Any, model: nn.Module | None) -> bool:
    """Whether one of two modules is in the other."""
    if module is None or model is None:
        return True
    return any(m is module for m in model.modules()) or any(m is model for m in module.modules())


def _details(module: Any) -> str:
    for cls, names in _PARAMETERS.items():
        if isinstance(module, cls):
            return f" ({', '.join(f'{n}={getattr(module, n)}' for n in names)})"
    return ""


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, (list, dict)):
        return any(map(_holds_tensor, value.values() if isinstance(value, dict) else value))
    return isinstance(value, LiveValue)


def _shown(value: Any) -> str:
    return in_words(
        value, lambda v: f"{v.cls} [{v.sizes}] torch.{v.dtype} @ {v.device}", brackets="()"
    )


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _function(source: Source) -> str:
    return source.function.replace(".<locals>", "")


def _segment(source: Source | None) -> ast.expr | None:
    """The expression that ran, as Python reads it."""
    if source is None or source.line != source.end_line or source.end_col <= source.col:
        return None
    line = linecache.getline(source.file, source.line).encode()
    try:
        return ast.parse(line[source.col : source.end_col].decode(), mode="eval").body
    except (SyntaxError, UnicodeDecodeError):
        return None


def _is_own(op: str, found: ast.expr | None) -> bool:
    """Whether an op is what an expression stands for, and not one that it needs on the way."""
    if not isinstance(found, ast.BinOp) or type(found.op) not in _OPERATORS:
        return True
    return op in _OPERATORS[type(found.op)][1]


def _expression(source: Source | None, tensors: int) -> tuple[str | None, list[str]]:
    """An operator as it stands in the source, with the names of those operands that are tensors.

    No names where it cannot be told which of the operands is the one that is a tensor.
    """
    found = _segment(source)
    if not isinstance(found, ast.BinOp) or type(found.op) not in _OPERATORS:
        return None, []
    sides = [side for side in (found.left, found.right) if not isinstance(side, ast.Constant)]
    if tensors < len(sides) and not isinstance(found.op, ast.Add | ast.Mult):
        sides = sides[:tensors]
    shown = f"{ast.unparse(found.left)} {_OPERATORS[type(found.op)][0]} {ast.unparse(found.right)}"
    return shown, [ast.unparse(side) for side in sides] if len(sides) == tensors else []


def _target(source: Source | None) -> str:
    """The name an operation's result is given, if it is the whole of an assignment."""
    found = _segment(source)
    if source is None or found is None:
        return "Output"
    try:
        [statement] = ast.parse(source.text).body
    except (SyntaxError, ValueError):
        return "Output"
    if isinstance(statement, ast.Assign) and ast.dump(statement.value) == ast.dump(found):
        return ", ".join(map(ast.unparse, statement.targets))
    return "Output"

"""Tracy NN's `Tracer` on Clew: modules and operations with their shapes, printed as they run.

Input: the events of a running trace. Output: blocks as that tool prints them. Nothing is patched:
every operation is seen, modules with children too, and each block stands under the module that
ran it. Operands have the names they have in the source.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from clew.compat.engine.expressions import Wording
from clew.events.live_events import Happening, in_words, values_in
from clew.session import Tracer as _Tracer
from clew.session import trace as _trace
from clew.views.text.style import base_op, suited

__all__ = ["Color", "TensorOpsTracer", "Tracer", "trace_model"]
__version__ = "0.1.0"

_RULE = "-" * 80
# The settings of a layer that are printed, by its class.
_PARAMETERS: dict[Any, tuple[str, ...]] = {
    nn.Linear: ("in_features", "out_features"),
    (nn.Conv1d, nn.Conv2d, nn.Conv3d): (
        "in_channels", "out_channels", "kernel_size", "stride", "padding",
    ),
    nn.BatchNorm2d: ("num_features",),
    nn.Dropout: ("p",),
    nn.Embedding: ("num_embeddings", "embedding_dim"),
    nn.LayerNorm: ("normalized_shape",),
    nn.MultiheadAttention: ("embed_dim", "num_heads"),
}  # fmt: skip


class Color:
    """Escape codes; empty once `disable` was called, or where the output is no terminal."""

    PURPLE, BLUE, CYAN, DARKCYAN = "\033[95m", "\033[94m", "\033[96m", "\033[36m"
    GREEN, YELLOW, ORANGE, RED = "\033[92m", "\033[93m", "\033[38;5;208m", "\033[91m"
    GREY, BOLD, DIM, UNDERLINE = "\033[90m", "\033[1m", "\033[2m", "\033[4m"
    END = "\033[0m"

    @classmethod
    def disable(cls) -> None:
        """Print without colour from here on."""
        for name in filter(str.isupper, list(vars(cls))):
            setattr(cls, name, "")


class TensorOpsTracer:
    """Prints operations; a `Tracer` has one."""

    def __init__(self, color_class: type[Color] = Color) -> None:
        self.Color = color_class
        self._wording = Wording()

    def show(self, event: Happening) -> list[str]:
        """Return an operation as a block of lines."""
        color = self.Color
        where = f" @ [{event.caller.replace('.<locals>', '')}]" if event.caller else ""
        op = base_op(event.name).rstrip("_") or event.name
        words = self._wording.of(event, op)
        inputs, constants = [], []
        for at, value in enumerate(event.inputs):
            if any(values_in(value)):
                name, shown = words.inputs.get(at, ("Input", value))
                inputs.append(f"├─ {name}: {_shown(shown)}")
            else:
                constants.append(_plain(value))
        title = words.text or f"Tensor.{op}({', '.join(constants)})"
        end = _outcome(event, words.output or "Output")
        return [f"{color.YELLOW}● {title}{color.END}{where}", *inputs, end]


class Tracer:
    """Print the shapes that flow through a model, from `start` to `stop` or in a `with` block."""

    def __init__(self, name: str = "Neural Network") -> None:
        self.name = name
        self.tensor_ops_tracer = TensorOpsTracer(Color)
        # Nothing is hooked or patched, so nothing is in these.
        self.hooks: list[Any] = []
        self.original_methods: dict[str, Any] = {}
        self.original_tensor_methods: dict[str, Any] = {}
        self._tracer: _Tracer | None = None
        self._modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._model: Callable[[], nn.Module | None] = lambda: None
        self._thread = 0
        self._here = _ModelCall()

    @property
    def _is_active(self) -> bool:
        return self._tracer is not None

    def start(self, model: nn.Module) -> None:
        """Begin to print what runs."""
        if self._is_active:
            _print(f"{Color.RED}● Tracer {self.name} is already active{Color.END}")
            return
        _print(_RULE, f"{Color.BOLD}● TRACING {self.name} STARTED{Color.END}", _RULE)
        self._model, self._modules = weakref.ref(model), weakref.WeakSet(model.modules())
        self._thread, self._here = threading.get_ident(), _ModelCall()
        self._tracer = _trace(model, live=self, out=False).start()

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
        """Print the name and the inputs of a module call that begins."""
        module, path, here = event.module(), event.path or "", self._here
        if here.depth is None:
            # The path of what wraps the model, such as a compiled one, is the model's.
            if path and module not in self._modules:
                return
            here.depth, here.path = event.depth, path if module is self._model() else ""
        depth = event.depth - here.depth
        path = "" if path == here.path else path.removeprefix(f"{here.path}.")
        title = f"{Color.GREEN}● {path or self.name} ({event.name}){Color.END}"
        title += _details(module)
        if depth == 0 and threading.get_ident() != self._thread:
            title += f" @ [thread {threading.current_thread().name}]"
        arguments = [*event.inputs, *event.keywords.values()]
        shown = ", ".join(_shown(value) for value in arguments if any(values_in(value))) or "N/A"
        _print(title, f"├─ Input: {shown}", depth=depth)

    def ends(self, event: Happening) -> None:
        """Print an operation, or the result of a module call, when it is over."""
        here = self._here
        if event.kind == "op" and (here.depth is not None or not event.depth):
            lines = self.tensor_ops_tracer.show(event)
            _print(*lines, "│", depth=event.depth - (here.depth or 0))
        elif event.kind == "module" and here.depth is not None:
            _print(_outcome(event, "Output"), "│", depth=event.depth - here.depth)
            if event.depth == here.depth:
                here.depth = None


class _ModelCall(threading.local):
    """The depth of the model's call in this thread, None outside any, and the path it has there."""

    depth: int | None = None
    path = ""


def trace_model(model: nn.Module, name: str = "Quick Trace") -> Tracer:
    """Return a tracer with a name."""
    return Tracer(name)


def _print(*lines: str, depth: int = 0) -> None:
    text = "".join("│  " * depth + f"{line}\n" for line in lines)
    sys.stdout.write(suited(text, sys.stdout))


def _details(module: Any) -> str:
    for cls, names in _PARAMETERS.items():
        if isinstance(module, cls):
            return f" ({', '.join(f'{n}={getattr(module, n)}' for n in names)})"
    return ""


def _shown(value: Any) -> str:
    return in_words(
        value, lambda v: f"{v.cls} [{v.sizes}] torch.{v.dtype} @ {v.device}", brackets="()"
    )


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _outcome(event: Happening, name: str) -> str:
    if event.error:
        return f"└─ Error: {event.error.splitlines()[0]}"
    return f"└─ {name}: {_shown(event.outputs)}"

"""Tracy NN's `Tracer` on Clew: modules and operations with their shapes, printed as they run.

In come the events of a running trace, out go blocks as that tool prints them. Nothing is patched:
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

from clew.analysis.expressions import Wording
from clew.events.live import Happening, in_words, values_in
from clew.session import Tracer as _Tracer
from clew.session import trace as _trace
from clew.views.text.style import base_op, suited

__all__ = ["Color", "TensorOpsTracer", "Tracer", "trace_model"]
__version__ = "0.1.0"

_RULE = "-" * 80
# What is worth telling of a layer, by its class.
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
        self._wording = Wording()

    def show(self, event: Happening) -> list[str]:
        """An operation as a block of lines."""
        color, source = self._color, event.source
        where = f" @ [{source.function.replace('.<locals>', '')}]" if source is not None else ""
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
        shown = ", ".join(_shown(value) for value in arguments if any(values_in(value))) or "N/A"
        _print(title, f"├─ Input: {shown}", depth=event.depth)

    def ends(self, event: Happening) -> None:
        """A module call or an operation is over."""
        is_other = self._here.is_other
        if event.kind == "module" and event.depth == 0:
            self._here.is_other = False
        if is_other:
            return
        if event.kind == "module":
            _print(_outcome(event, "Output"), "│", depth=event.depth)
        elif event.kind == "op":
            _print(*self.tensor_ops_tracer.show(event), "│", depth=event.depth)


class _Here(threading.local):
    """Whether the module that runs in a thread, outermost, has nothing to do with the model."""

    is_other = False


def trace_model(model: nn.Module, name: str = "Quick Trace") -> Tracer:
    """A tracer with a name."""
    return Tracer(name)


def _print(*lines: str, depth: int = 0) -> None:
    text = "".join("│  " * depth + f"{line}\n" for line in lines)
    sys.stdout.write(suited(text, sys.stdout))


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

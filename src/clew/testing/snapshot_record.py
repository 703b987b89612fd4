"""Run a model and take down what a snapshot keeps of it.

Input: a model or function with its inputs. Output: a `SnapshotRun`: a line for each input, module
call, and gradient, and the line of the program that each call came from. Buffers and random
generators are left as they were; what the model writes to its inputs is written to copies.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clew.errors import ClewError
from clew.events.fingerprint import Fingerprint, fingerprint_of
from clew.events.model import Source
from clew.events.statistics import array_statistics
from clew.events.tensor_text import short_dtype
from clew.machinery import MACHINERY
from clew.replay.calling import copied
from clew.replay.model_state import unchanged
from clew.replay.nested_tensors import floats_in
from clew.replay.perturbing import perturb
from clew.replay.random_state import RandomState, random_state
from clew.run.event import Event
from clew.run.value import Value
from clew.session import trace
from clew.testing.snapshot_text import COUNTS, EXTREMES, MOMENTS, SnapshotLine, usual_tolerance
from clew.traces import Trace

# What the root module is called in a snapshot.
ROOT = "(root)"


@dataclass(frozen=True, slots=True)
class SnapshotRun:
    """One run of a model: its lines, where each came from, what was returned, and the trace."""

    lines: tuple[SnapshotLine, ...]
    sources: Mapping[str, Source]
    result: Any
    trace: Trace


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check runs: a model or function with its arguments, from one random state."""

    model: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    loss: Callable[[Any], Tensor] | None
    start: RandomState

    @property
    def module(self) -> nn.Module | None:
        """Return the module that is called, or whose method is."""
        found: object = self.model
        while isinstance(found, partial):
            found = found.func
        found = getattr(found, "__self__", found)
        return found if isinstance(found, nn.Module) else None

    def record(self, failed: Callable[[Trace], None] = lambda t: None) -> SnapshotRun:
        """Run it once; `failed` gets the trace if the model raises."""
        weights = _weights(self.module)
        given = {**{str(at): one for at, one in enumerate(self.args)}, **self.kwargs}
        inputs = [_of_tensor(f"input:{path}", tensor) for path, tensor in _named_tensors(given)]
        with self._ready() as call:
            tracer = trace(self.module, level="modules", values="fingerprint")
            try:
                with tracer:
                    result = call()
            except BaseException:
                failed(tracer)
                raise
            gradients = list(self._gradients(result))
        calls = sorted(tracer.modules, key=_ending)
        lines = [line for call in calls for line in _of_call(call, weights)]
        if self.module is None:
            lines += [_of_tensor(f"result:{path}", one) for path, one in _named_tensors(result)]
        sources = {
            _call_name(one): one.source
            for one in calls
            if one.source is not None and not is_library(one.source)
        }
        return SnapshotRun((*inputs, *lines, *gradients), sources, result, tracer)

    def perturbed(self, seed: int) -> SnapshotRun | None:
        """Run it with weights moved by one unit in the last place; None if there are none."""
        if self.module is None:
            return None
        with unchanged([self.module]):
            return self.record() if perturb(self.module, seed) else None

    def with_ops(self) -> Trace:
        """Run it once more with every op: which lines of the program a call runs."""
        with self._ready() as call, trace(self.module) as found:
            call()
        return found

    @contextmanager
    def _ready(self) -> Iterator[Callable[[], Any]]:
        args, kwargs = copied(self.args), copied(dict(self.kwargs))
        with unchanged([self.module], weights=False):
            self.start.restore()
            yield partial(self.model, *args, **kwargs)

    def _gradients(self, result: Any) -> Iterator[SnapshotLine]:
        """Give a line for each parameter's gradient, from the last parameter to the first.

        That is about the order in which a backward pass reaches them. `.grad` stays as it is.
        """
        if self.loss is None:
            return
        if self.module is None:
            raise ClewError("gradients are of a module's parameters: give check() the module")
        named = [pair for pair in self.module.named_parameters() if pair[1].requires_grad]
        named.reverse()
        grads: tuple[Tensor | None, ...] = torch.autograd.grad(
            self.loss(result), [one for _, one in named], allow_unused=True
        )
        for (name, _), grad in zip(named, grads, strict=True):
            line = SnapshotLine(f"{name}:grad", "Tensor", "none", {}, usual_tolerance("none"))
            yield line if grad is None else _of_tensor(line.name, grad)


def checked(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    gradients: bool | Callable[[Any], Tensor],
) -> Checked:
    """Check what was given to `check`; ClewError says what is expected instead."""
    if not callable(model):
        raise ClewError(f"check() takes a model or function, not {type(model).__name__}")
    loss = None if gradients is False else weighted_sum if gradients is True else gradients
    return Checked(model, args, kwargs, loss, random_state())


def weighted_sum(result: Any) -> Tensor:
    """Return a number to go backward from: the result if it is one, else a sum of its elements.

    Each element has a weight of its own, between -1 and 1. Of a plain sum, or a sum of squares, the
    gradient is 0 where a softmax or a normalization comes last.
    """
    floats = [tensor for tensor in floats_in(_plain(result)) if tensor.requires_grad]
    if not floats:
        raise ClewError("gradients=True: nothing that the model returned requires a gradient")
    if len(floats) == 1 and floats[0].numel() == 1:
        return floats[0].sum()
    parts = []
    for one in floats:
        places = torch.arange(one.numel(), dtype=torch.float64, device=one.device)
        weights = places * 0.6180339887498949 % 1 * 2 - 1
        parts.append((one.double().flatten() * weights).sum() / max(one.numel(), 1) ** 0.5)
    return torch.stack(parts).sum()


def made_with(recording: SnapshotRun) -> tuple[str, ...]:
    """Return what the numbers of a recording may depend on besides the program."""
    devices = {
        v.device.partition(":")[0] for e in recording.trace.modules for v in e.outputs.values()
    }
    gpus = [torch.cuda.get_device_name()] if "cuda" in devices else []
    return (
        f"torch {torch.__version__}",
        "python {}.{}".format(*sys.version_info),
        f"{platform.system()} {platform.machine()}",
        torch.backends.cpu.get_cpu_capability(),
        f"default {str(torch.get_default_dtype()).removeprefix('torch.')}",
        *gpus,
    )


def is_library(source: Source) -> bool:
    """Return whether a line is torch's or Clew's own, which says nothing about the program."""
    return source.file.startswith(MACHINERY.libraries)


def _ending(call: Event) -> tuple[float, int]:
    return call.start + (call.duration or 0.0), -call.id


def _call_name(call: Event) -> str:
    return (call.module or ROOT) + (f"#{call.call}" if call.call else "")


def _of_call(call: Event, weights: Mapping[str, float]) -> list[SnapshotLine]:
    """Return a line for each tensor that a call returned; one without numbers if there is none."""
    name, own = _call_name(call), weights.get(call.module or "")
    found = [
        _of_value(f"{name}:{path}" if path else name, call.name, value)
        for path, value in call.outputs.items()
        if value.shape is not None and value.stats is not None
    ] or [SnapshotLine(name, call.name, "none", {}, usual_tolerance("none"))]
    if own is not None:
        found[0] = replace(found[0], numbers={**found[0].numbers, "weights": (own,)})
    return found


def _of_value(name: str, cls: str, value: Value) -> SnapshotLine:
    stats = value.stats
    facts = {} if stats is None else {
        key: getattr(stats, key) for key in (*MOMENTS, *EXTREMES, *COUNTS)
    }  # fmt: skip
    return _line(name, cls, value.dtype, value.shape or (), facts, value.fingerprint)


def _of_tensor(name: str, tensor: Tensor) -> SnapshotLine:
    array = _numbers(tensor)
    dtype = str(tensor.dtype).removeprefix("torch.")
    stats = array_statistics(array) or {}
    return _line(name, "Tensor", dtype, tuple(tensor.shape), stats, fingerprint_of(array))


def _numbers(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Return the elements of a tensor as NumPy has them, floating point ones as float64."""
    dense = tensor.detach().cpu()
    dense = dense.to_dense() if dense.layout != torch.strided else dense
    dense = dense.dequantize() if dense.is_quantized else dense
    wide = dense.double() if dense.is_floating_point() else dense
    return np.asarray(wide.resolve_conj().resolve_neg().numpy())


def _line(
    name: str, cls: str, dtype: str, shape: tuple[int, ...], stats: Mapping[str, Any],
    fingerprint: Fingerprint | None,
) -> SnapshotLine:  # fmt: skip
    numbers: dict[str, tuple[float, ...]] = {
        key: (float(stats[key]),)
        for key in (*MOMENTS, *EXTREMES)
        if stats.get(key) is not None and not np.isnan(stats[key])
    }
    if fingerprint is not None and numbers and fingerprint.count > 1:
        numbers["axes"] = tuple(
            _weighted(sums) / fingerprint.count for sums in fingerprint.marginals if len(sums) > 1
        )
        numbers = {key: found for key, found in numbers.items() if found}
    numbers |= {key: (float(stats[key]),) for key in COUNTS if stats.get(key)}
    look = f"{short_dtype(dtype)}[{','.join(map(str, shape))}]"
    return SnapshotLine(name, cls, look, numbers, usual_tolerance(look))


def _weighted(sums: tuple[float, ...]) -> float:
    """Add up sums along an axis, each times a number of its own: other orders give other totals."""
    places = np.arange(1, len(sums) + 1)
    return float(np.dot(np.cos(places * places + 0.5), sums))


def _weights(module: nn.Module | None) -> dict[str, float]:
    """Return for each module the norm of the parameters and buffers that it holds itself."""
    found = {}
    for path, part in module.named_modules() if module is not None else ():
        own = [*part.parameters(recurse=False), *part.buffers(recurse=False)]
        own = [one for one in own if not one.is_meta and not torch.nn.parameter.is_lazy(one)]
        if own:
            squares = (float(np.square(np.abs(_numbers(one).astype(complex))).sum()) for one in own)
            found[path] = sqrt(sum(squares))
    return found


def _named_tensors(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Give the tensors of a nesting with their paths: keywords by their names."""
    value = _plain(value)
    if isinstance(value, Tensor):
        yield path or "0", value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _named_tensors(part, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for at, part in enumerate(value):
            yield from _named_tensors(part, f"{path}.{at}" if path else str(at))


def _plain(value: Any) -> Any:
    """Return a result that is an object, such as one of a dataclass, as a dict of its fields."""
    fields = getattr(type(value), "__dataclass_fields__", None)
    if fields is None or isinstance(value, Mapping):
        return value
    return {name: getattr(value, name, None) for name in fields}

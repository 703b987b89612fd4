"""What a program left behind, in bytes: to compare a run that was traced with one that was not.

Also what a trace may have installed in the process, and what failed inside Clew.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
import torch.nn.modules.module as nn_module
from torch import Tensor, nn
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    is_in_any_mode_without_ignore_compile_internals,
    is_in_torch_dispatch_mode,
)

from clew.observe import taps
from clew.session import tracer
from tests.models import Built, leaves

Outcome = dict[str, Any]

# Begins the names of what torch itself does a little differently while any dispatch mode is on:
# a view made by `view` and not by `_reshape_alias`, gradients added up by `add` and not by `add_`.
STRUCTURE = "structure"

_STATM = "/proc/self/statm"
HAS_PROC = os.path.exists(_STATM)
MEGABYTE = 1 << 20


def seed_everything() -> None:
    """Set the three random number generators that programs use."""
    torch.manual_seed(1)
    random.seed(2)
    np.random.seed(3)


def random_states() -> Outcome:
    """The states of the three random number generators."""
    algorithm, keys, *rest = np.random.get_state()
    return {
        "torch random": torch.get_rng_state().numpy().tobytes(),
        "python random": random.getstate(),
        "numpy random": (algorithm, keys.tobytes(), *rest),
    }


def facts(tensor: Tensor) -> tuple[Any, ...]:
    """Everything of a tensor that a program could notice, its bits included."""
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return (
        type(tensor).__name__, tensor.dtype, tuple(tensor.shape), tensor.stride(),
        tensor.requires_grad, tensor.is_leaf, raw,
    )  # fmt: skip


def graph(tensor: Tensor) -> Counter[str]:
    """How often each kind of autograd node lies behind a tensor."""
    pending, seen = [tensor.grad_fn], set()
    while pending:
        node = pending.pop()
        if node is not None and node not in seen:
            seen.add(node)
            pending += [parent for parent, _ in node.next_functions]
    return Counter(node.name() for node in seen)


def train(
    build: Callable[[], Built], tracer: Callable[[nn.Module], AbstractContextManager[Any]]
) -> Outcome:
    """Two training steps and an evaluation under `tracer`, and all they left behind."""
    seed_everything()
    model, inputs = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    found: Outcome = {}
    with tracer(model):
        model.train()
        for step in range(2):
            out = model(**inputs)
            out["loss"].backward()
            found[f"{STRUCTURE} of step {step}"] = structure(model, out["loss"])
            found |= {f"step {step} {path}": facts(t) for path, t in leaves(out).items()}
            found |= {f"step {step} grad {name}": facts(g) for name, g in gradients(model)}
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            found |= {f"eval {path}": facts(t) for path, t in leaves(model(**inputs)).items()}
    found |= {f"parameter {name}": facts(p) for name, p in model.named_parameters()}
    found |= {f"buffer {name}": facts(b) for name, b in model.named_buffers()}
    return found | random_states()


def structure(model: nn.Module, loss: Tensor) -> tuple[Any, ...]:
    """How a loss came about and its gradients were summed up."""
    return graph(loss), {name: gradient._version for name, gradient in gradients(model)}


def gradients(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The gradients of a model's parameters, by name."""
    return ((name, p.grad) for name, p in model.named_parameters() if p.grad is not None)


class PassingMode(TorchDispatchMode):
    """Calls each op and does nothing else: the least that seeing ops can change."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **kwargs or {})

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Spares the seconds that torch takes to load its compiler for the default."""
        return False


def passing(model: nn.Module) -> AbstractContextManager[Any]:
    """The tracer that sees ops and does nothing."""
    return PassingMode()


def untraced(model: nn.Module) -> AbstractContextManager[None]:
    """The tracer that does not trace."""
    return nullcontext()


def least_change() -> Callable[[nn.Module], AbstractContextManager[Any]]:
    """The tracer that changes the least of all that see ops with the engine of the tests.

    A dispatch mode changes what it sees; the native engine nothing.
    """
    return untraced if os.environ["CLEW_ENGINE"] == "native" else passing


def differing(a: Outcome, b: Outcome) -> list[str]:
    """What is not the same in two outcomes."""
    return [key for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)]


def installed() -> Outcome:
    """Everything in the process that a trace might have put there."""
    registries = {
        name: dict(registry)
        for name, registry in vars(nn_module).items()
        if name.startswith("_global_") and isinstance(registry, dict)
    }
    return {
        **registries,
        "modes": _get_current_dispatch_mode_stack(),
        "mode flags": (
            is_in_torch_dispatch_mode(),
            is_in_torch_dispatch_mode(include_infra_modes=False),
            is_in_any_mode_without_ignore_compile_internals(),
        ),
        "function modes": torch.overrides._get_current_function_mode_stack(),
        "swap_tensors": (torch.utils.swap_tensors, torch.utils.swap_tensors.__code__),
        "torch.utils": dict(vars(torch.utils)),
        "warnings": list(warnings.filters),
        "showwarning": warnings.showwarning,
        "settrace": sys.gettrace(),
        "setprofile": (sys.getprofile(), threading.getprofile()),
        "excepthook": sys.excepthook,
        "start of threads": threading.Thread.start,
        "grad mode": torch.is_grad_enabled(),
        "module call": nn.Module.__call__,
        "tensor backward": Tensor.backward,
        "listeners to taps": taps.listeners(),
        "active traces": list(tracer._active),
    }


def clean_up(before: Outcome) -> None:
    """Take away what a failed test left installed, so that the next one fails for itself only."""
    while len(_get_current_dispatch_mode_stack()) > len(before["modes"]):
        _pop_mode()
    for name, registry in before.items():
        if name.startswith("_global_"):
            vars(nn_module)[name].clear()
            vars(nn_module)[name].update(registry)
    vars(torch.utils).update(before["torch.utils"])
    tracer._active.clear()


def resident() -> int:
    """How much memory the process holds, in bytes."""
    with open(_STATM) as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def faults(trace: Any) -> list[str]:
    """What Clew itself failed at while it recorded."""
    return [str(gap) for gap in trace.coverage if "Clew failed" in gap.why]


def call_around(event: Any) -> Any:
    """Return the module call an event ran in, through the composites around it; None if in none."""
    above = event.parent
    while above is not None and above.kind == "composite":
        above = above.parent
    return above


def guess(note: str) -> str | None:
    """Return the guess of a crash note."""
    guesses = [line.partition("perhaps: ")[2] for line in note.splitlines() if "perhaps:" in line]
    assert len(guesses) <= 1
    return guesses[0] if guesses else None

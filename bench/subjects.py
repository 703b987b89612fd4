"""What is compared: the floors, Clew, and the other ways to see every op.

Each takes a workload's model and run and returns a function that does it once, entering and
leaving included.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

import clew
from bench.timing import Subject
from bench.workloads import Workload


class OnlyCall(TorchDispatchMode):
    """The least a dispatch mode can do: call the op."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*args, **kwargs) if kwargs else func(*args)


class StackPerOp(TorchDispatchMode):
    """The way of torch-code-tracing: `inspect.stack()` and a line of text for each op."""

    def __init__(self) -> None:
        super().__init__()
        self.traces: list[tuple[str, list[inspect.FrameInfo]]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        frames = reversed(inspect.stack()[1:])
        stack = [frame for frame in frames if "site-packages/torch" not in frame.filename]
        arguments = ", ".join(map(_text, args))
        self.traces.append((f"{func}({arguments}) -> {_text(out)}", stack))
        return out


def _text(value: Any) -> str:
    return f"{value.dtype}{list(value.shape)}" if hasattr(value, "shape") else str(value)


def untraced(work: Workload) -> Subject:
    """The program by itself."""
    return work.run


def empty_mode(work: Workload) -> Subject:
    """The floor of recording ops."""
    return _inside(work, OnlyCall)


def empty_hooks(work: Workload) -> Subject:
    """The floor of recording module calls."""

    def run() -> object:
        before = register_module_forward_pre_hook(lambda module, args: None)
        after = register_module_forward_hook(lambda module, args, out: None)
        try:
            return work.run()
        finally:
            before.remove()
            after.remove()

    return run


def guarded(work: Workload) -> Subject:
    """`clew.guard`, which raises for NaN and Inf."""
    return _inside(work, clew.guard)


def traced(work: Workload, **options: Any) -> Subject:
    """Clew."""

    def run() -> object:
        with clew.trace(work.model, **options) as trace:
            work.run()
        return trace

    return run


def recorded(work: Workload, **options: Any) -> Subject:
    """Clew's flight recorder, over one step: the same recorder each time."""
    recorder = clew.recorder(work.model, triggers=["nonfinite", "loss_spike"], **options)

    def run() -> object:
        recorder.start()
        recorder.step(loss=work.run())
        recorder.stop()
        return recorder

    return run


def debug_mode(work: Workload) -> Subject:
    """torch's own DebugMode, told to record what Clew records."""
    from torch.utils._debug_mode import DebugMode

    return _inside(
        work,
        lambda: DebugMode(record_nn_module=True, record_stack_trace=True, record_ids=True),
    )


def profiler(work: Workload) -> Subject:
    """torch.profiler with shapes and stacks."""
    from torch.profiler import ProfilerActivity, profile

    def run() -> object:
        recorder = profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_stack=True)
        with recorder:
            work.run()
        return recorder

    return run


def stack_per_op(work: Workload) -> Subject:
    """A dispatch mode that asks `inspect` for the stack at each op."""
    return _inside(work, StackPerOp)


def _inside(work: Workload, mode: Callable[[], Any]) -> Subject:
    def run() -> object:
        with mode() as entered:
            work.run()
        return entered

    return run

"""What really ran, told by others than Clew. Four runs of a program are compared:

| fact | true is |
|---|---|
| `kernels`: which ops reached a kernel, on what shapes | torch.profiler, without any mode |
| `ops`, `arguments`, `shapes`, `producers`, `raised` | a dispatch mode that keeps all memory |
| `lines`, `modules`, `phases` of forward ops | the same, by the frames on the stack |
| `lines` of backward ops | anomaly mode: each autograd node keeps the stack that made it |
| `modules` of backward ops | the module of the op that made the node, by the node's number |
| `results`, `rng` | the program alone |

The profiler sees what the program does when nobody looks. It knows neither results nor arguments,
so identity comes from `tests/conformance/witness.py`, in the dumbest way there is: no memory it
meets is ever freed, every byte an op was given is compared before and after.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._C._profiler import _ExperimentalConfig, _TensorMetadata
from torch.profiler import ProfilerActivity, profile

from tests.conformance.normalise import Facts, SeenOp, flat
from tests.conformance.programs import Prepared
from tests.outcomes import random_states, seed_everything

# The name of an op among others that the profiler gives.
_OP = re.compile(r"\w+::\w+(\.\w+)?")


@dataclass
class Outcome:
    """What a program left behind, bit for bit."""

    results: list[Any]
    rng: dict[str, Any]


def prepare(build: Callable[[], Prepared]) -> Prepared:
    """Build a program as every run of it begins."""
    seed_everything()
    return build()


def outcome(prepared: Prepared, found: Any) -> Outcome:
    """Everything a run gave, the gradients and buffers of its model, the random states."""
    results = [bits(leaf) for _, leaf in flat(found)]
    if prepared.model is not None:
        for _, p in prepared.model.named_parameters():
            results += [bits(p), bits(p.grad)]
        results += [bits(b) for _, b in prepared.model.named_buffers()]
    return Outcome(results, random_states())


def bits(value: Any) -> Any:
    """A result as data that is equal for equal bits."""
    if not isinstance(value, Tensor):
        return repr(value)
    about = (str(value.dtype), tuple(value.shape), value.requires_grad)
    plain = value.detach()
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    plain = plain.resolve_conj().resolve_neg().contiguous()
    return (*about, plain.reshape(-1).view(torch.uint8).numpy().tobytes())


def alone(build: Callable[[], Prepared]) -> Outcome:
    """Run a program while nobody looks."""
    prepared = prepare(build)
    return outcome(prepared, prepared.run())


def profiled(build: Callable[[], Prepared]) -> list[SeenOp]:
    """The ops that reach a kernel while nobody but the profiler looks."""
    prepared = prepare(build)
    config = _ExperimentalConfig(capture_overload_names=True, profile_all_threads=True)
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True, experimental_config=config
    ) as profiler:
        prepared.run()
    roots = profiler.profiler.kineto_results.experimental_event_tree()
    threads: dict[int, str] = {}
    pending, ops = sorted(roots, key=lambda event: -event.start_time_ns), []
    while pending:
        event = pending.pop()
        full = f"{event.name}.{event.overload_name}" if event.overload_name else event.name
        is_op = _OP.fullmatch(full) and torch._C._dispatch_has_kernel(full)
        if not is_op or _is_composite(full):
            pending += sorted(event.children, key=lambda event: -event.start_time_ns)
            continue
        thread = threads.setdefault(event.start_tid, f"thread {len(threads)}")
        name = f"{event.name.replace('::', '.')}.{event.overload_name or 'default'}"
        ops.append(SeenOp(name, thread, inputs=tuple(_profiled_facts(event.extra_fields.inputs))))
    return ops


def _profiled_facts(inputs: Any) -> Iterator[Facts]:
    for given in inputs:
        if isinstance(given, list):
            yield from _profiled_facts(given)
        elif isinstance(given, _TensorMetadata):
            yield str(given.dtype).removeprefix("torch."), tuple(given.sizes)


def _is_composite(full: str) -> bool:
    """Whether an op only runs others, which are what is looked for."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return has_kernel(full, "CompositeImplicitAutograd") and not has_kernel(full, "CPU")

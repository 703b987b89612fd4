"""Faults of the backward pass: values written to, graphs cut or used twice."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from clew.analysis.crashes.cause import Cause
from clew.analysis.crashes.scene import Scene
from clew.events.op_names import bare_op
from clew.events.vocabulary import BACKWARD, OP
from clew.plain_text import plain_code
from clew.run.event import Event
from clew.run.run import Run
from clew.run.value import Value

_WRITTEN = re.compile(
    r"\[torch\.\S+ \[(?P<shape>[\d, ]*)\]\]"
    r"(?:, which is output \d+ of (?P<node>\w+?)(?:Backward\d*)?,)?"
)
# Ops that keep their result for the backward pass, and ops that keep what they were given.
_KEEP_RESULT = frozenset(
    {"sigmoid", "tanh", "exp", "softmax", "_softmax", "_log_softmax", "relu", "sqrt", "rsqrt",
     "reciprocal", "sigmoid_", "tanh_", "exp_", "relu_"}
)  # fmt: skip
_KEEP_GIVEN = frozenset(
    {"mul", "div", "pow", "mm", "addmm", "bmm", "baddbmm", "convolution", "sin", "cos", "log",
     "gelu", "silu", "native_layer_norm", "native_batch_norm", "leaky_relu", "elu", "abs", "norm",
     "linalg_vector_norm", "mul_", "div_", "t", "matmul", "linear", "conv2d", "prod", "cumprod",
     "_native_batch_norm_legit", "cudnn_batch_norm", "softplus", "hardtanh", "clamp", "atan2"}
)  # fmt: skip
_INTEGER = ("int", "uint", "bool")
_NUMBERS = ("_local_scalar_dense", "item")
_MOST_STEPS = 10_000
_MOST_WRITES = 200
_MOST_NAMES = 3


def inplace_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell which line wrote to a value, and which op had kept it for the backward pass."""
    named = _WRITTEN.search(scene.text)
    if named is None:
        return None
    shape = tuple(int(size) for size in re.findall(r"\d+", named["shape"]))
    run = scene.run
    writes = _writes(run)[-_MOST_WRITES:]
    used = _ancestors(run)
    pairs = [(write, keeper) for write in writes for keeper in _keepers(run, write, shape, used)]
    if not pairs:
        return None
    # The node that is named made the tensor as it is now: the last write.
    node = (named["node"] or "").lower()
    fitting = [p for p in pairs if node and bare_op(p[0].name).strip("_").startswith(node)]
    write, keeper = (fitting or pairs)[-1]
    says = (
        f"written by {write.name} {at_line(write)}",
        f"kept by {keeper.name} {at_line(keeper)} for its backward",
    )
    if write.phase == "optimizer":
        return Cause(says, "backward() before optimizer.step()")
    return Cause(says, f"a new tensor in place of the write by {bare_op(write.name)}")


def _writes(run: Run) -> list[Event]:
    """Return the ops that wrote to a tensor in place, in order."""
    names = list(map(bare_op, run.columns.ops))
    writing = [at for at, name in enumerate(names) if name.endswith("_") and name[-2:] != "__"]
    rows = run.rows(OP)
    found = rows[np.isin(run.columns.subject[rows], writing) & (run.phase[rows] != BACKWARD)]
    return [run.event(row) for row in found.tolist()]


def _ancestors(run: Run) -> set[int]:
    """Return the rows of the ops that led to the tensor of the last `backward`, as far as it ran.

    Its first ops belong to the last ops of the forward pass. Empty if none has run.
    """
    rows = run.rows(OP)
    before = np.flatnonzero(run.phase[rows] != BACKWARD)
    last = rows[before[-1] + 1 if len(before) else 0 :]
    pending = [row for row in run.forward_row[last].tolist() if row >= 0]
    found: set[int] = set()
    while pending and len(found) < _MOST_STEPS:
        row = pending.pop()
        if row >= 0 and row not in found:
            found.add(row)
            values = run.event(row).inputs.values()
            pending += [run.producer_row(value.number) for value in values]
    return found


def _keepers(run: Run, write: Event, shape: tuple[int, ...], used: set[int]) -> Iterator[Event]:
    """Yield the last op before a write that had kept the memory it wrote, in that shape.

    If the ops `used` for the loss are known, one of them.
    """
    written = [*write.outputs.values(), *(write.inputs.values() if _gives_none(write) else ())]
    storages = {value.storage for value in written}
    tensors = run.tensors
    number = tensors.value
    there = np.isin(run.columns.storage[number], list(storages)) & (tensors.event < write.row)
    for row in np.unique(tensors.event[there])[::-1].tolist():
        event = run.event(row)
        is_forward = event.kind == "op" and event.phase not in ("backward", "optimizer")
        is_forward &= row in used or not used
        if is_forward and _keeps(event, storages, shape):
            yield event
            return


def _gives_none(write: Event) -> bool:
    """Return whether an op writes to its arguments and returns nothing, as `_foreach_add_` does."""
    return not write.outputs


def _keeps(event: Event, storages: set[int], shape: tuple[int, ...]) -> bool:
    name = bare_op(event.name)
    kept: list[Value] = []
    if name in _KEEP_RESULT:
        kept += event.outputs.values()
    if name in _KEEP_GIVEN:
        kept += event.inputs.values()
    return any(one.storage in storages and _is_like(one.shape, shape) for one in kept)


def _is_like(shape: tuple[int, ...] | None, other: tuple[int, ...]) -> bool:
    """Return whether two shapes are of one matrix, which may be transposed."""
    return shape is not None and sorted(shape) == sorted(other)


def no_gradient_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell where the graph was cut between the parameters and the tensor of `backward`."""
    event = scene.event
    if event is None or not scene.arguments:
        return None
    loss = last_like(scene, event)
    if loss is None:
        return None
    cut, named = _cut(scene.run, loss)
    cut = _number_taken(scene.run, loss) if cut is None else cut
    if cut is None:
        shown = ", ".join(named[:_MOST_NAMES]) + (", ..." if len(named) > _MOST_NAMES else "")
        frozen = f": {shown} have requires_grad=False" if named else ""
        return Cause((f"nothing that it was computed from requires a gradient{frozen}",))
    if any(one.requires_grad for one in cut.outputs.values()):
        after = f"the graph was cut after {cut.name} {at_line(cut)}, as by .data"
        return Cause((after,))
    why, guess = _why_cut(cut)
    return Cause((f"the graph was cut by {cut.name} {at_line(cut)}: {why}",), guess)


def last_like(scene: Scene, event: Event) -> Value | None:
    """Return the last value before an event that looks like what `backward` was called on."""
    asked = scene.arguments[0]
    run = scene.run
    for row in range(event.row - 1, -1, -1):
        if int(run.columns.kind[row]) != OP:
            continue
        for value in run.event(row).outputs.values():
            if (value.dtype, value.shape) == (asked.dtype, asked.shape):
                return value
    return None


def _number_taken(run: Run, loss: Value) -> Event | None:
    """Return the op that made a Python number, if a value was made of it on the same line."""
    producer = loss.producer
    if producer is None:
        return None
    for row in range(producer.row, max(producer.row - 4, -1), -1):
        event = run.event(row)
        if bare_op(event.name) in _NUMBERS and str(event.source) == str(producer.source):
            return event if any(one.requires_grad for one in event.inputs.values()) else None
    return None


def _cut(run: Run, value: Value) -> tuple[Event | None, list[str]]:
    """Return the last op on the way to a value that was given a graph and lost it.

    Also return the parameters that it was computed from.
    """
    pending = [value]
    seen: set[int] = set()
    names: dict[str, None] = {}
    found: list[Event] = []
    while pending and len(seen) < _MOST_STEPS:
        value = pending.pop()
        if value.name is not None:
            names[value.name] = None
        producer = value.producer
        if producer is None or producer.row in seen:
            continue
        seen.add(producer.row)
        given = list(producer.inputs.values())
        if any(one.requires_grad for one in given):
            found.append(producer)
        else:
            pending += given
    return max(found, key=lambda event: event.row) if found else None, list(names)


def _why_cut(cut: Event) -> tuple[str, str | None]:
    name = bare_op(cut.name)
    results = list(cut.outputs.values())
    if name in ("detach", "detach_", "alias"):
        return "detach", "without the detach"
    if name in _NUMBERS:
        return "a Python number has no graph", "the tensor itself in place of .item()"
    if results and results[0].dtype.startswith(_INTEGER):
        return f"its result is {results[0].dtype}, which has no gradient", None
    return "gradients were off (torch.no_grad, inference_mode)", "outside of torch.no_grad()"


def at_line(event: Event) -> str:
    """Write the line of an event: `at file:line: code`."""
    source = event.source
    return "" if source is None else f"at {source}: {plain_code(source.text)}"


def leaf_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell how to write to a parameter."""
    return Cause(guess="with torch.no_grad(): around the write")


def no_scalar_cause(scene: Scene, match: re.Match[str]) -> Cause | None:
    """Tell that `backward` needs a single number."""
    loss = next(iter(scene.arguments), None)
    if loss is None:
        return None
    says = f"{loss.name} has {loss.size} elements; backward() starts from one"
    return Cause((says,), f"{loss.changed('.mean()')} or {loss.changed('.sum()')}")

"""Note what only a live crash knows: the tensors of the failing line, and numbers of its indices.

Input: an exception, and the source line of the event that failed. Output: `CrashFacts`. Attributes
and items are looked up where objects keep them: no property, method or hook of the program runs.
Nothing is kept alive, and nothing waits for an accelerator.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from clew.analysis.crashes.facts import (
    GIVEN,
    ContainerFacts,
    CrashFacts,
    IndexFacts,
    TensorFacts,
)
from clew.analysis.crashes.failed_expression import FailedExpression, Step, failed_expression
from clew.callbacks.isolation import undisturbed
from clew.events.model import Source
from clew.events.notebook_cells import shown_file
from clew.frame_locals import first_argument, locals_of, release_locals, some_locals
from clew.observe.ragged_batch import batch_of_frames, is_about_shapes
from clew.program_errors import pass_on
from clew.torch_compat import HELD_MODULES, HELD_TENSORS, WRAPPED_CALL

# Larger indices are not searched, and no more modules are looked at.
_MOST_ELEMENTS = 10_000_000
_MOST_MODULES = 5_000
# Of tuples, lists and dicts: how many items of each are looked at, and how deep.
_MOST_ITEMS = 16
_DEEPEST = 3
_ABOUT_INDICES = (IndexError,)
_ABOUT_INDICES_TEXT = ("out of bounds", "out of range", "index")


def facts_of_crash(error: BaseException, source: Source | None, text: str | None) -> CrashFacts:
    """Return the tensors that the failing line names, and the parameters of the failing module."""
    frames = _frames(error.__traceback__)
    calls = [frame for frame, _ in frames if frame.f_code is WRAPPED_CALL]
    parameters = _parameters(first_argument(calls[-1])) if calls else {}
    devices, dtypes = _counted(first_argument(calls[0]) if calls else None)
    batch = batch_of_frames([frame for frame, _ in frames]) if is_about_shapes(error) else ""
    known = CrashFacts(parameters=parameters, devices=devices, dtypes=dtypes, batch=batch)
    if source is None or text is None:
        return known
    failed = failed_expression(text, source)
    at = _frame_at(frames, source)
    if failed is None or at is None:
        return known
    found = _values(frames[at][0], failed.names)
    given = _given(frames[at + 1 :], failed)
    tensors, containers = _listed(found)
    _, unnamed = _listed({name: one for name, one in given.items() if name not in found})
    indices = {}
    if _is_about_indices(error):
        indices = _indices({**given, **_innermost(calls), **found})
    return replace(known, tensors=tensors, indices=indices, containers={**unnamed, **containers})


def _frames(traceback: TracebackType | None) -> list[tuple[FrameType, int]]:
    found = []
    while traceback is not None:
        found.append((traceback.tb_frame, traceback.tb_lineno))
        traceback = traceback.tb_next
    return found


def _frame_at(frames: list[tuple[FrameType, int]], source: Source) -> int | None:
    """Return the position of the innermost frame of the exception that was at a line."""
    for at, (frame, line) in reversed(list(enumerate(frames))):
        inside = source.line <= line <= max(source.end_line, source.line)
        if inside and shown_file(frame.f_code.co_filename) == source.file:
            return at
    return None


def _given(inside: list[tuple[FrameType, int]], failed: FailedExpression) -> dict[str, Any]:
    """Return what the failing call was given, by its text: also what no variable holds."""
    if not inside:
        return {}
    frame, code = inside[0][0], inside[0][0].f_code
    if code is WRAPPED_CALL:
        arguments, by_name = some_locals(frame, ("args", "kwargs"))
        values = list(arguments or ())
    elif code.co_name == failed.function.rpartition(".")[2]:
        names = code.co_varnames[: code.co_argcount]
        is_method = names[:1] == ("self",) and failed.receiver is not None
        values = some_locals(frame, names[1:] if is_method else names)
        by_name = dict(zip(code.co_varnames, some_locals(frame, code.co_varnames), strict=True))
    else:
        return {}
    found = dict(zip([one.text for one in failed.positional], values, strict=False))
    keywords = by_name if isinstance(by_name, dict) else {}
    return {**found, **{one.text: keywords.get(str(one.keyword)) for one in failed.keywords}}


def _innermost(calls: list[FrameType]) -> dict[str, Any]:
    """Return the first argument of the innermost module call."""
    arguments = some_locals(calls[-1], ("args",))[0] if calls else None
    return {GIVEN: arguments[0]} if arguments else {}


def _parameters(module: Any) -> dict[str, TensorFacts]:
    """Return the parameters and buffers that a module holds itself."""
    held = {name: one for kind in HELD_TENSORS for name, one in _held(module, kind).items()}
    return {name: facts for name, tensor in held.items() if (facts := _facts(tensor))}


def _counted(module: Any) -> tuple[dict[str, int], dict[str, int]]:
    """Count the parameters and buffers of a model by device, and by dtype."""
    devices: Counter[str] = Counter()
    dtypes: Counter[str] = Counter()
    pending, seen = [module], set[int]()
    while pending and len(seen) < _MOST_MODULES:
        one = pending.pop()
        if not isinstance(one, nn.Module) or id(one) in seen:
            continue
        seen.add(id(one))
        held = _parameters(one).values()
        devices.update(facts.device for facts in held)
        dtypes.update(facts.dtype for facts in held)
        pending += _held(one, HELD_MODULES).values()
    return dict(devices), dict(dtypes)


def _values(frame: FrameType, names: dict[str, tuple[Step, ...]]) -> dict[str, Any]:
    variables = locals_of(frame)
    found = {}
    try:
        for name, steps in names.items():
            value = _looked_up(variables, frame.f_globals, steps)
            if isinstance(value, Tensor | tuple | list | dict):
                found[name] = value
    finally:
        del variables
        release_locals(frame)
    return found


def _listed(
    found: dict[str, Any],
) -> tuple[dict[str, TensorFacts], dict[str, ContainerFacts]]:
    """Return the tensors among values and in containers, and the containers that hold some."""
    tensors: dict[str, TensorFacts] = {}
    containers: dict[str, ContainerFacts] = {}
    for name, value in found.items():
        _add(name, value, tensors, containers, 0)
    return tensors, containers


def _add(
    name: str,
    value: Any,
    tensors: dict[str, TensorFacts],
    containers: dict[str, ContainerFacts],
    depth: int,
) -> bool:
    """Note a tensor, or a container and what is in it; return whether there was a tensor."""
    facts = _facts(value)
    if facts is not None:
        tensors[name] = facts
        return True
    items = _items(value) if depth < _DEEPEST else []
    for key, item in items[:_MOST_ITEMS]:
        if _add(f"{name}[{key}]", item, tensors, containers, depth + 1):
            containers[name] = ContainerFacts(_kind(value), len(items))
    return name in containers


def _items(value: Any) -> list[tuple[str, Any]]:
    """Return the items of a container as it keeps them, whatever a subclass of it does."""
    if isinstance(value, tuple):
        return [(str(at), item) for at, item in enumerate(tuple.__iter__(value))]
    if isinstance(value, list):
        return [(str(at), item) for at, item in enumerate(list.__iter__(value))]
    if isinstance(value, dict):
        return [(repr(key), item) for key, item in dict.items(value) if type(key) in (str, int)]
    return []


def _kind(value: Any) -> str:
    return next(kind.__name__ for kind in (tuple, list, dict) if isinstance(value, kind))


def _looked_up(variables: Any, globals_: dict[str, Any], steps: tuple[Step, ...]) -> Any:
    """Return what a path of names leads to, None if that would run code of the program."""
    name = steps[0][1]
    value = variables[name] if name in variables else globals_.get(str(name))
    for how, key in steps[1:]:
        value = _attribute(value, str(key)) if how == "attribute" else _item(value, key)
    return value


def _attribute(value: Any, name: str) -> Any:
    if isinstance(value, Tensor):
        return None
    held = _dict_of(value)
    if name in held:
        return held[name]
    if isinstance(value, nn.Module):
        for kind in (*HELD_TENSORS, HELD_MODULES):
            inner = held.get(kind)
            if type(inner) is dict and name in inner:
                return inner[name]
    return None


def _item(value: Any, key: str | int) -> Any:
    if type(value) is dict:
        return value.get(key)
    if type(value) in (list, tuple) and type(key) is int and -len(value) <= key < len(value):
        return value[key]
    return None


def _held(module: Any, kind: str) -> dict[str, Any]:
    held = _dict_of(module).get(kind)
    return held if isinstance(held, dict) else {}


def _dict_of(value: Any) -> dict[str, Any]:
    try:
        held = object.__getattribute__(value, "__dict__")
    except Exception:
        return {}
    return held if isinstance(held, dict) else {}


def _facts(tensor: Any) -> TensorFacts | None:
    if not isinstance(tensor, Tensor):
        return None
    try:
        shape = tuple(int(size) for size in tensor.shape)
        dtype = str(tensor.dtype).removeprefix("torch.")
        return TensorFacts(dtype, shape, str(tensor.device), bool(tensor.requires_grad))
    except Exception as odd:  # a subclass that does not tell
        pass_on(odd)
        return None


def _is_about_indices(error: BaseException) -> bool:
    if isinstance(error, _ABOUT_INDICES):
        return True
    try:
        text = str(error).lower()
    except Exception:
        return False
    return any(part in text for part in _ABOUT_INDICES_TEXT)


def _indices(found: dict[str, Any]) -> dict[str, IndexFacts]:
    indices = {}
    for name, tensor in found.items():
        try:
            facts = _range_of(tensor) if isinstance(tensor, Tensor) else None
        except Exception as odd:  # a subclass, a tensor without memory
            pass_on(odd)
            facts = None
        if facts is not None:
            indices[name] = facts
    return indices


def _range_of(tensor: Tensor) -> IndexFacts | None:
    """Return the smallest and largest number of an integer tensor in the memory of the CPU."""
    is_integer = not tensor.dtype.is_floating_point and not tensor.dtype.is_complex
    if type(tensor) is not Tensor or tensor.device.type != "cpu" or not is_integer:
        return None
    if tensor.dtype is torch.bool or not 0 < tensor.numel() <= _MOST_ELEMENTS:
        return None
    with undisturbed():
        array = tensor.detach().numpy()
        least, most = int(array.argmin()), int(array.argmax())
        flat = array.reshape(-1)
        return IndexFacts(
            int(flat[least]), _unravelled(least, array.shape),
            int(flat[most]), _unravelled(most, array.shape),
        )  # fmt: skip


def _unravelled(at: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    where = []
    for size in reversed(shape):
        at, rest = divmod(at, size)
        where.append(rest)
    return tuple(reversed(where))

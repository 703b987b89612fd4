"""Describe live values as a watch prints them: facts, statistics, and the text of short values.

Comes in: a value and the statistics that were kept of it. Goes out: a `ValueSummary`. The text,
length and equality that an object's class defines are never used: only what Python itself stores is
read.
Must not import torch: `keep` loads what reads tensors when there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from clew import keep
from clew.events.statistics import array_statistics
from clew.events.watch_events import ARRAY, OTHER, TENSOR, ValueSummary
from clew.keep import nesting
from clew.keep.changes import ValueState, state_of
from clew.keep.python_values import dtype_name
from clew.program_errors import pass_on

# Arrays with at most so many elements are shown with their elements.
FEW = 12
_LONGEST = 60
_MOST_ITEMS = 64
# Layouts and classes that need not be shown.
_USUAL = (None, "strided", "Tensor", "Parameter")

# Computes all statistics of a value.
Whole: TypeAlias = Callable[[], dict[str, Any] | None]
# Takes a tensor, a function that computes all of its statistics or None, and whether to digest it.
FastSummary: TypeAlias = Callable[[Any, Whole | None, bool], ValueSummary | None]
_fast_summary: list[FastSummary] = [lambda tensor, whole, digest: None]


def set_fast_summary(summarize_array: FastSummary) -> None:
    """Set a faster function for the statistics of ordinary tensors."""
    _fast_summary[:] = [summarize_array]


def is_array(value: Any) -> bool:
    """Return whether a value is a tensor or an array."""
    return isinstance(value, np.ndarray) or nesting.is_tensor(value)


def holds_arrays(value: Any, depth: int = 3) -> bool:
    """Return whether a value is a tensor or array, or a container that holds one, not too deep."""
    if is_array(value):
        return True
    if depth and isinstance(value, dict):
        items: Any = list(dict.values(value))[:_MOST_ITEMS]
    elif depth and isinstance(value, list | tuple):
        base: Any = list if isinstance(value, list) else tuple
        items = base.__getitem__(value, slice(_MOST_ITEMS))
    else:
        return False
    return any(holds_arrays(item, depth - 1) for item in items)


def summarize_array(value: Any, numbers: bool, digest: bool = False) -> ValueSummary:
    """Describe a tensor or array; with `numbers`, add the statistics that a line of text shows."""
    found = _fast_summary[0](value, None, digest) if numbers else None
    if found is not None:
        return found
    if not nesting.is_tensor(value):
        return summarize_leaf(value, state_of(value), array_statistics(value) if numbers else None)
    return _tensor(value, state_of(value), keep.numbers(value, digest) if numbers else None)


def tensor_numbers(tensor: Any) -> dict[str, Any] | None:
    """Compute all statistics of a tensor as it is now; None if its elements cannot be read."""
    return keep.numbers(tensor, True)


def summarize_whole(tensor: Any, whole: Whole, now: ValueState) -> ValueSummary:
    """Describe a tensor with all of its statistics; reuse remembered ones if it is unchanged."""
    return _fast_summary[0](tensor, whole, True) or _tensor(tensor, now, whole())


def summarize_leaf(
    value: Any, now: ValueState, stats: dict[str, Any] | None = None
) -> ValueSummary:
    """Describe a value that is no container; `now` is its fresh state."""
    if nesting.is_tensor(value):
        return _tensor(value, now, stats)
    if isinstance(value, np.ndarray):
        return _array(value, now, stats)
    return ValueSummary(
        OTHER, type(value).__name__, "", None, "", "", False, False, None, _text(value), (), None,
        now.memory,
    )  # fmt: skip


def summarize_items(value: Any, described: Any, now: ValueState) -> ValueSummary:
    """Describe a container; `described` is its nesting with a `ValueSummary` for each leaf."""
    items = tuple(_flat(described, ""))
    # The length that Python's own type counts: a subclass may define `__len__` otherwise.
    own: Any = next((cls for cls in (dict, list, tuple) if isinstance(value, cls)), None)
    length = len(described) if own is None else own.__len__(value)
    return ValueSummary(OTHER, type(value).__name__, items=items, length=length, memory=now.memory)


def _flat(described: Any, path: str) -> Iterator[tuple[str, ValueSummary]]:
    if isinstance(described, ValueSummary):
        yield path, described
        return
    pairs = described.items() if isinstance(described, dict) else enumerate(described)
    for key, item in pairs:
        inside = f"{path}.{key}" if path else str(key)
        if isinstance(item, ValueSummary | dict | list):
            yield from _flat(item, inside)
        else:  # nested too deep to be opened
            yield inside, ValueSummary(OTHER, str(item))


def _tensor(value: Any, now: ValueState, stats: dict[str, Any] | None) -> ValueSummary:
    shape, dtype, device, layout, *rest = now.facts
    # The layout of a plain tensor is its stride; that of any other is the stride and its `Extra`.
    plain = all(isinstance(part, int) for part in layout)
    stride = layout if plain else layout[0]
    if not plain and str(layout[1]).startswith("sparse"):
        stride = None  # torch gives zeros
    return ValueSummary(
        TENSOR,
        type(value).__name__,
        dtype=str(dtype).replace("torch.", ""),
        shape=tuple(shape),
        device=device,
        layout="" if plain else " ".join(str(p) for p in layout[1:3] if p not in _USUAL),
        strided=stride is not None and not _is_contiguous(shape, stride),
        grad=bool(rest and rest[0]),
        stats=stats,
        text=_small(lambda: keep.small_elements(value, FEW), shape),
        memory=now.memory,
    )


def _array(value: Any, now: ValueState, stats: dict[str, Any] | None) -> ValueSummary:
    shape = value.shape
    strides = tuple(s // value.itemsize for s in value.strides) if value.itemsize else ()
    return ValueSummary(
        ARRAY,
        type(value).__name__,
        dtype=dtype_name(value.dtype),
        shape=shape,
        device="cpu",
        strided=bool(strides) and not _is_contiguous(shape, strides),
        stats=stats,
        text=None if value.dtype.hasobject else _small(np.ndarray.tolist, shape, value),
        memory=now.memory,
    )


def _is_contiguous(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    expected = 1
    for size, step in reversed(list(zip(shape, stride, strict=False))):
        if size > 1:
            if step != expected:
                return False
            expected *= size
    return True


def _small(read: Callable[..., Any], shape: tuple[int, ...], *args: Any) -> str | None:
    """Return the elements of an array that has few of them, as text."""
    count = 1
    for size in shape:
        count *= size
    if not 0 < count <= FEW:
        return None
    try:
        elements = read(*args)
        return None if elements is None else _elements(elements)
    except Exception as odd:  # a tensor without elements, a dtype Python has no numbers for
        pass_on(odd)
        return None


def _elements(elements: Any) -> str:
    if isinstance(elements, list):
        return "[" + " ".join(map(_elements, elements)) + "]"
    if isinstance(elements, float):
        return f"{elements:.4g}"
    return _clipped(repr(elements)) if type(elements) in nesting.CONSTANTS else str(elements)


def _text(value: Any) -> str | None:
    """Return the text of a constant, or of a set of constants; None for any other object."""
    cls = type(value)
    if isinstance(value, np.generic) and not isinstance(value, np.object_ | np.void):
        return _clipped(str(value.item()))
    if cls is int and value.bit_length() > 200:  # Python writes out only so many digits
        return f"an int of {value.bit_length()} bits"
    if cls in nesting.CONSTANTS:
        return _clipped(repr(value[:_LONGEST] if cls in (str, bytes) else value))
    if cls in (set, frozenset):
        items = [_text(item) for item in list(value)[:_MOST_ITEMS]]
        if len(value) <= _MOST_ITEMS and all(item is not None for item in items):
            return _clipped("{" + ", ".join(sorted(map(str, items))) + "}")
        return f"{cls.__name__} of {len(value)}"
    return None


def _clipped(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


# Differences between two `ValueSummary`s

# In the order in which a watch prints them.
MARKS = (
    "new", "type", "shape", "dtype", "device", "layout", "requires_grad", "NaN", "Inf", "range",
    "values", "items", "in place",
)  # fmt: skip


def differences(before: ValueSummary | None, after: ValueSummary) -> tuple[str, ...]:
    """Return what has changed between two descriptions of a variable, most important first."""
    if before is None:
        return ("new",)
    found: set[str] = set()
    if (before.kind, before.cls) != (after.kind, after.cls):
        found.add("type")
    for name in ("shape", "dtype", "device"):
        if getattr(before, name) != getattr(after, name):
            found.add(name)
    if (before.strided, before.layout) != (after.strided, after.layout):
        found.add("layout")
    if before.grad != after.grad:
        found.add("requires_grad")
    found |= _in_numbers(before, after)
    if before.items != after.items and not found - {"type"}:
        found.add("items")
    elif before.text != after.text and not found:
        found.add("values")
    if _is_written(before, after) and found - {"requires_grad"}:
        found.add("in place")
    return tuple(mark for mark in MARKS if mark in found)


def _in_numbers(before: ValueSummary, after: ValueSummary) -> set[str]:
    old, new = before.stats or {}, after.stats or {}
    found = set()
    if new.get("nan", 0) and not old.get("nan", 0):
        found.add("NaN")
    if new.get("inf", 0) and not old.get("inf", 0):
        found.add("Inf")
    if old and new:
        if not all(_equal(old.get(name), new.get(name)) for name in ("min", "max")):
            found.add("range")
        elif old.get("digest") != new.get("digest") or old.get("nan") != new.get("nan"):
            found.add("values")
    return found


def _equal(one: Any, other: Any) -> bool:
    """Return whether two numbers are equal, where NaN equals NaN."""
    return bool(one == other or (one != one and other != other))


def _is_written(before: ValueSummary, after: ValueSummary) -> bool:
    """Return whether both descriptions are of the same object, so that it was written in place."""
    if before.kind == OTHER or before.kind != after.kind:
        return bool(before.items) and before.memory == after.memory
    if before.kind == TENSOR:
        return bool(before.memory and after.memory and before.memory[0] == after.memory[0])
    return bool(before.memory == after.memory)
